import tomllib

import pytest

from headrace.cli import _needs, pull
from headrace.serve.ops import OPS


@pytest.fixture
def without(monkeypatch):
    """Let these modules be looked for in vain."""

    def hide(*modules):
        real = _needs.importlib.util.find_spec
        monkeypatch.setattr(_needs.importlib.util, "find_spec", lambda name: None if name in modules else real(name))

    return hide


@pytest.fixture
def root(tmp_path):
    for name, config in (
        ("net", 'backend = "onnx"\n'),
        ("see", '[[stage]]\nop = "image.decode"\n[[stage]]\nop = "validate.schema"\n'),
        ("own", '[[stage]]\nop = "stages:f"\n'),
        ("bad", "nothing"),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "headrace.toml").write_text(config)
    return tmp_path


def test_ops_and_extras_are_those_that_there_are(checkout):
    assert set(_needs._OPS) <= set(OPS)
    assert set(_needs._OPS.values()) <= set(_needs._MODULES)
    extras = tomllib.loads((checkout / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    assert extras["serve"] == ["headrace[onnx,vision,audio,validate,llm]"]
    assert set(_needs._MODULES) == {"onnx", "vision", "audio", "validate", "llm"}


def test_all_that_is_missing_is_told_at_once(root, without, capsys):
    pull._tell_needs(root, ["net", "see", "own", "bad"])
    assert capsys.readouterr() == ("", "")
    without("onnxruntime", "PIL", "jsonschema")
    pull._tell_needs(root, ["net", "see", "own", "bad"])
    assert capsys.readouterr().err == (
        "to be served it needs the extras onnx, validate, vision; "
        "install with: pip install 'headrace[onnx,validate,vision]'\n"
    )
    pull._tell_needs(root, ["net"])
    assert "the extra onnx; install with: pip install 'headrace[onnx]'" in capsys.readouterr().err
