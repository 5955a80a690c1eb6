import base64
import hashlib
import os
import textwrap
import zipfile
from pathlib import Path

import pytest

from headrace.store.edit import Fetched
from headrace.store.files import copy_stream
from headrace.store.progress import Silent
from headrace.store.recipe import load_recipe
from headrace.store.versions import ModelStore


@pytest.fixture
def repository(tmp_path):
    return ModelStore(tmp_path / "models")


@pytest.fixture
def fill_with():
    """`fill_with({"a.bin": b"…"})` is a function to give to `Edit.install`."""

    def make(files, source="test://"):
        def fill(target):
            entries = []
            with Silent().step("") as step:
                for path, content in files.items():
                    origin = target.parent.parent.parent / "origin"
                    origin.write_bytes(content)
                    with origin.open("rb") as stream:
                        entries.append(copy_stream(stream, target, path, len(content), step))
            return Fetched(source, entries)

        return fill

    return make


@pytest.fixture
def install(repository, fill_with):
    """Install files as a version, make it current unless told otherwise, and return the version's name."""

    def run(name, files, version="", switch=True):
        with repository.edit(name) as model:
            installed = model.install(fill_with(files), version=version)
            if switch:
                model.switch(installed.manifest.version)
        return installed.manifest.version

    return run


@pytest.fixture
def build_wheel():
    """Write a wheel with zipfile; `record` overrides rows of RECORD, `attributes` the Unix mode of members."""

    def build(folder, files, package="demo", version="1.0", record=None, attributes=None, duplicate=""):
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        info = f"{package}-{version}.dist-info"
        members = {
            **files,
            f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n".encode(),
            f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        }
        rows = []
        for name, content in members.items():
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            rows.append((record or {}).get(name, f"{name},sha256={digest},{len(content)}"))
        members[f"{info}/RECORD"] = "\n".join([*rows, f"{info}/RECORD,,"]).encode()
        path = folder / f"{package}-{version}-py3-none-any.whl"
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in members.items():
                member = zipfile.ZipInfo(name)
                member.external_attr = (attributes or {}).get(name, 0o100644) << 16
                archive.writestr(member, content)
            if duplicate:
                with pytest.warns(UserWarning, match="Duplicate name"):
                    archive.writestr(duplicate, b"other")
        return path

    return build


@pytest.fixture
def offline_pip(tmp_path, monkeypatch):
    """A folder whose wheels are all that pip can see; the wheel cache is empty and private."""
    links = tmp_path / "links"
    links.mkdir()
    for key in [key for key in os.environ if key.startswith("PIP_")]:
        monkeypatch.delenv(key)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(links))
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    return links


@pytest.fixture
def write_recipe(tmp_path, monkeypatch):
    """Write recipe `demo` and let the store see it instead of the shipped ones; returns the folder of recipes."""

    def write(recipe, configs):
        folder = tmp_path / "recipes"
        (folder / "demo").mkdir(parents=True, exist_ok=True)
        (folder / "demo/recipe.toml").write_text(textwrap.dedent(recipe))
        for name, content in configs.items():
            (folder / "demo" / name).write_text(content)
        monkeypatch.setattr("headrace.store.pull.load_recipe", lambda name: load_recipe(name, folder))
        return folder

    return write
