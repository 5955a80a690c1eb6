"""A model repository made on the spot: a model file in, `models/<name>/…` as the server expects it out."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

from headrace.store.manifest import FileEntry, new_manifest

__all__ = ["add_model", "add_pipeline"]


def add_model(root: Path, name: str, file: Path, config: str = "") -> None:
    """Install `file` as version 1 of model `name`; `config` defaults to the ONNX backend with its own defaults."""
    version = root / name / "1"
    version.mkdir(parents=True)
    shutil.copyfile(file, version / file.name)
    data = file.read_bytes()
    entry = FileEntry(path=file.name, size_bytes=len(data), sha256=hashlib.sha256(data).hexdigest())
    (version / "manifest.json").write_bytes(new_manifest(name, "1", f"file://{file}", [entry]).encode())
    (root / name / "headrace.toml").write_text(config or f'backend = "onnx"\nfile = "{file.name}"\n', "utf-8")
    (root / name / "current").symlink_to("1")


def add_pipeline(root: Path, name: str, config: str, module: Path) -> None:
    """Declare pipeline `name` by the text of its `headrace.toml`; `module` holds its own stages."""
    (root / name).mkdir(parents=True)
    shutil.copyfile(module, root / name / module.name)
    (root / name / "headrace.toml").write_text(config, "utf-8")
