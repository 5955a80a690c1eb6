import hashlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import ConfigError, IntegrityError, InvalidInput
from headrace.store.manifest import FileEntry, content_digest, content_pin, new_manifest, read_manifest
from headrace.store.names import safe_path

paths = st.text("abc./é ", min_size=1, max_size=12).filter(lambda path: not safe_path(path))
entries = st.builds(
    FileEntry,
    path=paths,
    size_bytes=st.integers(0, 2**50),
    sha256=st.binary(min_size=32, max_size=32).map(bytes.hex),
)
ONE = FileEntry("a.bin", 3, hashlib.sha256(b"abc").hexdigest())


def write(folder, document):
    folder.mkdir(parents=True, exist_ok=True)
    raw = document if isinstance(document, bytes) else json.dumps(document).encode()
    (folder / "manifest.json").write_bytes(raw)
    return folder


@given(st.lists(entries, min_size=1, max_size=6, unique_by=lambda entry: entry.path))
def test_what_is_written_is_read_back(tmp_path_factory, files):
    paths = {entry.path for entry in files}
    if any(f"{parent}/" == path[: len(parent) + 1] for parent in paths for path in paths):
        with pytest.raises(InvalidInput, match="inside another listed file"):
            new_manifest("m", "v1", "file:///x", files)
        return
    manifest = new_manifest("m", "v1", "file:///x", files)
    folder = write(tmp_path_factory.mktemp("m") / "v1", manifest.encode())
    assert read_manifest(folder) == manifest
    assert manifest.digest == content_digest(reversed(files))
    assert manifest.size_bytes == sum(entry.size_bytes for entry in files)


def test_the_digest_can_be_recomputed_from_its_description():
    other = FileEntry("a/z.bin", 1, "0" * 64)
    text = f"{ONE.sha256} 3 a.bin\n{other.sha256} 1 a/z.bin\n"
    assert content_digest([other, ONE]) == hashlib.sha256(text.encode()).hexdigest()


def test_a_pin_is_the_hash_of_a_single_file_else_the_digest():
    assert content_pin([ONE]) == ONE.sha256
    both = [ONE, FileEntry("b", 0, "0" * 64)]
    assert content_pin(both) == content_digest(both)


def test_created_is_rfc_3339_in_utc():
    document = json.loads(new_manifest("m", "v1", "x", [ONE]).encode())
    assert document["created"].endswith("Z")
    assert "T" in document["created"]


def edited(**changes):
    return {**json.loads(new_manifest("m", "v1", "x", [ONE]).encode()), **changes}


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (b"", "not a valid manifest"),
        (b"\xff", "not a valid manifest"),
        (b"[]", "not a valid manifest"),
        (edited(format="1"), "format"),
        (edited(extra=1), "extra"),
        (edited(files=[]), "files"),
        (edited(digest="0" * 64), "expected 0000"),
        (edited(created="2026-11-30T10:00:00"), "created"),
        (edited(created="yesterday"), "created"),
        (edited(name="../x"), "model name"),
        (edited(version="v2"), "describes version 'v2'"),
        (edited(files=[{"path": "../a", "size_bytes": 3, "sha256": ONE.sha256}]), "'../a' is refused"),
        (edited(files=[{"path": "a", "size_bytes": -1, "sha256": ONE.sha256}]), "size_bytes"),
        (edited(files=[{"path": "a", "size_bytes": 3, "sha256": ONE.sha256.upper()}]), "sha256"),
        (edited(files=[{"path": "a", "size_bytes": 3, "sha256": ONE.sha256}] * 2), "twice"),
    ],
)
def test_a_damaged_manifest_is_refused(tmp_path, document, message):
    folder = write(tmp_path / "v1", document)
    with pytest.raises(IntegrityError, match=message) as caught:
        read_manifest(folder)
    assert "manifest.json" in str(caught.value)


def test_a_newer_format_is_told_apart_from_damage(tmp_path):
    with pytest.raises(ConfigError, match=r"manifest format 2; this Headrace reads format 1"):
        read_manifest(write(tmp_path / "v1", {"format": 2, "something": "new"}))


def test_a_missing_manifest_is_an_integrity_error(tmp_path):
    with pytest.raises(IntegrityError, match=r"manifest\.json: missing"):
        read_manifest(tmp_path)
