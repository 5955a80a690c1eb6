import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from headrace.cli import app, doctor
from headrace.store.pull import pull_model
from headrace.store.versions import ModelStore

EMPTY = {"models": {}, "damaged": {}, "misconfigured": {}, "needs": {}}


def run(*arguments):
    return CliRunner().invoke(app, ["doctor", *arguments])


def test_the_report_ends_with_a_verdict(tmp_path):
    result = run("--repo", str(tmp_path))
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert lines[-1] == "verdict: ready"
    for section in ("headrace", "machine", "simd", "packages", "extras", "repository"):
        assert section in lines


def test_json_holds_the_same_facts(tmp_path):
    report = json.loads(run("--repo", str(tmp_path), "--json").output)
    assert report["verdict"] == "ready"
    assert report["headrace"]["version"]
    assert report["machine"]["usable_cpus"] >= 1
    assert report["packages"]["numpy"]
    assert report["repository"] == {"path": str(tmp_path), "exists": True, **EMPTY}


def test_it_runs_as_a_command(tmp_path):
    command = [sys.executable, "-m", "headrace", "doctor", "--json", "--repo", str(tmp_path / "none")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert any("headrace pull" in note for note in report["notes"])


def test_models_and_what_is_wrong_with_them(tmp_path):
    (tmp_path / "flow").mkdir()
    (tmp_path / "flow/headrace.toml").write_text("")
    (tmp_path / "bare/v1").mkdir(parents=True)
    (tmp_path / "bare/v1/manifest.json").write_text("{}")
    (tmp_path / "astray/v1").mkdir(parents=True)
    (tmp_path / "astray/v1/manifest.json").write_text("{}")
    (tmp_path / "astray/current").symlink_to("/")
    report = doctor.examine(tmp_path)
    assert report["repository"]["models"] == {"flow": "pipeline", "bare": ""}
    assert list(report["repository"]["damaged"]) == ["astray"]
    assert any("bare has no current version" in note for note in report["notes"])
    assert any("astray" in problem for problem in report["problems"])
    text = "\n".join(doctor.describe(report))
    assert "no current version" in text
    assert "damaged" in text
    result = run("--repo", str(tmp_path))
    assert result.exit_code == 1
    assert result.output.splitlines()[-1] == "verdict: not ready; cannot serve: astray, bare, flow"


def test_a_missing_extra_is_shown_with_its_remedy(tmp_path, monkeypatch):
    real = doctor._installed
    monkeypatch.setattr(doctor, "_installed", lambda package: "" if package == "onnxruntime" else real(package))
    report = doctor.examine(tmp_path)
    assert not report["extras"]["onnx"]["present"]
    assert report["verdict"] == "ready"
    assert any("pip install 'headrace[onnx]'" in note for note in report["notes"])
    lines = list(doctor.describe(report))
    assert "missing: pip install 'headrace[onnx]'" in "\n".join(lines)
    assert lines[-1] == "verdict: ready; cannot serve: ONNX models"


def test_models_that_need_a_missing_extra_are_named_with_one_remedy(tmp_path, monkeypatch):
    for name, config in (
        ("net", 'backend = "onnx"\n'),
        ("see", '[[stage]]\nop = "image.decode"\n[[stage]]\nop = "infer"\nwith = { model = "net" }\n'),
        ("own", '[[stage]]\nop = "stages:f"\n'),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "headrace.toml").write_text(config)
    absent = ("onnxruntime", "pillow")
    real = doctor._installed
    monkeypatch.setattr(doctor, "_installed", lambda package: "" if package in absent else real(package))
    report = doctor.examine(tmp_path)
    assert report["repository"]["needs"] == {"net": ["onnx"], "own": [], "see": ["onnx", "vision"]}
    assert report["problems"] == [
        "net, see: the extras onnx, vision are missing; run: pip install 'headrace[onnx,vision]'"
    ]
    assert list(doctor.describe(report))[-1] == "verdict: not ready; cannot serve: net, see"


def test_a_file_that_is_named_and_not_there_is_a_problem(tmp_path):
    (tmp_path / "net.onnx").write_bytes(b"net")
    repository = ModelStore(tmp_path / "models")
    pull_model(repository, str(tmp_path / "net.onnx"), version="v1")
    assert doctor.examine(repository.root)["problems"] == []
    (repository.root / "net/headrace.toml").write_text('backend = "onnx"\nfile = "model.onnx"\n')
    report = doctor.examine(repository.root)
    assert any('`file = "model.onnx"`' in problem for problem in report["problems"])
    assert report["cannot_serve"] == ["net"]


def test_development_extras_are_not_shown():
    assert not set(doctor._extras()) & {"test", "lint", "docs", "dev"}


def test_a_missing_package_is_a_problem(tmp_path, monkeypatch):
    monkeypatch.setattr(doctor, "_installed", lambda package: "")
    report = doctor.examine(tmp_path)
    assert report["verdict"] == "not ready"
    assert any("numpy" in problem for problem in report["problems"])


@pytest.mark.parametrize("section", ["_headrace", "_machine", "_simd", "_packages", "_extras", "_repository"])
def test_a_section_that_fails_is_a_line_and_not_an_end(tmp_path, monkeypatch, section):
    def fail(*_):
        raise OSError("odd machine")

    monkeypatch.setattr(doctor, section, fail)
    report = doctor.examine(tmp_path)
    assert report[section.removeprefix("_")] == {"error": "OSError: odd machine"}
    text = "\n".join(doctor.describe(report))
    assert "odd machine" in text
    assert text.splitlines()[-1] == f"verdict: {report['verdict']}"


def test_limits_are_noted(tmp_path):
    report = doctor.examine(tmp_path)
    report["machine"]["limits"] = {"cpus": 0.5, "memory_bytes": 3 << 29}
    report["machine"]["huge_pages"]["transparent"] = "never"
    notes = list(doctor._notes(report))
    assert any("0.5 cores" in note for note in notes)
    assert any("huge pages are off" in note for note in notes)
    text = "\n".join(doctor.describe(report))
    assert "limited to 0.5" in text
    assert "limited to 1.5 GiB" in text


def test_sizes():
    assert [doctor._size(size) for size in (0, 1023, 48 << 10, 2 << 20, 3 << 29)] == [
        "0 B",
        "1023 B",
        "48 KiB",
        "2 MiB",
        "1.5 GiB",
    ]
