"""From a file to a model that can be run: in flows a path, out come the open checkpoint, its config and its trace."""

from __future__ import annotations

from pathlib import Path

from headrace.llm.config import ModelConfig
from headrace.llm.formats import open_checkpoint
from headrace.llm.formats.checkpoint import Checkpoint
from headrace.llm.models import build
from headrace.llm.trace import Trace

__all__ = ["load_model"]


def load_model(path: str | Path, context_length: int | None = None) -> tuple[Checkpoint, ModelConfig, Trace]:
    """Open a checkpoint and trace its model for sequences of up to `context_length` positions (None: all it has).

    The caller closes the checkpoint. Raises `LoadFailed` naming the file and the key or tensor at fault, and
    `InvalidInput` for a context the model does not have.
    """
    checkpoint = open_checkpoint(path)
    try:
        config = ModelConfig.from_checkpoint(checkpoint)
        if context_length is not None:
            config = config.with_context(context_length)
        return checkpoint, config, build(config, checkpoint)
    except BaseException:
        checkpoint.close()
        raise
