"""A model repository made on the spot: a model file in, `models/<name>/…` as the server expects it out."""

from __future__ import annotations

import shutil
from pathlib import Path

from headrace.store.pull import pull_model
from headrace.store.versions import ModelStore

__all__ = ["add_model", "add_pipeline"]


def add_model(root: Path, name: str, file: Path, config: str = "") -> None:
    """Install `file` as version 1 of model `name`; `config` defaults to the ONNX backend with its own defaults."""
    pull_model(ModelStore(root), str(file), name=name, version="1", config=config.encode())


def add_pipeline(root: Path, name: str, config: str, module: Path) -> None:
    """Declare pipeline `name` by the text of its `headrace.toml`; `module` holds its own stages."""
    (root / name).mkdir(parents=True)
    shutil.copyfile(module, root / name / module.name)
    (root / name / "headrace.toml").write_text(config, "utf-8")
