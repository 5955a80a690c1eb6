"""A tokenizer from Hugging Face's `tokenizer.json`: the file flows in and is run by the `tokenizers` package.

Only encoding is that package's; the bytes of tokens, and so streaming and decoding, are this package's own.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from headrace.core.extras import require
from headrace.errors import HeadraceError, LoadFailed, StageFailed
from headrace.llm.tokenizer.marks import find_marks
from headrace.llm.tokenizer.spelling import spell_tokens
from headrace.llm.tokenizer.tokenizer import Marks, Tokenizer
from headrace.llm.tokenizer.vocabulary import BYTE, CONTROL, NORMAL, UNUSED, USER_DEFINED, Vocabulary

__all__ = ["HuggingFaceTokenizer", "tokenizer_from_json"]

_LARGEST_BYTES = 1 << 28
_LARGEST_VOCABULARY = 1 << 24
_SPARSEST = 8
"""Ids there may be for each token that the file names; more where the model has rows for them."""


class HuggingFaceTokenizer(Tokenizer):
    """Encodes as the file says. A second instance, made when first needed, is told to leave special tokens alone."""

    def __init__(
        self, text: str, vocabulary: Vocabulary, marks: Marks, *, strip_space: bool, strip_right: Collection[int]
    ) -> None:
        super().__init__(vocabulary, marks, strip_space=strip_space, strip_right=strip_right)
        self._text = text

    @cached_property
    def _parsing(self) -> Any:
        return require("tokenizers", "llm").Tokenizer.from_str(self._text)

    @cached_property
    def _plain(self) -> Any:
        tokenizer = require("tokenizers", "llm").Tokenizer.from_str(self._text)
        tokenizer.encode_special_tokens = True
        return tokenizer

    def _encode(self, text: str, parse_special: bool) -> list[int]:
        with _refusing(lambda what: StageFailed("tokenizer", what)):
            found = (self._parsing if parse_special else self._plain).encode(text, add_special_tokens=False)
        return list(found.ids)


def tokenizer_from_json(path: str | Path, metadata: Mapping[str, Any]) -> Tokenizer:
    """Read a `tokenizer.json`; roles that the file does not tell are taken from the metadata, in GGUF's keys.

    Raises `LoadFailed` naming the file and what is wrong with it, `MissingExtra` without the `tokenizers` package.
    """
    path = Path(path)
    package = require("tokenizers", "llm")
    try:
        if path.stat().st_size > _LARGEST_BYTES:
            raise LoadFailed(f"{path}: expected at most {_LARGEST_BYTES} bytes, got {path.stat().st_size}")
        text = path.read_text("utf-8")
        described = json.loads(text)
    except OSError as error:
        raise LoadFailed(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise LoadFailed(f"{path}: not JSON in UTF-8: {error}") from error
    with _refusing(lambda what: LoadFailed(f"{path}: not a tokenizer.json: {what}")):
        file = package.Tokenizer.from_str(text)
        frame = file.encode("", add_special_tokens=True).ids  # what the file puts around a text

    vocabulary = _vocabulary(file, described, _size(metadata), str(path))
    eos = metadata.get("tokenizer.ggml.eos_token_id")
    marks = find_marks(
        metadata,
        vocabulary.names,
        len(vocabulary),
        add_bos=bool(frame) and frame[0] != eos,
        add_eos=bool(frame) and frame[-1] == eos,
        bos_id=frame[0] if frame and frame[0] != eos else None,
    )
    decoder = json.dumps(described.get("decoder"))
    return HuggingFaceTokenizer(
        text,
        vocabulary,
        marks,
        strip_space='"Strip"' in decoder or '"Metaspace"' in decoder,
        strip_right={token for token, added in file.get_added_tokens_decoder().items() if added.rstrip},
    )


@contextmanager
def _refusing(told: Callable[[str], HeadraceError]) -> Iterator[None]:
    """What the package raises becomes the error that is told of it; what it panics with derives from no `Exception`."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        raise told(str(error)) from error


def _vocabulary(file: Any, described: Mapping[str, Any], size: int, path: str) -> Vocabulary:
    ids = file.get_vocab(with_added_tokens=True).values()
    count, most = max(ids, default=-1) + 1, min(max(size, _SPARSEST * len(ids)), _LARGEST_VOCABULARY)
    if max(count, size) > most:
        raise LoadFailed(f"{path}: expected at most {most} ids for its {len(ids)} tokens, got {max(count, size)}")
    tokens = [file.id_to_token(token) or "" for token in range(count)] + [""] * (size - count)
    decoder = json.dumps(described.get("decoder"))
    is_byte_level = '"ByteLevel"' in decoder
    if not is_byte_level and '"ByteFallback"' not in decoder and '"Metaspace"' not in decoder:
        raise LoadFailed(f"{path}: its decoder is {decoder[:100]}; expected ByteLevel, ByteFallback or Metaspace")
    kinds = np.full(len(tokens), NORMAL, np.int8)
    for token, text in enumerate(tokens):
        if not text:
            kinds[token] = UNUSED
        elif not is_byte_level and text.startswith("<0x"):
            kinds[token] = BYTE
    for token, added in file.get_added_tokens_decoder().items():
        kinds[token] = CONTROL if added.special else USER_DEFINED
    return Vocabulary(*spell_tokens(tokens, kinds, byte_level=is_byte_level))


def _size(metadata: Mapping[str, Any]) -> int:
    """Tokens the model has rows for, which may be more than the file names."""
    value = metadata.get(f"{metadata.get('general.architecture')}.vocab_size", 0)
    return value if isinstance(value, int) else 0
