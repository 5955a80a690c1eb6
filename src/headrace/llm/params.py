"""What a caller asks of a generation and what comes back: `SamplingParams` in, `Chunk` after `Chunk` out."""

from __future__ import annotations

import math
from collections.abc import Iterable
from numbers import Integral, Real
from typing import Literal, TypeAlias, get_args

import msgspec

from headrace.errors import InvalidInput

__all__ = ["MAX_N", "Chunk", "FinishReason", "Grammar", "SamplingParams", "TokenLogprob", "Usage"]

FinishReason: TypeAlias = Literal["stop", "length", "cancelled", "error"]
GrammarKind: TypeAlias = Literal["json_schema", "json_object", "regex", "lark"]

MAX_STOPS = 16
MAX_TOP_LOGPROBS = 20
MAX_N = 64
"""Most answers to one request."""


class Grammar(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the output must match: one of a JSON schema (as JSON text), a regular expression, or a Lark grammar."""

    kind: GrammarKind
    text: str = ""


class SamplingParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How tokens are chosen and when to stop. Defaults are greedy.

    Attributes:
        max_tokens: Most tokens to generate (>= 1); None: as many as the context holds.
        temperature: 0 is greedy; logits are divided by it.
        top_k: Keep the k most likely; 0 keeps all.
        top_p: Keep the smallest set whose probabilities reach p. Source: Holtzman et al. 2020, arXiv:1904.09751.
        min_p: Drop tokens less likely than min_p times the likeliest. Source: arXiv:2407.01082.
        typical_p: Keep the tokens closest to the expected surprise. Source: arXiv:2202.00666. 1 keeps all.
        repetition_penalty: Divide positive and multiply negative logits of tokens seen in prompt or answer.
        presence_penalty, frequency_penalty: Subtracted once, or per occurrence, for tokens seen in the answer.
        logit_bias: Token id to what is added to its logit; -100 and less forbids, 100 and more forces.
        seed: Same seed, same request: same text, whatever else runs. None takes a fresh one.
        stop: Texts that end the generation; they are not part of it.
        stop_token_ids: Tokens that end it, beside the model's own.
        ignore_eos: Go on after the model's end-of-text token (for benchmarks).
        logprobs: None for none, else how many alternatives to report beside each chosen token (0 to 20).
        n: How many answers; they share the prompt's pages.
        grammar: What the answer must match.
        lookup: Most tokens to speculate by looking the last ones up in the prompt; 0 is off. Does not change the text.
    """

    max_tokens: int | None = None
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] = {}
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    n: int = 1
    grammar: Grammar | None = None
    lookup: int = 0

    def check(self, vocab_size: int) -> None:
        """Raise `InvalidInput` naming the first parameter out of range, what was expected and what came."""
        for name, kind, low, high in _RANGES:
            value = getattr(self, name)
            if value is None and name in _OPTIONAL:
                continue
            if not _is(kind, value) or not low <= value <= high:  # a NaN is in no range
                what = "a whole number" if kind is Integral else "a number"
                raise InvalidInput(f"{name}: expected {what} from {low} to {high}, got {_shown(value)}")
        if self.top_p == 0 or self.typical_p == 0 or self.repetition_penalty == 0:
            raise InvalidInput("top_p, typical_p and repetition_penalty must be above 0")
        texts = isinstance(self.stop, list | tuple) and all(isinstance(text, str) and text for text in self.stop)
        if not texts or len(self.stop) > MAX_STOPS:
            raise InvalidInput(f"stop: expected at most {MAX_STOPS} texts, none of them empty, got {_shown(self.stop)}")
        _check_tokens("stop_token_ids", self.stop_token_ids, (list, tuple), vocab_size)
        _check_tokens("logit_bias", self.logit_bias, (dict,), vocab_size)
        for token, bias in self.logit_bias.items():
            if not _is(Real, bias) or not (-1e308 <= bias <= 1e308 or bias in (-math.inf, math.inf)):
                raise InvalidInput(f"logit_bias: token {token} has the bias {_shown(bias)}, which is not a number")
        grammar = self.grammar
        if grammar is not None and not (
            isinstance(grammar, Grammar) and grammar.kind in _KINDS and isinstance(grammar.text, str)
        ):
            raise InvalidInput(f"grammar: expected a Grammar of kind {', '.join(_KINDS)}, got {_shown(grammar)}")


_KINDS = get_args(GrammarKind)
_OPTIONAL = frozenset({"logprobs", "max_tokens", "seed"})

_RANGES: tuple[tuple[str, type, float, float], ...] = (
    ("max_tokens", Integral, 1, 2**31 - 1),
    ("temperature", Real, 0, 100),
    ("top_k", Integral, 0, 2**31 - 1),
    ("top_p", Real, 0, 1),
    ("min_p", Real, 0, 1),
    ("typical_p", Real, 0, 1),
    ("repetition_penalty", Real, 0, 100),
    ("presence_penalty", Real, -100, 100),
    ("frequency_penalty", Real, -100, 100),
    ("logprobs", Integral, 0, MAX_TOP_LOGPROBS),
    ("n", Integral, 1, MAX_N),
    ("lookup", Integral, 0, 16),
    ("seed", Integral, -(2**63), 2**64 - 1),
)


def _is(kind: type, value: object) -> bool:
    """Whether it is such a number; True and False are none, whatever Python says."""
    return isinstance(value, kind) and not isinstance(value, bool)


def _check_tokens(name: str, tokens: Iterable[int], kind: tuple[type, ...], vocab_size: int) -> None:
    if not isinstance(tokens, kind):
        raise InvalidInput(f"{name}: expected token ids, got {_shown(tokens)}")
    for token in tokens:
        if not _is(Integral, token) or not 0 <= token < vocab_size:
            raise InvalidInput(f"{name}: expected token ids below {vocab_size}, got {_shown(token)}")


def _shown(value: object) -> str:
    try:
        text = repr(value)
    except ValueError:  # a number of thousands of digits
        return f"a {type(value).__name__} too large to show"
    return text if len(text) <= 200 else f"{text[:200]}..."


class TokenLogprob(msgspec.Struct, frozen=True):
    """A chosen token and the likeliest alternatives: (token id, natural log of its probability before sampling
    filters, its bytes), most likely first."""

    token: int
    logprob: float
    text: bytes
    top: tuple[tuple[int, float, bytes], ...] = ()


class Usage(msgspec.Struct, frozen=True):
    """Tokens of the prompt, how many of them were found in the cache, tokens generated."""

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int


class Chunk(msgspec.Struct, frozen=True):
    """A piece of one answer. The last of each answer has `finish_reason` and `usage`.

    Attributes:
        text: New text, complete characters only; may be empty while a character or a stop text is incomplete.
        tokens: The token ids that came with it.
        index: Which of the `n` answers.
        finish_reason: "" until the last chunk, then why it ended.
        logprobs: One for each of `tokens` where `SamplingParams.logprobs` asks for them, else none.
        usage: None until the last chunk.
    """

    text: str
    tokens: tuple[int, ...] = ()
    index: int = 0
    finish_reason: FinishReason | Literal[""] = ""
    logprobs: tuple[TokenLogprob, ...] = ()
    usage: Usage | None = None
