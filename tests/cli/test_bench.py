"""`headrace bench` and what its programs share: wrk's output read, figures made, options passed on, errors told."""

from __future__ import annotations

import argparse
import importlib
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import headrace
from headrace.cli import app
from headrace.errors import NotFound

ENV = {"COLUMNS": "160", "TERM": "dumb", "NO_COLOR": "1"}

MICROSECONDS = """\
Running 1s test @ http://127.0.0.1:18911/
  1 threads and 1 connections
  Thread Stats   Avg      Stdev     Max   +/- Stdev
    Latency    37.70us  178.43us   4.06ms   99.11%
    Req/Sec    41.11k     2.50k   42.89k    90.00%
  Latency Distribution
     50%   23.00us
     75%   23.00us
     90%   23.00us
     99%  105.00us
  40785 requests in 1.00s, 1.56MB read
Requests/sec:  40712.73
Transfer/sec:      1.55MB
"""

SECONDS = """\
Running 4s test @ http://127.0.0.1:18912/
  1 threads and 4 connections
  Thread Stats   Avg      Stdev     Max   +/- Stdev
    Latency     1.20s     2.23ms   1.21s    66.67%
    Req/Sec     3.00      0.00     3.00    100.00%
  Latency Distribution
     50%    1.20s 
     75%    1.21s 
     90%    1.21s 
     99%    1.21s 
  12 requests in 4.01s, 480.00B read
Requests/sec:      2.99
Transfer/sec:     119.60B
"""  # noqa: W291  as wrk prints it

REFUSALS = """\
Running 1s test @ http://127.0.0.1:18913/
  1 threads and 4 connections
  Thread Stats   Avg      Stdev     Max   +/- Stdev
    Latency    10.51ms    1.01ms  19.49ms   96.84%
    Req/Sec   381.90     29.36   404.00     90.00%
  Latency Distribution
     50%   10.36ms
     75%   10.38ms
     90%   10.41ms
     99%   19.39ms
  380 requests in 1.01s, 15.59KB read
  Non-2xx or 3xx responses: 380
Requests/sec:    378.03
Transfer/sec:     15.51KB
"""

SOCKET_ERRORS = """\
Running 1s test @ http://127.0.0.1:18914/
  1 threads and 4 connections
  Thread Stats   Avg      Stdev     Max   +/- Stdev
    Latency     6.59ms    1.72ms  12.24ms   82.24%
    Req/Sec   583.40     28.94   606.00     90.00%
  Latency Distribution
     50%    5.54ms
     75%    7.49ms
     90%    9.27ms
     99%   12.19ms
  580 requests in 1.00s, 22.66KB read
  Socket errors: connect 0, read 580, write 0, timeout 3
Requests/sec:    577.91
Transfer/sec:     22.57KB
"""


@pytest.fixture
def bench(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Load a program of bench/ by its path, as it is loaded when run; its modules are forgotten afterwards."""
    folder = checkout / "bench"
    if not folder.is_dir():
        pytest.skip("no bench/ here: not a source checkout")
    monkeypatch.setattr(sys, "path", [str(folder), str(folder / "serve"), *sys.path])
    before = set(sys.modules)

    def load(name: str) -> Any:
        return importlib.import_module(name)

    yield load
    for name in set(sys.modules) - before:
        if str(folder) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


@pytest.fixture
def common(bench: Any) -> Any:
    return bench("_common")


def test_wrk_in_microseconds(common: Any) -> None:
    run = common.parse_wrk(MICROSECONDS)
    assert run.requests == 40785
    assert run.rps == 40712.73
    assert run.p50_s == pytest.approx(23e-6)
    assert run.p99_s == pytest.approx(105e-6)
    assert run.errors == {}


def test_wrk_in_seconds_with_trailing_blanks(common: Any) -> None:
    run = common.parse_wrk(SECONDS)
    assert (run.p50_s, run.p99_s, run.rps) == (1.20, 1.21, 2.99)


def test_wrk_counts_refusals_and_socket_errors(common: Any) -> None:
    refused = common.parse_wrk(REFUSALS)
    assert refused.errors == {"status": 380}
    assert refused.p99_s == pytest.approx(19.39e-3)
    assert common.parse_wrk(SOCKET_ERRORS).errors == {"read": 580, "timeout": 3}


@pytest.mark.parametrize("text", ["", "unable to connect to 127.0.0.1:1 Connection refused", REFUSALS[:400]])
def test_output_that_is_not_understood_is_an_error(common: Any, text: str) -> None:
    with pytest.raises(common.BenchError, match="no line like"):
        common.parse_wrk(text)


@pytest.mark.parametrize(("text", "seconds"), [("1.80ms", 1.8e-3), ("0.00us", 0), ("2.05s", 2.05), ("1.50m", 90)])
def test_durations(common: Any, text: str, seconds: float) -> None:
    assert common.duration_s(text) == pytest.approx(seconds)


def test_durations_of_unknown_units_are_refused(common: Any) -> None:
    with pytest.raises(common.BenchError, match="5 parsecs"):
        common.duration_s("5 parsecs")


def test_a_run_with_refusals_may_not_be_trusted(common: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fake_wrk(text: str) -> None:
        program = tmp_path / "wrk"
        program.write_text(f"#!{sys.executable}\nprint({text!r})\n")
        program.chmod(0o755)

    monkeypatch.setenv("PATH", str(tmp_path))
    fake_wrk(MICROSECONDS)
    assert common.run_wrk("http://127.0.0.1:1/", b"{}", connections=1, seconds=1).requests == 40785
    fake_wrk(REFUSALS)
    with pytest.raises(common.BenchError, match=r"380 requests, errors \{'status': 380\}"):
        common.run_wrk("http://127.0.0.1:1/", b"{}", connections=4, seconds=1)


def test_without_wrk_the_remedy_is_named(common: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(common.BenchError, match="apt-get install -y wrk"):
        common.wrk_path()


def test_a_body_that_a_script_cannot_carry_is_refused(common: Any) -> None:
    with pytest.raises(common.BenchError, match="cannot carry"):
        common.run_wrk("http://127.0.0.1:1/", b"x]==]x", connections=1, seconds=1)


def test_medians_and_percentiles(common: Any) -> None:
    assert common.median([3, 1, 2]) == 2
    assert common.median([4, 1, 2, 3]) == 2.5
    assert common.percentile(range(1, 101), 99) == 99
    assert common.percentile([5.0], 50) == 5.0
    with pytest.raises(common.BenchError):
        common.median([])


def test_the_machine_is_described(common: Any) -> None:
    facts = common.machine()
    assert facts["cpu"]
    assert facts["cores"] >= 1
    assert {"kernel", "python", "memory_gib"} <= set(facts)


def test_a_server_that_ends_early_shows_its_output(common: Any) -> None:
    command = [sys.executable, "-c", "print('the cellar is flooded'); raise SystemExit(3)"]
    with common.Process(command) as server, pytest.raises(common.BenchError, match="the cellar is flooded"):
        server.wait_ready(1, "/", timeout_s=30)


def test_a_server_is_ended_with_its_children(common: Any, tmp_path: Path) -> None:
    child = "import time; time.sleep(600)"
    parent = (
        f"import subprocess, sys, time, pathlib\n"
        f"child = subprocess.Popen([sys.executable, '-c', {child!r}])\n"
        f"pathlib.Path({str(tmp_path / 'new')!r}).write_text(str(child.pid))\n"
        f"pathlib.Path({str(tmp_path / 'new')!r}).rename({str(tmp_path / 'pid')!r})\n"
        f"time.sleep(600)\n"
    )
    with common.Process([sys.executable, "-c", parent]):
        while not (tmp_path / "pid").exists():
            time.sleep(0.01)
        pid = int((tmp_path / "pid").read_text())
    assert _ended(pid)


def _ended(pid: int) -> bool:
    """Whether the process is gone, or dead and only waits to be reaped by whoever adopted it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_headline_ratios(bench: Any) -> None:
    run = bench("run")
    wrk = bench("_common").Wrk
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
    run, servers, wrk = bench("run"), bench("servers"), bench("_common").Wrk
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


def test_options_of_serve(bench: Any) -> None:
    options = bench("run").parse(["--connections", "64,1", "--peers", "none", "--only", "mlp", "--json"])
    assert (options.connections, options.peers, options.only, options.json) == ([1, 64], [], "mlp", True)


def test_slope_of_memory(bench: Any) -> None:
    samples = bench("soak_samples")
    assert samples.slope([5.0, 5.5, 6.0, 6.5]) == pytest.approx(0.5)
    flat = samples.Samples(1)
    flat.rss_mb, flat.fds = [100.0] * 240, [20] * 240
    assert flat.problems() == []
    flat.rss_mb[-60:], flat.fds[-1] = [200.0] * 60, 90
    assert [problem.split()[0] for problem in flat.problems()] == ["memory", "descriptors"]


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
