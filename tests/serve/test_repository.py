import asyncio
import logging
import os

import pytest

from headrace.errors import ConfigError, IntegrityError, LoadFailed, NotFound, Unavailable
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
    assert repository.index()[0]["reason"] == "not verified: it has no manifest"


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


async def test_versions_without_a_configuration_are_told_and_so_is_who_needs_them(disk, opened):
    disk.loose("m", "1", 2)
    disk.pipeline("p")
    (disk.root / "m" / "headrace.toml").unlink()
    (disk.root / "notes").mkdir()
    repository = await opened()
    reasons = {line["name"]: (line["state"], line["reason"]) for line in repository.index()}
    assert set(reasons) == {"m", "p"}
    for state, reason in reasons.values():
        assert state == "UNAVAILABLE"
        assert f"{disk.root / 'm'}: no headrace.toml" in reason
    disk.config("m")
    await repository.load("p")
    assert {line["state"] for line in repository.index()} == {"READY"}


@pytest.mark.parametrize("name", ["m", "p"])
async def test_the_folder_of_one_model_is_not_taken_for_an_empty_repository(disk, name):
    disk.loose("m", "1", 2)
    disk.pipeline("p")
    repository = Repository(disk.root / name)
    with pytest.raises(ConfigError) as caught:
        await repository.start()
    assert str(caught.value).startswith(f"{disk.root / name} is one model or pipeline, not a repository of them; ")
    assert str(caught.value).endswith(f": {disk.root}")
    await repository.close()


async def test_a_wrong_declaration_is_told_with_its_file(disk, opened):
    disk.python("m", "model = dict", more='[[outputs]]\nname = "z"\ndatatype = "FLOAT"\nshape = [-1]\n')
    disk.config("p", 'consumes = "text"\n[[stage]]\nop = "stage:Parse"\n')
    repository = await opened()
    for name, says in {"m": "tensor 'z': datatype 'FLOAT' is not one of BOOL", "p": "stage 'stage:Parse': "}.items():
        with pytest.raises(ConfigError) as caught:
            await repository.load(name)
        assert str(caught.value).startswith(f"{disk.root / name / 'headrace.toml'}: {says}")


async def test_loads_unloads_and_failures_are_logged(disk, opened, caplog):
    caplog.set_level(logging.INFO, "headrace.serve.repository")

    def lines():
        said = [(record.levelname, record.getMessage(), record.model) for record in caplog.records]
        traced = [bool(record.exc_info) for record in caplog.records]
        caplog.clear()
        return said, traced

    disk.loose("m", "1", 2)
    disk.config("typo", 'backend = "onxx"\n')
    repository = await opened()
    ((loaded, failed), traced) = lines()
    assert loaded[0] == "INFO"
    assert loaded[1].startswith("m: loaded version 1 in 0.")
    assert loaded[1].endswith(" s; not verified: it has no manifest")
    assert loaded[2] == "m"
    assert failed[0] == "ERROR"
    assert failed[1].startswith("typo: load failed: ")
    assert failed[1].endswith("expected 'llm' or 'onnx' or 'python'")
    assert traced == [False, False]

    disk.python("m", "1/0", version="2")
    with pytest.raises(LoadFailed):
        await repository.load("m")
    assert lines() == ([("ERROR", "m: load failed: model 'm': ZeroDivisionError: division by zero", "m")], [True])

    await repository.unload("m")
    await repository.unload("m")
    assert lines() == ([("INFO", "m: unloaded version 1", "m")], [False])


async def test_a_folder_that_is_not_there_is_told(tmp_path):
    repository = Repository(tmp_path / "none")
    with pytest.raises(NotFound, match="none: no such file or folder"):
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


HANGS = """
import threading


class Hangs:
    def load(self):
        threading.Event().wait(SECONDS)

    def infer(self, tensors):
        return {"y": tensors["x"]}


model = Hangs
"""


async def test_a_load_that_hangs_holds_up_no_other(disk, opened, factor, monkeypatch, until):
    monkeypatch.setattr("headrace.serve.repository.LOAD_PATIENCE_S", 0.05)
    disk.python("a-slow-one", HANGS.replace("SECONDS", "0.5"))
    disk.install("m", "v1", 2)
    repository = await opened()
    assert repository.not_ready() == ""
    assert await factor(repository) == 2
    assert repository.index()[0]["state"] == "LOADING"
    await until(lambda: repository.index()[0]["state"] == "READY")


async def test_a_load_that_takes_too_long_is_given_up(disk, opened):
    disk.python("m", HANGS.replace("SECONDS", "1"))
    config = disk.root / "m" / "headrace.toml"
    config.write_text("load_timeout_s = 0.05\n" + config.read_text())
    repository = await opened()
    assert "not loaded within 0.05 s" in repository.index()[0]["reason"]


async def test_a_pipe_in_place_of_a_file_is_not_waited_for(disk, opened, factor):
    disk.install("m", "v1", 2)
    (disk.root / "trap").mkdir()
    os.mkfifo(disk.root / "trap" / "headrace.toml")
    repository = await opened()
    assert await factor(repository) == 2
    assert {entry["name"]: entry["state"] for entry in repository.index()}.get("trap") != "READY"
