"""What a model is is told by its content; anything else is called by its name."""

from __future__ import annotations

import pickle
import zipfile
from pathlib import Path

import pytest

from headrace.errors import LoadFailed
from headrace.llm.formats import open_checkpoint
from headrace.testing.gguf import write_gguf
from headrace.testing.models import save_linear

EXPECTED = "expected a GGUF file, or a folder with config.json"


def test_the_name_does_not_matter(tmp_path, metadata, tensors):
    path = write_gguf(tmp_path / "model.bin", metadata, tensors)
    assert open_checkpoint(str(path)).tensors.keys() == tensors.keys()


def test_other_files_are_called_by_their_name(tmp_path):
    with zipfile.ZipFile(tmp_path / "pytorch_model.bin", "w") as archive:
        archive.writestr("data.pkl", b"")
    (tmp_path / "old.pt").write_bytes(pickle.dumps([1], protocol=2))
    (tmp_path / "old.ggml").write_bytes(b"tjgg" + bytes(20))
    (tmp_path / "text.txt").write_text("hello world")
    (tmp_path / "short").write_bytes(b"x")
    save_linear(tmp_path / "model.onnx", [[1.0]])
    for name, what in {
        "pytorch_model.bin": "a ZIP archive",
        "old.pt": "a pickle",
        "old.ggml": "a GGML file from before GGUF",
        "model.onnx": "an ONNX model",
        "text.txt": "a file that begins with b'hello wo'",
        "short": "a file that begins with b'x'",
    }.items():
        with pytest.raises(LoadFailed) as caught:
            open_checkpoint(tmp_path / name)
        assert str(caught.value).startswith(f"{tmp_path / name}: {EXPECTED}")
        assert what in str(caught.value)


def test_folders_that_hold_no_model_say_what_they_hold(tmp_path, metadata, tensors):
    with pytest.raises(LoadFailed, match="it holds nothing"):
        open_checkpoint(tmp_path)
    (tmp_path / "readme.md").write_text("x")
    with pytest.raises(LoadFailed, match=r"it holds readme\.md"):
        open_checkpoint(tmp_path)
    write_gguf(tmp_path / "m.gguf", metadata, tensors)
    with pytest.raises(LoadFailed, match=r"name one of its files: m\.gguf"):
        open_checkpoint(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(LoadFailed, match=r"has a config\.json but no \*\.safetensors"):
        open_checkpoint(tmp_path)


def test_a_folder_that_cannot_be_listed_is_named(tmp_path, monkeypatch):
    def refuse(_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "iterdir", refuse)
    with pytest.raises(LoadFailed, match=rf"^{tmp_path}: cannot be read: Permission denied"):
        open_checkpoint(tmp_path)


def test_lone_weights_are_refused(tmp_path):
    (tmp_path / "w.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    with pytest.raises(LoadFailed, match=r"is a safetensors file without a config\.json beside it"):
        open_checkpoint(tmp_path / "w.safetensors")


def test_nothing_is_said_to_be_nothing(tmp_path):
    with pytest.raises(LoadFailed, match="No such file"):
        open_checkpoint(tmp_path / "none")
    (tmp_path / "empty").write_bytes(b"")
    with pytest.raises(LoadFailed, match="is empty"):
        open_checkpoint(tmp_path / "empty")
