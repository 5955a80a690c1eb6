"""Text to tokens and back: a vocabulary and a way to cut text flow in, out comes what engines and servers call.

encode: text -> stretches between special tokens -> words -> merged pieces -> ids, then begin and end of text.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from headrace.errors import InvalidInput
from headrace.llm.tokenizer.specials import Specials
from headrace.llm.tokenizer.vocabulary import Vocabulary

__all__ = ["Cut", "Marks", "MergingTokenizer", "Tokenizer"]


@dataclass(frozen=True)
class Marks:
    """Tokens with a role of their own. `end_ids`: those that end a generation."""

    bos_id: int | None = None
    eos_id: int | None = None
    unk_id: int | None = None
    pad_id: int | None = None
    add_bos: bool = False
    add_eos: bool = False
    end_ids: frozenset[int] = frozenset()


class Tokenizer(ABC):
    """What all tokenizers share; threads may share one.

    Attributes:
        vocabulary: The tokens.
        marks: Which of them have a role.
        strip_space: Whether `decode` takes away the space that `encode` put in front.
    """

    def __init__(
        self, vocabulary: Vocabulary, marks: Marks, *, strip_space: bool = False, strip_right: Collection[int] = ()
    ) -> None:
        self.vocabulary = vocabulary
        self.marks = marks
        self.strip_space = strip_space
        self._strip_right = strip_right

    @property
    def vocab_size(self) -> int:
        return len(self.vocabulary)

    @property
    def bos_id(self) -> int | None:
        return self.marks.bos_id

    @property
    def eos_id(self) -> int | None:
        return self.marks.eos_id

    @property
    def end_ids(self) -> frozenset[int]:
        """Tokens that end a generation: end of text, of turn, of message."""
        return self.marks.end_ids

    def encode(self, text: str, *, special: bool = True, parse_special: bool = False) -> list[int]:
        """The ids of a text.

        Args:
            special: Add begin and end of text where the model wants them, but not where the text has them already.
            parse_special: Take texts such as "<|im_end|>" for the tokens of that name; only for texts one has written
                oneself, for with it a user can end a turn.

        Raises `InvalidInput` for what is no text, or holds a lone surrogate.
        """
        ids = self._encode(checked(text), parse_special)
        marks = self.marks
        if special and marks.add_bos and marks.bos_id is not None and ids[:1] != [marks.bos_id]:
            ids.insert(0, marks.bos_id)
        if special and marks.add_eos and marks.eos_id is not None and ids[-1:] != [marks.eos_id]:
            ids.append(marks.eos_id)
        return ids

    def guard(self, text: str, mark: str) -> str:
        """The text with `mark` put into whatever reads like a special token, so that `encode_guarded` takes it as text.

        `mark` is one character that the text does not have.
        """
        for name in self._specials.present(text):
            text = text.replace(name, f"{name[:1]}{mark}{name[1:]}")
        return text

    def encode_guarded(self, text: str, mark: str) -> list[int]:
        """The ids of a text in which special tokens are parsed, without `mark`; begin and end are not added."""
        ids: list[int] = []
        for part in self._specials.split(checked(text)):
            if isinstance(part, int):
                ids.append(part)
            else:
                ids += self._encode(part.replace(mark, ""), parse_special=False)
        return ids

    @cached_property
    def _specials(self) -> Specials:
        known = self.vocabulary
        return Specials(
            {name: token for name, token in known.names.items() if known.is_special(token)}, self._strip_right
        )

    @abstractmethod
    def _encode(self, text: str, parse_special: bool) -> list[int]:
        """The ids of a text without begin and end."""

    def decode(self, ids: Iterable[int], *, skip_special: bool = False) -> str:
        """The text of some ids; bytes that are no UTF-8 become U+FFFD. Raises `InvalidInput` for an unknown id."""
        text = self.vocabulary.join(ids, skip_special).decode("utf-8", "replace")
        return text[1:] if self.strip_space and text[:1] == " " else text

    def token_bytes(self, token: int) -> bytes:
        """What a token adds to a text; may be part of a character. Raises `InvalidInput` for an unknown id."""
        return self.vocabulary.piece(self.vocabulary.check(token))

    def is_special(self, token: int) -> bool:
        """Whether a token is a mark and no text. Raises `InvalidInput` for an unknown id."""
        return self.vocabulary.is_special(self.vocabulary.check(token))


class Cut(Protocol):
    """Turns a stretch of text that holds no special tokens into ids."""

    def encode(self, text: str, follows_special: bool, out: list[int]) -> None: ...


class MergingTokenizer(Tokenizer):
    """Rebuilt from a checkpoint's metadata: special tokens first, merging between them."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        marks: Marks,
        cut: Cut,
        always: Specials,
        parsed: Specials,
        *,
        strip_space: bool = False,
        strip_right: Collection[int] = (),
    ) -> None:
        super().__init__(vocabulary, marks, strip_space=strip_space, strip_right=strip_right)
        self._cut = cut
        self._always = always
        self._parsed = parsed

    def _encode(self, text: str, parse_special: bool) -> list[int]:
        ids: list[int] = []
        follows_special = True
        for part in (self._parsed if parse_special else self._always).split(text):
            follows_special, follows = isinstance(part, int), follows_special
            if isinstance(part, int):
                ids.append(part)
            else:
                self._cut.encode(part, follows, ids)
        return ids


def checked(text: str) -> str:
    """Return `text` if it can be written in UTF-8; raises `InvalidInput` saying what it is instead."""
    if not isinstance(text, str):
        raise InvalidInput(f"text to tokenize: expected a str, got {type(text).__name__}")
    try:
        if not text.isascii():
            text.encode()
    except UnicodeEncodeError as error:
        code = ord(text[error.start])
        raise InvalidInput(f"text to tokenize: character {error.start} is a lone surrogate, U+{code:04X}") from None
    return text
