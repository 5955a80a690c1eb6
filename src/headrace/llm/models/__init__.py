"""Model definitions: in flow a config and its checkpoint, out comes the `Trace` executors replay."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from headrace.llm.config import ModelConfig
from headrace.llm.formats.checkpoint import Checkpoint
from headrace.llm.models import gemma, llama, phi3, qwen
from headrace.llm.models.tensors import Tensors
from headrace.llm.trace import Trace

__all__ = ["DEFINITIONS", "Definition", "build"]

Definition: TypeAlias = Callable[[ModelConfig, Tensors], Trace]

DEFINITIONS: Mapping[str, Definition] = {
    "llama": llama.define,
    "qwen2": qwen.define,
    "qwen3": qwen.define,
    "gemma2": gemma.define,
    "gemma3": gemma.define,
    "phi3": phi3.define,
}
"""By `general.architecture`; one for each of `config.ARCHITECTURES`."""


def build(config: ModelConfig, checkpoint: Checkpoint) -> Trace:
    """Trace the model. Raises `LoadFailed` naming a tensor that is missing, of another shape, or not known."""
    tensors = Tensors(config, checkpoint)
    trace = DEFINITIONS[config.architecture](config, tensors)
    tensors.finish()
    return trace
