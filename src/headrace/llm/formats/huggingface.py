"""A Hugging Face folder as a checkpoint: `config.json` and safetensors in, GGUF's keys and tensor names out.

Weights stay views of the mapped files (F32, F16, BF16). Two things are not in the files as GGUF has them: Gemma's
norms, which get their "1 +" here, and longrope's divisors, which come from the config. Queries and keys keep the order
of Hugging Face, which `headrace.rope.interleaved` = False says.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from headrace.errors import LoadFailed
from headrace.llm.formats.checkpoint import MappedCheckpoint, TensorInfo
from headrace.llm.formats.hf_config import rope_factors, text_config, to_metadata
from headrace.llm.formats.hf_names import gguf_name
from headrace.llm.formats.hf_tokens import token_metadata
from headrace.llm.formats.mapped import MappedFile
from headrace.llm.formats.quants import dequantise
from headrace.llm.formats.safetensors import read_safetensors

__all__ = ["HuggingFaceCheckpoint"]

INDEX = "model.safetensors.index.json"
MAX_JSON_BYTES = 1 << 27

_TYPES = ("F32", "F16", "BF16")


class HuggingFaceCheckpoint(MappedCheckpoint):
    """An open folder. Raises `LoadFailed` saying which file, where, what was expected and what came."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        where = f"{folder}/config.json"
        whole = _read_json(folder / "config.json")
        config = text_config(whole, where)
        self.metadata = {
            "general.name": folder.resolve().name,
            **to_metadata(config, where),
            **token_metadata(folder, whole, _read_json),
        }
        tensors: dict[str, TensorInfo] = {}
        try:
            for path in _weight_files(folder):
                self._add(path, tensors)
            if config.get("tie_word_embeddings", self._arch.startswith("gemma")):
                tensors.pop("output.weight", None)
            elif "output.weight" not in tensors:
                raise LoadFailed(f"{folder}: has no lm_head.weight, and tie_word_embeddings is false in config.json")
            for name, values in rope_factors(config, where).items():
                tensors[name] = TensorInfo(name, "F32", values.shape, values.view(np.uint8))
        except BaseException:
            self.close()
            raise
        self.tensors = tensors

    @property
    def files(self) -> tuple[str, ...]:
        """`config.json`, which shapes the tensors too, and the files that hold them, sorted."""
        return (f"{self.path}/config.json", *super().files)

    @property
    def _arch(self) -> str:
        return str(self.metadata["general.architecture"])

    def _add(self, path: Path, tensors: dict[str, TensorInfo]) -> None:
        file = MappedFile(path)
        self._files.append(file)
        for given, raw in read_safetensors(file).items():
            name = gguf_name(given, self._arch)
            if not name:
                continue
            if name in tensors:
                raise LoadFailed(f"{path}: tensor {given!r} ({name}) is there twice")
            if raw.dtype not in _TYPES:
                raise LoadFailed(f"{path}: tensor {given!r}: expected {', '.join(_TYPES)}; got {raw.dtype}")
            if not raw.shape or 0 in raw.shape:
                raise LoadFailed(f"{path}: tensor {given!r}: expected numbers, got the shape {list(raw.shape)}")
            tensor = TensorInfo(name, raw.dtype, raw.shape, raw.data)
            if self._arch.startswith("gemma") and name.endswith("norm.weight"):
                values = dequantise(raw.data, raw.dtype, raw.shape) + np.float32(1)
                tensor = TensorInfo(name, "F32", raw.shape, values.view(np.uint8).reshape(-1))
            tensors[name] = tensor


def _weight_files(folder: Path) -> list[Path]:
    """Those the index names, else `model.safetensors`, else every `*.safetensors`; sorted."""
    if (folder / INDEX).exists():
        names = _read_json(folder / INDEX).get("weight_map")
        if not isinstance(names, dict) or not names or not all(map(_is_plain, names.values())):
            raise LoadFailed(f"{folder / INDEX}: weight_map: expected tensor names with the files that hold them")
        return [folder / name for name in sorted(set(names.values()))]
    if (folder / "model.safetensors").exists():
        return [folder / "model.safetensors"]
    found = sorted(folder.glob("*.safetensors"))
    if not found:
        raise LoadFailed(f"{folder}: has a config.json but no *.safetensors")
    return found


def _is_plain(name: Any) -> bool:
    return isinstance(name, str) and name == Path(name).name and name.endswith(".safetensors")


def _read_json(path: Path) -> dict[str, Any]:
    """The object in a file of moderate size."""
    file = MappedFile(path)
    try:
        if file.size > MAX_JSON_BYTES:
            raise LoadFailed(f"{path}: expected at most {MAX_JSON_BYTES} bytes, it has {file.size}")
        found = json.loads(bytes(file.view))
    except (ValueError, RecursionError) as error:
        raise LoadFailed(f"{path}: is not JSON: {error}") from error
    finally:
        file.close()
    if not isinstance(found, dict):
        raise LoadFailed(f"{path}: expected a JSON object, got {type(found).__name__}")
    return found
