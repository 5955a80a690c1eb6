"""Writes one answer: chosen tokens in, chunks of text out, until something ends it.

What ends an answer: a token or a text to stop at, a complete grammar, its length, or whoever cancels it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Literal

from headrace.llm.lookup import Lookup
from headrace.llm.params import Chunk, FinishReason, SamplingParams, TokenLogprob, Usage
from headrace.llm.sampler import Sample, Sampler
from headrace.llm.stop import StopMatcher
from headrace.llm.tokenizer import Detokenizer, Tokenizer

__all__ = ["Writer"]


class Writer:
    """Answer `index` of a request.

    Args:
        tokenizer: None writes tokens without text.
        stop_ids: Tokens that end the answer.
        limit: Most tokens, at least 1.

    Attributes:
        sampler: Chooses its tokens.
        finish_reason: "" until it has ended.
        n_tokens: Tokens chosen, the one that ended it included.
    """

    __slots__ = (
        "_limit",
        "_lookup",
        "_n_prompt",
        "_stop",
        "_stop_ids",
        "_stream",
        "_tokenizer",
        "_wants_logprobs",
        "finish_reason",
        "index",
        "n_tokens",
        "sampler",
    )

    def __init__(
        self,
        index: int,
        prompt: Sequence[int],
        params: SamplingParams,
        sampler: Sampler,
        tokenizer: Tokenizer | None,
        stop_ids: Collection[int],
        limit: int,
    ) -> None:
        self.index = index
        self.sampler = sampler
        self.n_tokens = 0
        self.finish_reason: FinishReason | Literal[""] = ""
        self._n_prompt = len(prompt)
        self._limit = limit
        self._wants_logprobs = params.logprobs is not None
        self._tokenizer = tokenizer
        self._stream = Detokenizer(tokenizer) if tokenizer is not None else None
        self._stop = StopMatcher(params.stop) if params.stop else None
        self._stop_ids = stop_ids
        self._lookup = Lookup(prompt, params.lookup) if params.lookup else None

    def guess(self, room: int) -> Sequence[int]:
        """At most `room` tokens that may come next, fewer than the answer has left."""
        if self._lookup is None:
            return ()
        return self._lookup.draft(min(room, self._limit - self.n_tokens - 1))

    def write(self, tokens: Sequence[int], samples: Sequence[Sample], guessed: int, cached_tokens: int) -> Chunk:
        """Take the next tokens of the answer, of which the one after the right ones among `guessed` is the last.

        `samples` come with tokens that were drawn, as all are whose log-probabilities are wanted. Tokens after the end
        are dropped. The last chunk tells the usage.
        """
        text, kept = "", 0
        for token in tokens:
            self.n_tokens += 1
            if token in self._stop_ids:
                self.finish_reason = "stop"
                break
            kept += 1
            text += self._add(token)
            if self.sampler.finished or (self._stop is not None and self._stop.matched):
                self.finish_reason = "stop"
                break
            if self.n_tokens >= self._limit:
                self.finish_reason = "length"
                break
        if self._lookup is not None:
            self._lookup.extend(tokens)
            self._lookup.record(guessed, len(tokens) - 1)
        logprobs = tuple([self._logprob(sample) for sample in samples[:kept]]) if self._wants_logprobs else ()
        if not self.finish_reason:
            return Chunk(text, tuple(tokens[:kept]), self.index, "", logprobs)
        return self._last(text, tuple(tokens[:kept]), logprobs, cached_tokens)

    def end(self, reason: FinishReason, cached_tokens: int) -> Chunk:
        """The answer ends here, for a reason that is not its own."""
        self.finish_reason = reason
        return self._last("", (), (), cached_tokens)

    def _add(self, token: int) -> str:
        if self._stream is None:
            return ""
        text = self._stream.push(token)
        return self._stop.push(text) if self._stop is not None else text

    def _last(
        self, text: str, tokens: tuple[int, ...], logprobs: tuple[TokenLogprob, ...], cached_tokens: int
    ) -> Chunk:
        if self._stream is not None:
            rest = self._stream.flush()
            text += self._stop.push(rest) + self._stop.flush() if self._stop is not None else rest
        usage = Usage(self._n_prompt, cached_tokens, self.n_tokens)
        return Chunk(text, tokens, self.index, self.finish_reason, logprobs, usage)

    def _logprob(self, sample: Sample) -> TokenLogprob:
        bytes_of = self._tokenizer.token_bytes if self._tokenizer is not None else _no_bytes
        top = tuple([(token, logprob, bytes_of(token)) for token, logprob in sample.top])
        return TokenLogprob(sample.token, sample.logprob, bytes_of(sample.token), top)


def _no_bytes(_: int) -> bytes:
    return b""
