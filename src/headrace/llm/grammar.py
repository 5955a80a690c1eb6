"""Constrained output: a grammar and a vocabulary in, for each step the tokens that may come next out.

`GrammarFactory` holds the vocabulary in llguidance's form, built on first use; `factory.matcher(grammar)` makes the
state of one answer. A malformed grammar raises `InvalidInput` with the library's words before any token is made; a
hostile one is stopped by its size, by the library's limits on each step's work, and by an allowance of processor time.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.core.extras import require
from headrace.errors import InvalidInput
from headrace.llm.params import Grammar
from headrace.llm.tokenizer import Tokenizer

__all__ = ["GrammarFactory", "Matcher"]

MAX_GRAMMAR_BYTES = 128 * 1024
MAX_MESSAGE = 500  # characters of the library's, which may quote the whole grammar

# Between two elements of JSON: nothing, one space, or a line break and its indentation. Unlimited white space would let
# a small model go on with it until the answer is full.
JSON_SPACE = r" |\r?\n[ \t]{0,60}"

# Processor time an answer's masks may take: so much at once, and so much a token in the long run. A usual mask takes
# 0.01 to 0.3 ms, and the other streams wait meanwhile.
ALLOWANCE_S = 0.5
ALLOWANCE_PER_TOKEN_S = 0.01


class GrammarFactory:
    """One per engine; thread-safe. Costs nothing until the first grammar is asked for."""

    def __init__(
        self,
        token_bytes: Callable[[int], bytes],
        vocab_size: int,
        *,
        special_ids: Sequence[int],
        eos_ids: Sequence[int],
        encode: Callable[[str], Sequence[int]] | None = None,
    ) -> None:
        """Keep what the vocabulary is built from.

        Args:
            token_bytes: The bytes a token stands for, for ids 0 up to `vocab_size`; b"" for none.
            vocab_size: Width of the logits.
            special_ids: Control tokens, which no text may produce.
            eos_ids: Tokens that end an answer, allowed where the grammar may end. Without any, a grammar is refused.
            encode: Tokens of a text, none added at its beginning: which of several spellings of a text that the grammar
                forces is the usual one. Without it, the longest tokens are taken.
        """
        self._token_bytes, self._encode, self._vocab_size = token_bytes, encode, vocab_size
        self._special_ids, self._eos_ids = list(special_ids), list(eos_ids)
        self._lock = threading.Lock()
        self._tokenizer: Any = None

    @classmethod
    def of(cls, tokenizer: Tokenizer, vocab_size: int) -> GrammarFactory:
        """For logits of this width, over what the tokenizer knows of their tokens."""
        known = range(min(tokenizer.vocab_size, vocab_size))
        return cls(
            lambda token: tokenizer.token_bytes(token) if token in known else b"",
            vocab_size,
            special_ids=[token for token in known if tokenizer.is_special(token)],
            eos_ids=sorted(tokenizer.end_ids),
            encode=lambda text: tokenizer.encode(text, special=False),
        )

    def matcher(self, grammar: Grammar) -> Matcher:
        """The state of one answer at its beginning; make the others of the request with `copy`.

        Raises `InvalidInput` for a grammar that is malformed, too big or matches nothing, `MissingExtra` without
        llguidance. May take some 100 ms: call it from the caller's thread, not between two steps.
        """
        if len(grammar.text.encode("utf-8", "surrogatepass")) > MAX_GRAMMAR_BYTES:
            raise InvalidInput(
                f"grammar: expected at most {MAX_GRAMMAR_BYTES} bytes, got {len(grammar.text)} characters"
            )
        if not self._eos_ids:
            raise InvalidInput("grammar: this model has no end-of-text token, so no answer could end")
        llguidance = require("llguidance", "llm")
        try:
            if grammar.kind == "regex":
                text = llguidance.LLMatcher.grammar_from_regex(grammar.text)
            elif grammar.kind == "lark":
                text = llguidance.LLMatcher.grammar_from_lark(grammar.text)
            else:
                schema = '{"type": "object"}' if grammar.kind == "json_object" else grammar.text
                text = llguidance.LLMatcher.grammar_from_json_schema(schema, {"whitespace_pattern": JSON_SPACE})
        except ValueError as error:  # UnicodeEncodeError too: a lone surrogate
            raise InvalidInput(f"grammar ({grammar.kind}): {error}") from error
        limits = llguidance.LLParserLimits(verbose_errors=False)
        state = llguidance.LLMatcher(self._vocabulary(llguidance), text, log_level=0, limits=limits)
        if state.is_error():
            raise InvalidInput(f"grammar ({grammar.kind}): {_message(state)}")
        matcher = Matcher(state, (self._vocab_size + 31) // 32)
        matcher.mask()
        return matcher

    def _vocabulary(self, llguidance: Any) -> Any:
        with self._lock:
            if self._tokenizer is None:
                tokens = [self._token_bytes(token) for token in range(self._vocab_size)]
                source = _Vocabulary(tokens, self._special_ids, self._eos_ids, self._encode)
                self._tokenizer = llguidance.LLTokenizer(source, eos_token=self._eos_ids)
            return self._tokenizer


class Matcher:
    """Where one answer stands in its grammar. Not thread-safe."""

    def __init__(self, state: Any, words: int, *, allowance_s: float = ALLOWANCE_S) -> None:
        """For `GrammarFactory`: `state` is llguidance's matcher, `words` the length of a mask."""
        self._state = state
        self._mask = np.zeros(words, np.uint32)
        self._allowance_s = allowance_s

    @property
    def finished(self) -> bool:
        """Whether the grammar is complete: nothing but an end-of-text token may follow."""
        return bool(self._state.is_stopped())

    def mask(self) -> npt.NDArray[np.uint32]:
        """uint32[(vocab + 31) // 32]: bit t % 32 of word t // 32 is set where token t may come next. Valid until the
        next call. Raises `InvalidInput` when the grammar cannot go on or takes too long."""
        begin_s = time.thread_time()
        self._state.unsafe_compute_mask_ptr(self._mask.ctypes.data, self._mask.nbytes)
        left_s = self._allowance_s + ALLOWANCE_PER_TOKEN_S - (time.thread_time() - begin_s)
        self._allowance_s = min(ALLOWANCE_S, left_s)
        if self._state.is_error():
            raise InvalidInput(f"grammar: {_message(self._state)}")
        if self._allowance_s < 0:
            raise InvalidInput("grammar: it takes too long to find out which tokens may follow; simplify it")
        return self._mask

    def accept(self, token: int) -> None:
        """Move on by `token`; raises `InvalidInput` when it may not come."""
        if not self._state.consume_token(token):
            raise InvalidInput(f"grammar: {_message(self._state)}")

    def copy(self) -> Matcher:
        """An independent twin in the same state, for another answer of the same request."""
        return Matcher(self._state.deep_copy(), len(self._mask), allowance_s=self._allowance_s)


class _Vocabulary:
    """What llguidance reads of a tokenizer."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(
        self, tokens: list[bytes], special: list[int], eos: list[int], encode: Callable[[str], Sequence[int]] | None
    ) -> None:
        self.tokens, self.special_token_ids, self.eos_token_id = tokens, special, eos[0]
        self._encode = encode
        marks = {*special, *eos}
        self._ids = {text: token for token, text in enumerate(tokens) if text and token not in marks}
        self._longest = max(map(len, self._ids), default=0)
        self._marks = marks

    def __call__(self, text: str) -> list[int]:
        """Tokens that spell `text` exactly, else masks would be wrong: some encoders add or normalise spaces."""
        wanted = text.encode("utf-8")
        ids = list(self._encode(text)) if self._encode is not None else []
        spelt = b"".join([self.tokens[token] for token in ids])
        return ids if spelt == wanted and self._marks.isdisjoint(ids) else self._longest_first(wanted)

    def _longest_first(self, text: bytes) -> list[int]:
        ids, at = [], 0
        while at < len(text):
            end = min(len(text), at + self._longest)
            while end > at and text[at:end] not in self._ids:
                end -= 1
            if end == at:
                raise InvalidInput(f"grammar: this model has no token for the byte {text[at]:#04x}")
            ids.append(self._ids[text[at:end]])
            at = end
        return ids


def _message(state: Any) -> str:
    """What the library says, without the dump of its state."""
    text = re.split(r"\n<|, traceback:", str(state.get_error()), maxsplit=1)[0].strip()
    return "it matches no text" if text.startswith("NoExtension") else text[:MAX_MESSAGE]
