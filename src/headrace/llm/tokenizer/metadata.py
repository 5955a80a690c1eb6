"""A tokenizer from a checkpoint's metadata, in GGUF's keys: `tokenizer.ggml.*` flow in, a `Tokenizer` comes out."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.errors import LoadFailed
from headrace.llm.formats.texts import Texts
from headrace.llm.tokenizer.bpe import ByteBpe, parse_merges
from headrace.llm.tokenizer.bytelevel import bytes_of, spell_all
from headrace.llm.tokenizer.marks import find_marks, settle_kinds
from headrace.llm.tokenizer.pieces import Pieces, replace, utf8_all
from headrace.llm.tokenizer.pretokenize import PreTokenizer
from headrace.llm.tokenizer.specials import Specials
from headrace.llm.tokenizer.spm import SPACE, ScoredMerging
from headrace.llm.tokenizer.tokenizer import MergingTokenizer, Tokenizer
from headrace.llm.tokenizer.vocabulary import BYTE, CONTROL, NORMAL, UNKNOWN, USER_DEFINED, Kinds, Vocabulary

__all__ = ["tokenizer_from_metadata"]

_MODELS = ("gpt2", "llama")
_BYTE_TOKEN = re.compile("<0x([0-9A-Fa-f]{2})>")
_UNSTRIPPED = ("<unk>", "<s>", "<|endoftext|>")


def tokenizer_from_metadata(metadata: Mapping[str, Any]) -> Tokenizer:
    """Raises `LoadFailed` naming the key that is missing, malformed, or says what is not known, and what is known."""
    model = metadata.get("tokenizer.ggml.model")
    if model not in _MODELS:
        raise LoadFailed(f"tokenizer.ggml.model is {model!r}; known are: {', '.join(_MODELS)}")
    tokens = _texts(metadata, "tokens")
    kinds = _numbers(metadata, "token_type", len(tokens), np.int8, NORMAL)
    pieces, strangers = spell_all(tokens) if model == "gpt2" else (utf8_all(tokens, SPACE), set())
    pieces = _with_written(pieces, tokens, kinds, strangers)
    kinds = settle_kinds(pieces, kinds)
    return _byte_bpe(metadata, tokens, pieces, kinds) if model == "gpt2" else _scored(metadata, tokens, pieces, kinds)


def _byte_bpe(metadata: Mapping[str, Any], tokens: Sequence[str], pieces: Pieces, kinds: Kinds) -> Tokenizer:
    pre = PreTokenizer(metadata.get("tokenizer.ggml.pre", "default"))
    names = _names(tokens, kinds)
    spelled = {token: bytes_of(name) for name, token in names.items()}
    reachable = {piece: token for token, piece in spelled.items() if piece is not None}
    vocabulary = Vocabulary(pieces, kinds, names, reachable)
    merges = parse_merges(_texts(metadata, "merges"), vocabulary)
    marks = find_marks(metadata, names, len(tokens), add_bos=pre.add_bos)
    return MergingTokenizer(vocabulary, marks, ByteBpe(vocabulary, merges, pre), *_specials(metadata, names, kinds))


def _scored(metadata: Mapping[str, Any], tokens: Sequence[str], pieces: Pieces, kinds: Kinds) -> Tokenizer:
    names = _names(tokens, kinds)
    reachable = {name.replace(SPACE, " ").encode(): token for name, token in names.items() if " " not in name}
    vocabulary = Vocabulary(pieces, kinds, names, reachable)
    byte_tokens = {
        piece[0]: token
        for token in np.flatnonzero(kinds == BYTE)[::-1].tolist()
        if len(piece := vocabulary.piece(token)) == 1
    }
    add_space = bool(metadata.get("tokenizer.ggml.add_space_prefix", True))
    scores = _numbers(metadata, "scores", len(tokens), np.float32, 0)
    marks = find_marks(metadata, names, len(tokens), add_bos=True, bos_id=1, eos_id=2, unk_id=0)
    cut = ScoredMerging(vocabulary, scores, byte_tokens, add_space)
    return MergingTokenizer(vocabulary, marks, cut, *_specials(metadata, names, kinds), strip_space=add_space)


def _with_written(pieces: Pieces, tokens: Sequence[str], kinds: Kinds, strangers: set[int]) -> Pieces:
    """Tokens that are no plain text, and those that spell no bytes, stand for themselves; byte tokens for a byte."""
    written = {}
    for token in {*np.flatnonzero(kinds != NORMAL).tolist(), *strangers}:
        value = _BYTE_TOKEN.fullmatch(tokens[token]) if kinds[token] == BYTE else None
        written[token] = bytes((int(value[1], 16),)) if value else tokens[token].encode()
    return replace(pieces, written)


def _names(tokens: Sequence[str], kinds: Kinds) -> dict[str, int]:
    """Tokens that are not plain text, by their text; of equal ones the first."""
    return {tokens[token]: token for token in np.flatnonzero(kinds != NORMAL)[::-1].tolist() if tokens[token]}


def _specials(metadata: Mapping[str, Any], names: Mapping[str, int], kinds: Kinds) -> tuple[Specials, Specials]:
    """The tokens found in every text, and those found where special tokens are asked for."""
    strip: set[int] = set()
    if any(name in str(metadata.get("general.name", "")).lower() for name in ("phi-3", "phi3")):
        # Phi-3's tokens swallow the white space behind them, which its files do not tell.
        strip = {token for name, token in names.items() if name not in _UNSTRIPPED}
    always = {name: token for name, token in names.items() if kinds[token] == USER_DEFINED}
    parsed = {name: token for name, token in names.items() if kinds[token] in (CONTROL, UNKNOWN, USER_DEFINED)}
    return Specials(always, strip), Specials(parsed, strip)


def _texts(metadata: Mapping[str, Any], name: str) -> Sequence[str]:
    texts = metadata.get(f"tokenizer.ggml.{name}")
    if isinstance(texts, Texts):
        return texts
    if not isinstance(texts, Sequence) or isinstance(texts, str) or not all(isinstance(text, str) for text in texts):
        raise LoadFailed(f"tokenizer.ggml.{name}: expected an array of texts, got {type(texts).__name__}")
    return texts


def _numbers(metadata: Mapping[str, Any], name: str, count: int, dtype: Any, default: int) -> npt.NDArray[Any]:
    """One number for each token."""
    values = metadata.get(f"tokenizer.ggml.{name}")
    if values is None:
        return np.full(count, default, dtype)
    try:
        numbers = np.asarray(values).astype(dtype)
    except (TypeError, ValueError):
        raise LoadFailed(f"tokenizer.ggml.{name}: expected numbers, got {type(values).__name__}") from None
    if numbers.ndim != 1 or len(numbers) < count:
        raise LoadFailed(f"tokenizer.ggml.{name}: expected {count} numbers, one for each token, got {numbers.shape}")
    return numbers[:count]
