from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import InvalidInput
from headrace.store.names import check_model, check_path, check_version, safe_path, split_reference, suggest_model

ALPHABET = "abcABC019._-+/\\:@ \n\x00~é"


@given(st.text(ALPHABET, max_size=70))
def test_accepted_names_stay_one_level_below_the_repository(name):
    for check in (check_model, check_version):
        try:
            check(name)
        except InvalidInput:
            continue
        else:
            assert 1 <= len(name) <= 64
            path = Path("/repo") / name
            assert path.parent == Path("/repo")
            assert path.resolve() == path
            assert not name.startswith(".")
            assert name.isprintable()


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "A", "a\n", "-a", "a" * 65, "é", "a:b", "a b", ".hidden"])
def test_bad_model_names_are_refused(name):
    with pytest.raises(InvalidInput, match="model name"):
        check_model(name)


@pytest.mark.parametrize("version", ["", "..", "current", "headrace.toml", "a/b", "1\n", "v" * 65])
def test_bad_versions_are_refused(version):
    with pytest.raises(InvalidInput, match="version"):
        check_version(version)


@given(st.text(ALPHABET + "ab../", max_size=40))
def test_accepted_paths_stay_inside(path):
    if not safe_path(path):
        root = Path("/root/version")
        joined = root / path
        assert joined.is_relative_to(root)
        assert ".." not in joined.parts
        assert joined.as_posix() == f"/root/version/{path}"


@pytest.mark.parametrize(
    "path",
    [
        *("", "/etc/passwd", "../x", "a/../../x", "a//b", "./a", "a/", "a\\b", "a\nb", "a\x00", "\ud800"),
        *("manifest.json", "x" * 256, "a/" * 600 + "a"),
    ],
)
def test_bad_paths_are_refused(path):
    with pytest.raises(InvalidInput, match="here: path"):
        check_path(path, "here")


@pytest.mark.parametrize(
    ("reference", "expected"),
    [("ocr", ("ocr", "")), ("ocr:1", ("ocr", "1")), ("ocr@1.0+x", ("ocr", "1.0+x"))],
)
def test_references_split(reference, expected):
    assert split_reference(reference) == expected


@pytest.mark.parametrize("reference", ["ocr:", "ocr@", ":1", "ocr:1:2", "ocr@1@2", "ocr:../x", "ocr@1:2"])
def test_bad_references_are_refused(reference):
    with pytest.raises(InvalidInput):
        split_reference(reference)


@pytest.mark.parametrize(
    ("path", "parent", "expected"),
    [
        ("a/ResNet 50.onnx", "x", "resnet-50"),
        ("model.onnx", "ResNet", "resnet"),
        ("", "My_Package", "my_package"),
        ("SmolLM2-135M.Q4_1.gguf", "x", "smollm2-135m.q4_1"),
    ],
)
def test_names_are_suggested(path, parent, expected):
    assert suggest_model(path, parent) == expected


def test_no_name_can_be_suggested():
    with pytest.raises(InvalidInput):
        suggest_model("模型.onnx", "x")
