"""Which tokens have a role: metadata and tokens flow in, out come begin, end and the tokens that end a generation.

Files often name only one end; the others are known by their text, as llama.cpp knows them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from headrace.errors import LoadFailed
from headrace.llm.tokenizer.pieces import Pieces
from headrace.llm.tokenizer.tokenizer import Marks
from headrace.llm.tokenizer.vocabulary import CONTROL, USER_DEFINED, Kinds

__all__ = ["find_marks", "settle_kinds"]

# End of turn, message, tool call or text in the families that are about.
_ENDS = frozenset(
    {
        *("<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>", "<end_of_turn>"),
        *("<|endoftext|>", "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<|end_of_text|>", "<end_of_utterance>"),
        *("<eos>", "<turn|>", "<|tool_response>", "<\uff5cend\u2581of\u2581sentence\uff5c>", "[e~["),
        # Of infilling: what follows would be another file.
        *("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]", "<|fim_repo|>", "<|repo_name|>", "<fim-repo>"),
        *("<REPO>", "<reponame>", "<|file_sep|>"),
    }
)
# Marks of gpt-oss between which text is to be seen.
_SHOWN = frozenset({"<|channel|>", "<|message|>", "<|start|>", "<|constrain|>"})
_ID_KEYS = ("bos_token_id", "eos_token_id", "eot_token_id", "eom_token_id", "unknown_token_id", "padding_token_id")


def settle_kinds(pieces: Pieces, kinds: Kinds) -> Kinds:
    """The kinds with what files get wrong put right: an end of turn is a mark, even if it is called a plain token."""
    kinds = kinds.copy()
    settled = {name.encode(): CONTROL for name in _ENDS} | {name.encode(): USER_DEFINED for name in _SHOWN}
    begins, ends = pieces.ends[:-1], pieces.ends[1:]
    firsts = np.frombuffer(pieces.blob + b"\0", np.uint8)[begins]
    may_be = np.isin(ends - begins, [len(name) for name in settled]) & np.isin(firsts, [name[0] for name in settled])
    for token in np.flatnonzero(may_be).tolist():
        kinds[token] = settled.get(pieces.blob[begins[token] : ends[token]], kinds[token])
    return kinds


def find_marks(
    metadata: Mapping[str, Any],
    names: Mapping[str, int],
    n_tokens: int,
    *,
    add_bos: bool,
    add_eos: bool = False,
    bos_id: int | None = None,
    eos_id: int | None = None,
    unk_id: int | None = None,
) -> Marks:
    """Read the roles; what the file does not say is as the other arguments have it.

    Raises `LoadFailed` for an id outside the vocabulary, or where a token is to be added that is not named.
    """
    ids: dict[str, int | None] = {"bos_token_id": bos_id, "eos_token_id": eos_id, "unknown_token_id": unk_id}
    ids = {key: value if value is None or value < n_tokens else None for key, value in ids.items()}
    for key in _ID_KEYS:
        value = metadata.get(f"tokenizer.ggml.{key}")
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | np.integer):
            raise LoadFailed(f"tokenizer.ggml.{key}: expected a token id, got {value!r}")
        # 0xFFFFFFFF and the like stand for "none" in files written by old converters.
        ids[key] = int(value) if 0 <= value < n_tokens else None
    adds = {}
    for name, default in (("bos", add_bos), ("eos", add_eos)):
        said = metadata.get(f"tokenizer.ggml.add_{name}_token")
        adds[name] = default if said is None else bool(said)
        if said and ids.get(f"{name}_token_id") is None:
            raise LoadFailed(f"tokenizer.ggml.add_{name}_token is true, but tokenizer.ggml.{name}_token_id is not set")
    return Marks(
        bos_id=ids.get("bos_token_id"),
        eos_id=ids.get("eos_token_id"),
        unk_id=ids.get("unknown_token_id"),
        pad_id=ids.get("padding_token_id"),
        add_bos=adds["bos"],
        add_eos=adds["eos"],
        end_ids=_ends(ids, names),
    )


def _ends(ids: Mapping[str, int | None], names: Mapping[str, int]) -> frozenset[int]:
    ends = {token for key in ("eos_token_id", "eot_token_id", "eom_token_id") if (token := ids.get(key)) is not None}
    found = {name for name in _ENDS if name in names}
    if {"<|return|>", "<|call|>"} <= found or {"<|calls|>", "<|flush|>"} <= found:
        found.discard("<|end|>")  # in these it ends a message, not the answer
    return frozenset(ends | {names[name] for name in found})
