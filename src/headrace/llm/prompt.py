"""What callers may give as a prompt, checked and turned into tokens that fit: text, token ids or chat messages in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, TypeAlias, cast

import numpy as np

from headrace.errors import InvalidInput
from headrace.llm.chat import Chat
from headrace.llm.messages import Message
from headrace.llm.tokenizer import Tokenizer

__all__ = ["Prompt", "Prompts"]

Prompt: TypeAlias = str | Sequence[int] | Sequence[Message]


class Prompts:
    """Args:
    tokenizer, chat: Of the model; None where it has none, then only token ids (or no messages) are taken.
    vocab_size: Token ids there are.
    max_context: Most tokens of prompt and answer together.
    """

    def __init__(self, tokenizer: Tokenizer | None, chat: Chat | None, vocab_size: int, max_context: int) -> None:
        self._tokenizer = tokenizer
        self._chat = chat
        self._vocab_size = vocab_size
        self._max_context = max_context

    def tokens(
        self, prompt: Prompt, tools: Sequence[Mapping[str, Any]] | None = None, *, truncate: bool = False
    ) -> list[int]:
        """The tokens of a prompt, at least one. Raises `InvalidInput` saying what is wrong with it.

        A text of more bytes than any tokens that fit the context is refused before it is read, or loses its beginning
        where `truncate` allows that.
        """
        if isinstance(prompt, str):
            tokens = self._known_tokenizer().encode(self._bounded(prompt, truncate))
        elif isinstance(prompt, Sequence) and prompt and isinstance(prompt[0], Mapping):
            if self._chat is None:
                raise InvalidInput("prompt: this model has no chat template; expected a text or token ids")
            messages = cast(Sequence[Message], prompt)
            self._bounded("".join(_contents(messages)), truncate=False)
            tokens = self._chat.encode(messages, tools=tools)
        else:
            tokens = self._ids(prompt)
        if not tokens:
            raise InvalidInput("prompt: expected at least one token, got none")
        return tokens

    def fit(self, tokens: list[int], max_tokens: int | None, truncate: bool) -> tuple[list[int], int, int]:
        """The prompt as it is used, the most tokens its answer may have, and how many were cut from the prompt.

        A prompt that leaves no room for `max_tokens` (at least 1) raises `InvalidInput` with the numbers, or loses its
        beginning where `truncate` allows that.
        """
        wanted = max_tokens or 1
        room = self._max_context - wanted
        if room < 1:
            raise InvalidInput(
                f"max_tokens: expected at most {self._max_context - 1}, for prompt and answer share a context of "
                f"{self._max_context} tokens; got {wanted}"
            )
        cut = max(0, len(tokens) - room)
        if cut:
            if not truncate:
                raise InvalidInput(
                    f"prompt: {len(tokens)} tokens and an answer of {wanted} do not fit the context of "
                    f"{self._max_context}; expected a prompt of at most {room} tokens"
                )
            tokens = tokens[cut:]
        return tokens, max_tokens or self._max_context - len(tokens), cut

    def whole(self, text: Prompt) -> list[int]:
        """The tokens of a text that nothing is to follow. Raises `InvalidInput` when it does not fit the context."""
        tokens = self.tokens(text)
        if len(tokens) > self._max_context:
            raise InvalidInput(f"text: {len(tokens)} tokens do not fit the context of {self._max_context}")
        return tokens

    def _bounded(self, text: str, truncate: bool) -> str:
        if len(text) <= self._max_context:
            return text
        n_bytes, most = len(text.encode(errors="replace")), self._max_context * self._longest_token
        if n_bytes <= most:
            return text
        if truncate:
            return text[-most:]
        raise InvalidInput(
            f"prompt: a text of {n_bytes} bytes cannot fit the context of {self._max_context} tokens; none has more "
            f"than {self._longest_token} bytes"
        )

    @cached_property
    def _longest_token(self) -> int:
        """Bytes."""
        tokenizer = self._known_tokenizer()
        return max(len(tokenizer.token_bytes(token)) for token in range(tokenizer.vocab_size))

    def _known_tokenizer(self) -> Tokenizer:
        if self._tokenizer is None:
            raise InvalidInput("prompt: this model has no tokenizer; expected token ids")
        return self._tokenizer

    def _ids(self, prompt: object) -> list[int]:
        try:
            ids = np.asarray(prompt)
        except ValueError:
            ids = np.empty((0, 0))
        if ids.ndim != 1 or (len(ids) and ids.dtype.kind not in "iu"):
            raise InvalidInput(f"prompt: expected a text, token ids or messages, got {_described(prompt)}")
        if len(ids) and not (ids.min() >= 0 and ids.max() < self._vocab_size):
            wrong = next(token for token in ids.tolist() if not 0 <= token < self._vocab_size)
            raise InvalidInput(f"prompt: expected token ids below {self._vocab_size}, got {wrong}")
        return [int(token) for token in ids]


def _contents(messages: Sequence[Message]) -> Iterator[str]:
    """The texts of messages, as far as they have the form that is checked later."""
    for message in messages:
        content = message.get("content") if isinstance(message, Mapping) else None
        for part in content if isinstance(content, list) else [content]:
            text = part.get("text") if isinstance(part, Mapping) else part
            if isinstance(text, str):
                yield text


def _described(prompt: object) -> str:
    text = repr(prompt)
    return text if len(text) <= 80 else f"{text[:77]}..."
