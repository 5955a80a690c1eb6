"""One file out of several sources: joined in order, pinned as a whole, and nothing left behind."""

import hashlib
from itertools import pairwise

import pytest

from headrace.errors import IntegrityError, InvalidInput, NotFound
from headrace.store.progress import Silent
from headrace.store.pull import pull_model, pull_recipe
from headrace.store.sources import open_source
from headrace.store.sources.file import FileSource
from headrace.store.sources.parts import PartsSource

WHOLE = bytes(range(256)) * 20_000
CUTS = (0, 1, 2_000_000, 2_000_000, len(WHOLE))


@pytest.fixture
def parts(tmp_path):
    uris = []
    for number, (begin, end) in enumerate(pairwise(CUTS)):
        path = tmp_path / f"net.gguf.part{number:02}"
        path.write_bytes(WHOLE[begin:end])
        uris.append(path.as_uri())
    return uris


def test_parts_become_one_file_in_their_order(tmp_path, parts):
    source = open_source(" + ".join(parts))
    assert isinstance(source, PartsSource)
    assert source.name == "net"
    target = tmp_path / "target"
    target.mkdir()
    fetched = source.fetch(target, Silent())
    assert [path.name for path in target.iterdir()] == ["net.gguf"]
    assert (target / "net.gguf").read_bytes() == WHOLE
    assert fetched.source == " + ".join(parts)
    assert fetched.files[0].sha256 == hashlib.sha256(WHOLE).hexdigest()


def test_the_pin_is_that_of_the_whole(repository, parts):
    uri = f"{' + '.join(parts)}#sha256={hashlib.sha256(WHOLE).hexdigest()}"
    assert pull_model(repository, uri, name="net").status == "installed"
    assert pull_model(repository, uri, name="net").status == "unchanged"
    assert (repository.resolve("net") / "net.gguf").read_bytes() == WHOLE
    assert (repository.root / "net/headrace.toml").read_text() == 'backend = "llm"\n'


def test_parts_in_the_wrong_order_are_refused_whole(repository, parts):
    uri = f"{' + '.join(reversed(parts))}#sha256={hashlib.sha256(WHOLE).hexdigest()}"
    with pytest.raises(IntegrityError, match="nothing was installed"):
        pull_model(repository, uri, name="net")
    assert not repository.root.exists()


def test_a_missing_part_leaves_nothing(repository, parts, tmp_path):
    with pytest.raises(NotFound, match="absent"):
        pull_model(repository, " + ".join([*parts, (tmp_path / "absent").as_uri()]), name="net")
    assert not repository.root.exists()


def test_a_part_is_one_file(tmp_path, parts):
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "a").write_bytes(b"a")
    (folder / "b").write_bytes(b"b")
    target = tmp_path / "target"
    target.mkdir()
    with pytest.raises(InvalidInput, match="expected one file to join, got 2"):
        open_source(f"{parts[0]} + {folder.as_uri()}").fetch(target, Silent())
    assert list(target.iterdir()) == []


def test_a_path_with_a_plus_is_a_path(tmp_path):
    assert isinstance(open_source(str(tmp_path / "a + b")), FileSource)


def test_a_recipe_lists_parts(repository, parts, write_recipe):
    listed = ", ".join(f'"{uri}"' for uri in parts)
    recipe = f'description = "d"\n[[model]]\nname = "net"\nsource = [{listed}]\nfile = "m.gguf"\nconfig = "c"\n'
    write_recipe(recipe, {"c": 'backend = "llm"\nfile = "m.gguf"\n'})
    (pulled,) = pull_recipe(repository, "demo")
    assert (pulled.status, pulled.size_bytes) == ("installed", len(WHOLE))
    assert (repository.resolve("net") / "m.gguf").read_bytes() == WHOLE
