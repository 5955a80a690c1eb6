"""`headrace bench`: figures made of runs, options passed on, errors told; the soak test's own judgement."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import headrace
from headrace.cli import app
from headrace.errors import NotFound

ENV = {"COLUMNS": "160", "TERM": "dumb", "NO_COLOR": "1"}


def test_headline_ratios(bench: Any) -> None:
    run = bench("run")
    wrk = bench("_wrk").Wrk
    runs = {
        ("headrace", 16): [wrk(1, 300.0, 0.001, 0.004), wrk(1, 100.0, 0.002, 0.004), wrk(1, 200.0, 0.002, 0.005)],
        ("mosec", 16): [wrk(1, 100.0, 0.004, 0.008)],
        ("headrace", 1): [wrk(1, 50.0, 0.001, 0.002)],
    }
    figures = run.headline(run.medians(runs))
    assert figures["c16_rps"] == 200.0
    assert figures["c16_ratio_mosec"] == 2.0
    assert figures["c16_p50_ratio_mosec"] == 0.5
    assert figures["c16_p99_over_p50"] == 2.0
    assert figures["c1_ratio_mosec"] is None


def test_tuning_chooses_for_each_number_of_connections(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    run, servers, wrk = bench("run"), bench("servers"), bench("_wrk").Wrk
    rates = {"no batching": {1: 50.0, 64: 10.0}, "batch 16, wait 1 ms": {1: 5.0, 64: 90.0}}
    stand = argparse.Namespace(connections=[1, 64])
    stand.drive = lambda server, setting, connections, seconds: {
        c: wrk(1, rates.get(setting, {}).get(c, 1.0), 0.001, 0.001) for c in connections
    }
    assert run.tune(stand, servers.ALL["mosec"], 1.0) == {1: "no batching", 64: "batch 16, wait 1 ms"}


def test_every_peer_can_be_started(bench: Any, tmp_path: Path, checkout: Path) -> None:
    servers = bench("servers")
    for server in servers.ALL.values():
        assert server.settings, server.name
        for command in server.settings.values():
            line = command("python", tmp_path, 1234)
            assert "1234" in line
            programs = [Path(word) for word in line if word.endswith(".py")]
            assert all(program.is_file() for program in programs), line
    pins = servers.requirements(servers.DEFAULT_PEERS)
    assert all("==" in pin for pin in pins)
    assert len(pins) == len(set(pins))


def test_bodies_and_answers_agree(bench: Any) -> None:
    servers, mlp = bench("servers"), bench("mlp")
    x = [0.5] * mlp.INPUTS
    assert json.loads(servers.ALL["headrace"].body(x))["inputs"][0]["data"] == x
    assert servers.ALL["headrace"].answer(b'{"outputs": [{"name": "y", "data": [1, 2]}]}') == [1, 2]
    assert json.loads(servers.ALL["mosec"].body(x)) == {"x": x}
    assert mlp.expected([x]).shape == (1, mlp.OUTPUTS)


def test_the_model_computes_what_is_expected(bench: Any, tmp_path: Path) -> None:
    numpy, ort = pytest.importorskip("numpy"), pytest.importorskip("onnxruntime")
    mlp = bench("mlp")
    mlp.write_mlp(tmp_path / "mlp.onnx")
    x = numpy.random.default_rng(1).normal(size=(5, mlp.INPUTS)).astype(numpy.float32)
    (y,) = ort.InferenceSession(str(tmp_path / "mlp.onnx"), providers=["CPUExecutionProvider"]).run(None, {"x": x})
    numpy.testing.assert_allclose(y, mlp.expected(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--peers", "mosec,nobody"], "unknown nobody"),
        (["--connections", "1,many"], "whole numbers"),
        (["--connections", "0"], "at least 1"),
        (["--rounds", "0"], "at least 1"),
    ],
)
def test_wrong_options_of_serve(
    bench: Any, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    with pytest.raises(SystemExit):
        bench("run").parse(arguments)
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("streams", ["1,x", "0", "1,,2", ""])
def test_wrong_numbers_of_streams_are_told_before_anything_runs(checkout: Path, streams: str) -> None:
    line = [sys.executable, str(checkout / "bench" / "llm" / "run.py"), "model.gguf", f"--streams={streams}"]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert f"--streams: expected whole numbers like 1,4,8, got {streams!r}" in done.stderr


def test_options_of_serve(bench: Any) -> None:
    options = bench("run").parse(["--connections", "64,1", "--peers", "none", "--only", "mlp", "--json"])
    assert (options.connections, options.peers, options.only, options.json) == ([1, 64], [], "mlp", True)


def test_slope_of_memory(bench: Any) -> None:
    samples = bench("soak_samples")
    grown = samples.Samples(1)
    grown.rss_mb, grown.fds = [0.1 * second for second in range(180)], [20] * 180
    assert grown.report()["rss_slope_mb_per_min"] == pytest.approx(6.0)
    flat = samples.Samples(1)
    flat.rss_mb, flat.fds = [100.0] * 240, [20] * 240
    assert flat.problems(2) == []
    flat.rss_mb[-60:], flat.fds[-1] = [200.0] * 60, 90
    assert [problem.split()[:2] for problem in flat.problems(2)] == [["memory", "grew"], ["descriptors", "leaked:"]]
    flat.rss_mb = [100.0] + [900.0] * 239
    assert flat.problems(2)[0].startswith("memory reached 900 MB")
    assert all("reached" not in problem for problem in flat.problems(32))


def test_samples_of_this_process(bench: Any) -> None:
    import os

    samples = bench("soak_samples").Samples(os.getpid())
    samples.take()
    assert samples.rss_mb[0] > 1
    assert samples.fds[0] > 2


def test_a_mixed_up_answer_is_seen(bench: Any) -> None:
    kinds, client = bench("soak_kinds"), bench("soak_client")
    x = kinds.Client(1, 3, seed=1).rows(2)
    right = json.dumps({"outputs": [{"data": (2 * x + 1).ravel().tolist()}]}).encode()
    assert kinds._verify(client.Answer(200, {}, right), x, binary=False) == "200"
    other = kinds.Client(1, 4, seed=1).rows(2)
    with pytest.raises(kinds.Violation, match="mixed-up"):
        kinds._verify(client.Answer(200, {}, right), other, binary=False)
    with pytest.raises(kinds.Violation, match="status 503 instead of 400"):
        kinds._expect(client.Answer(503, {}, b"{}"), 400)
    with pytest.raises(kinds.Violation, match="does not say what is wrong"):
        kinds._expect(client.Answer(400, {}, b"{}"), 400)


def test_unique_values_do_not_collide_between_clients(bench: Any) -> None:
    kinds = bench("soak_kinds")
    seen = [kinds.Client(1, number, seed=1).number() for number in range(31)]
    assert len(set(seen)) == len(seen)
    assert max(seen) < 1 << 23


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Command lines that were run instead of the programs themselves."""
    lines: list[list[str]] = []

    def run(line: list[str], **_: Any) -> Any:
        lines.append(line)
        return subprocess.CompletedProcess(line, 0)

    monkeypatch.setattr(subprocess, "run", run)
    return lines


def test_serve_passes_its_options_on(bench: Any, ran: list[list[str]]) -> None:
    result = CliRunner().invoke(app, ["bench", "serve", "--peers", "mosec", "--rounds", "2", "--json"], env=ENV)
    assert result.exit_code == 0, result.output
    program, options = ran[0][1], bench("run").parse(ran[0][2:])
    assert program.endswith("bench/serve/run.py")
    assert (options.peers, options.rounds, options.json, options.seconds) == (["mosec"], 2, True, 5.0)


def test_soak_passes_its_options_on(bench: Any, ran: list[list[str]]) -> None:
    result = CliRunner().invoke(app, ["bench", "soak", "--minutes", "0.5", "--connections", "8"], env=ENV)
    assert result.exit_code == 0, result.output
    options = bench("soak").parse(ran[0][2:])
    assert (options.minutes, options.connections, options.json) == (0.5, 8, False)


def test_a_failing_program_fails_the_command(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "run", lambda line, **_: subprocess.CompletedProcess(line, 7))
    assert CliRunner().invoke(app, ["bench", "soak"], env=ENV).exit_code == 7


def test_outside_a_checkout_the_error_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(headrace, "__file__", str(tmp_path / "lib" / "site-packages" / "headrace" / "__init__.py"))
    result = CliRunner().invoke(app, ["bench", "serve"], env=ENV)
    assert isinstance(result.exception, NotFound)
    assert "source checkout" in str(result.exception)
