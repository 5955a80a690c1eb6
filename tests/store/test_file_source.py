import os

import pytest

from headrace.errors import IntegrityError, InvalidInput, NotFound
from headrace.store.progress import Silent
from headrace.store.sources import open_source, split_pin


@pytest.fixture
def fetch(tmp_path):
    def run(uri):
        target = tmp_path / "target"
        target.mkdir()
        fetched = open_source(uri).fetch(target, Silent())
        assert {entry.path for entry in fetched.files} == {
            path.relative_to(target).as_posix() for path in target.rglob("*") if path.is_file()
        }
        return fetched, {entry.path: (target / entry.path).read_bytes() for entry in fetched.files}

    return run


@pytest.mark.parametrize("form", ["{}", "file://{}", "file://localhost{}", "FILE://{}"])
def test_a_file_is_copied_not_linked(tmp_path, fetch, form):
    path = tmp_path / "a b.onnx"
    path.write_bytes(b"x" * 3_000_000)
    fetched, content = fetch(form.format(str(path).replace(" ", "%20") if "//" in form else path))
    assert content == {"a b.onnx": path.read_bytes()}
    assert fetched.source == path.as_uri()
    assert os.stat(path).st_nlink == 1


def test_a_folder_is_copied_with_everything_below_it(tmp_path, fetch):
    root = tmp_path / "Model Dir"
    (root / "sub").mkdir(parents=True)
    (root / "m.onnx").write_bytes(b"1")
    (root / "sub/.hidden").write_bytes(b"")
    (root / "sub/link").symlink_to("../m.onnx")
    (root / "manifest.json").write_bytes(b"of another store")
    assert open_source(str(root)).name == "model-dir"
    assert fetch(str(root))[1] == {"m.onnx": b"1", "sub/.hidden": b"", "sub/link": b"1"}


def test_a_link_that_leads_out_of_the_folder_is_refused(tmp_path, fetch):
    (tmp_path / "secret").write_bytes(b"s")
    (tmp_path / "m").mkdir()
    (tmp_path / "m/x").symlink_to("../secret")
    with pytest.raises(IntegrityError, match="leads out of"):
        fetch(str(tmp_path / "m"))


def test_a_pipe_is_refused_without_blocking(tmp_path, fetch):
    os.mkfifo(tmp_path / "p")
    with pytest.raises(IntegrityError, match="expected a regular file"):
        fetch(str(tmp_path / "p"))


def test_nothing_there(tmp_path, fetch):
    with pytest.raises(NotFound, match="no such file or folder"):
        fetch(str(tmp_path / "nothing"))


def test_an_empty_folder_is_no_model(tmp_path, fetch):
    (tmp_path / "m").mkdir()
    with pytest.raises(NotFound, match="holds no files"):
        fetch(str(tmp_path / "m"))


@pytest.mark.parametrize(
    "uri", ["", "file://", "file://host/x", "file:///x?y", "file:///x#y", "s4://bucket/x", "http://x"]
)
def test_bad_uris(uri):
    with pytest.raises(InvalidInput, match="source"):
        open_source(uri)


def test_pins_are_split_off_and_checked():
    assert split_pin("a#b") == ("a#b", "")
    assert split_pin("a#sha256=" + "AB" * 32) == ("a", "ab" * 32)
    for bad in ("", "ab", "g" * 64, "a" * 63):
        with pytest.raises(InvalidInput, match="64 hexadecimal digits"):
            split_pin(f"a#sha256={bad}")
