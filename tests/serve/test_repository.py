import asyncio

import pytest

from headrace.errors import IntegrityError, NotFound, Unavailable
from headrace.serve.repository import Repository


async def test_loads_models_and_pipelines_and_says_when_it_is_ready(disk, opened, factor, through):
    disk.install("m", "v1", 2)
    disk.pipeline("p")
    fresh = Repository(disk.root)
    assert fresh.not_ready() == "loading"
    await fresh.close()
    repository = await opened()
    assert repository.not_ready() == ""
    assert await factor(repository) == await through(repository) == 2
    assert repository.index() == [
        {"name": "m", "version": "v1", "state": "READY", "reason": ""},
        {"name": "p", "version": "1", "state": "READY", "reason": ""},
    ]
    assert [m.name for m in repository.models()] == ["m"]
    assert [p.name for p in repository.pipelines()] == ["p"]
    await repository.close()
    assert repository.not_ready() == "closed"


async def test_without_current_the_highest_number_is_served_and_the_index_says_it_is_not_verified(disk, opened, factor):
    for version in ("2", "10", "9", "draft"):
        disk.loose("m", version, int(version) if version.isdigit() else 77)
    repository = await opened()
    assert await factor(repository) == 10
    assert repository.index()[0]["reason"] == "not verified: version '10' has no manifest"


@pytest.mark.parametrize("damage", ["changed", "extra", "no manifest"])
async def test_damaged_files_are_never_served(disk, opened, states, damage):
    disk.install("m", "v1", 2)
    folder = disk.root / "m" / "v1"
    match damage:
        case "changed":
            data = bytearray((folder / "model.onnx").read_bytes())
            data[-1] ^= 1
            (folder / "model.onnx").write_bytes(data)
        case "extra":
            (folder / "other.onnx").write_bytes(b"")
        case "no manifest":
            (folder / "manifest.json").unlink()
    repository = await opened()
    assert states(repository) == {("m", "v1"): "UNAVAILABLE"}
    assert str(folder) in repository.index()[0]["reason"]
    with pytest.raises(Unavailable, match="'m' is unavailable: "):
        repository.get("m")
    with pytest.raises(IntegrityError):
        await repository.load("m")


async def test_one_bad_model_leaves_the_server_up_and_its_reason_in_the_index(disk, opened, factor):
    disk.loose("m", "1", 2)
    disk.config("bad-toml", "backend = onnx")
    disk.config("bad-key", 'backend = "onnx"\nbatchign = 3\n')
    disk.config("no-version")
    disk.python("bad-code", "1/0")
    (disk.root / "Bad Name").mkdir()
    disk.config("Bad Name")
    repository = await opened()
    assert await factor(repository) == 2
    assert repository.not_ready() == ""
    reasons = {line["name"]: line["reason"] for line in repository.index() if line["state"] == "UNAVAILABLE"}
    assert set(reasons) == {"bad-toml", "bad-key", "no-version", "bad-code", "Bad Name"}
    assert "batchign" in reasons["bad-key"]
    assert "has no version folder" in reasons["no-version"]
    assert "ZeroDivisionError" in reasons["bad-code"]
    assert "model name 'Bad Name'" in reasons["Bad Name"]


async def test_what_is_not_there_is_told_with_what_is(disk, opened):
    disk.loose("m", "1", 2)
    repository = await opened()
    with pytest.raises(NotFound, match="no model or pipeline 'x'; there are: m"):
        repository.get("x")
    with pytest.raises(NotFound, match="'m' has no version '2' loaded; loaded is '1'"):
        repository.get("m", "2")
    assert repository.get("m", "1") is repository.get("m")
    for name in ("x", "../models/m", ""):
        with pytest.raises(NotFound):
            await repository.load(name)
        with pytest.raises(NotFound):
            await repository.unload(name)


async def test_a_folder_that_is_not_there_is_told(tmp_path):
    repository = Repository(tmp_path / "none")
    with pytest.raises(NotFound, match="none: no such folder"):
        await repository.start()
    await repository.close()


async def test_a_folder_that_appears_later_is_loaded_by_name(disk, opened, factor):
    repository = await opened()
    disk.loose("m", "1", 3)
    await repository.load("m")
    assert await factor(repository) == 3


async def test_nothing_loads_once_it_is_closed(disk, opened):
    disk.loose("m", "1", 2)
    repository = await opened()
    await asyncio.gather(repository.close(), repository.load("m"), return_exceptions=True)
    await repository.close()
    with pytest.raises(Unavailable, match="closed"):
        await repository.load("m")
    with pytest.raises(Unavailable):
        repository.get("m")
