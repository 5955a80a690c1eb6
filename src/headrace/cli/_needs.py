"""Which extras a repository needs: in flow model names, out come the extras that are missing here, and the remedy."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.serve.config import ModelConfig

__all__ = ["extras_of", "install", "missing", "missing_for"]

# The modules that each extra brings, as they are imported.
_MODULES = {
    "audio": ("soundfile", "soxr"),
    "llm": ("jinja2",),
    "onnx": ("onnxruntime",),
    "validate": ("jsonschema",),
    "vision": ("cv2", "PIL"),
}
# The ops whose stage imports such a module, by their whole name or by the part before the dot.
_OPS = {
    "audio.decode": "audio",
    "audio.resample": "audio",
    "boxes.find": "vision",
    "image.decode": "vision",
    "image.resize": "vision",
    "ocr.orient": "vision",
    "ocr.page": "vision",
    "ocr.strips": "vision",
    "validate.schema": "validate",
}


def extras_of(config: ModelConfig) -> set[str]:
    """The extras that a model or pipeline needs, as far as its `headrace.toml` tells (stages of one's own do not)."""
    needed = {config.backend} & {"onnx", "llm"}
    return needed | {_OPS[stage.op] for stage in config.stage if stage.op in _OPS}


def missing(extras: Iterable[str]) -> list[str]:
    """Those of `extras` that are not installed, sorted."""
    return sorted(extra for extra in extras if any(_is_absent(module) for module in _MODULES[extra]))


def missing_for(root: Path, names: Iterable[str]) -> list[str]:
    """The extras that these models and pipelines lack; one whose `headrace.toml` cannot be read needs nothing."""
    from headrace.errors import ConfigError
    from headrace.serve.config import load_config

    needed: set[str] = set()
    for name in names:
        try:
            needed |= extras_of(load_config(root / name / "headrace.toml"))
        except ConfigError:
            continue
    return missing(needed)


def install(extras: Iterable[str]) -> str:
    """The command that brings extras to an installed Headrace; pip then finds it there and only adds to it."""
    return f"pip install 'headrace[{','.join(extras)}]'"


def _is_absent(module: str) -> bool:
    return importlib.util.find_spec(module) is None
