"""A tokenizer from a checkpoint's metadata, in GGUF's keys: `tokenizer.ggml.*` flow in, a `Tokenizer` comes out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.errors import LoadFailed
from headrace.llm.formats.texts import Texts
from headrace.llm.tokenizer.bpe import ByteBpe, parse_merges
from headrace.llm.tokenizer.bytelevel import bytes_of
from headrace.llm.tokenizer.marks import find_marks
from headrace.llm.tokenizer.pretokenize import PreTokenizer
from headrace.llm.tokenizer.specials import Specials
from headrace.llm.tokenizer.spelling import SPACE, Spelled, spell_tokens
from headrace.llm.tokenizer.spm import ScoredMerging
from headrace.llm.tokenizer.tokenizer import Cut, Marks, MergingTokenizer, Tokenizer
from headrace.llm.tokenizer.vocabulary import BYTE, CONTROL, NORMAL, UNKNOWN, USER_DEFINED, Vocabulary

__all__ = ["tokenizer_from_metadata"]

_MODELS = ("gpt2", "llama")
_UNSTRIPPED = ("<unk>", "<s>", "<|endoftext|>")


def tokenizer_from_metadata(metadata: Mapping[str, Any]) -> Tokenizer:
    """Raises `LoadFailed` naming the key that is missing, malformed, or says what is not known, and what is known."""
    model = metadata.get("tokenizer.ggml.model")
    if model not in _MODELS:
        problem = "there is no tokenizer: no tokenizer.json, and" if model is None else ""
        raise LoadFailed(f"{problem} tokenizer.ggml.model is {model!r}; known are: {', '.join(_MODELS)}".lstrip())
    tokens = _texts(metadata, "tokens")
    kinds = _numbers(metadata, "token_type", len(tokens), np.int8, NORMAL)
    spelled = spell_tokens(tokens, kinds, byte_level=model == "gpt2")
    return _byte_bpe(metadata, spelled) if model == "gpt2" else _scored(metadata, spelled)


def _byte_bpe(metadata: Mapping[str, Any], spelled: Spelled) -> Tokenizer:
    pre = PreTokenizer(metadata.get("tokenizer.ggml.pre", "default"))
    by_name = {token: bytes_of(name) for name, token in spelled.names.items()}
    reachable = {piece: token for token, piece in by_name.items() if piece is not None}
    vocabulary = Vocabulary(*spelled, reachable)
    merges = parse_merges(_texts(metadata, "merges"), vocabulary)
    marks = find_marks(metadata, spelled.names, len(vocabulary), add_bos=pre.add_bos)
    return _merging(metadata, spelled, vocabulary, marks, ByteBpe(vocabulary, merges, pre), strip_space=False)


def _scored(metadata: Mapping[str, Any], spelled: Spelled) -> Tokenizer:
    names = spelled.names
    reachable = {name.replace(SPACE, " ").encode(): token for name, token in names.items() if " " not in name}
    vocabulary = Vocabulary(*spelled, reachable)
    byte_tokens = {
        piece[0]: token
        for token in np.flatnonzero(spelled.kinds == BYTE)[::-1].tolist()
        if len(piece := vocabulary.piece(token)) == 1
    }
    add_space = bool(metadata.get("tokenizer.ggml.add_space_prefix", True))
    scores = _numbers(metadata, "scores", len(vocabulary), np.float32, 0)
    marks = find_marks(metadata, names, len(vocabulary), add_bos=True, bos_id=1, eos_id=2, unk_id=0)
    cut = ScoredMerging(vocabulary, scores, byte_tokens, add_space)
    return _merging(metadata, spelled, vocabulary, marks, cut, strip_space=add_space)


def _merging(
    metadata: Mapping[str, Any], spelled: Spelled, vocabulary: Vocabulary, marks: Marks, cut: Cut, *, strip_space: bool
) -> Tokenizer:
    """With the tokens that are found in every text, and those found where special tokens are asked for."""
    _, kinds, names = spelled
    strip: set[int] = set()
    if any(name in str(metadata.get("general.name", "")).lower() for name in ("phi-3", "phi3")):
        # Phi-3's tokens swallow the white space behind them, which its files do not tell.
        strip = {token for name, token in names.items() if name not in _UNSTRIPPED}
    always = {name: token for name, token in names.items() if kinds[token] == USER_DEFINED}
    parsed = {name: token for name, token in names.items() if kinds[token] in (CONTROL, UNKNOWN, USER_DEFINED)}
    found = Specials(always, strip), Specials(parsed, strip)
    return MergingTokenizer(vocabulary, marks, cut, *found, strip_space=strip_space, strip_right=strip)


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
