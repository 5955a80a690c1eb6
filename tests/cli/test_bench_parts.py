"""What the benchmark programs share: wrk's output read, medians, servers started and ended."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import pytest

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
def common(bench: Any) -> Any:
    return bench("_common")


@pytest.fixture
def wrk(bench: Any) -> Any:
    return bench("_wrk")


def test_wrk_in_microseconds(wrk: Any) -> None:
    run = wrk.parse_wrk(MICROSECONDS)
    assert run.requests == 40785
    assert run.rps == 40712.73
    assert run.p50_s == pytest.approx(23e-6)
    assert run.p99_s == pytest.approx(105e-6)
    assert run.errors == {}


def test_wrk_in_seconds_with_trailing_blanks(wrk: Any) -> None:
    run = wrk.parse_wrk(SECONDS)
    assert (run.p50_s, run.p99_s, run.rps) == (1.20, 1.21, 2.99)


def test_wrk_counts_refusals_and_socket_errors(wrk: Any) -> None:
    refused = wrk.parse_wrk(REFUSALS)
    assert refused.errors == {"status": 380}
    assert refused.p99_s == pytest.approx(19.39e-3)
    assert wrk.parse_wrk(SOCKET_ERRORS).errors == {"read": 580, "timeout": 3}


@pytest.mark.parametrize("text", ["", "unable to connect to 127.0.0.1:1 Connection refused", REFUSALS[:400]])
def test_output_that_is_not_understood_is_an_error(common: Any, wrk: Any, text: str) -> None:
    with pytest.raises(common.BenchError, match="no line like"):
        wrk.parse_wrk(text)


@pytest.mark.parametrize(("text", "seconds"), [("1.80ms", 1.8e-3), ("0.00us", 0), ("2.05s", 2.05), ("1.50m", 90)])
def test_durations(wrk: Any, text: str, seconds: float) -> None:
    assert wrk.duration_s(text) == pytest.approx(seconds)


def test_durations_of_unknown_units_are_refused(common: Any, wrk: Any) -> None:
    with pytest.raises(common.BenchError, match="5 parsecs"):
        wrk.duration_s("5 parsecs")


def test_a_run_with_refusals_may_not_be_trusted(
    common: Any, wrk: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fake_wrk(text: str) -> None:
        program = tmp_path / "wrk"
        program.write_text(f"#!{sys.executable}\nprint({text!r})\n")
        program.chmod(0o755)

    monkeypatch.setenv("PATH", str(tmp_path))
    fake_wrk(MICROSECONDS)
    assert wrk.run_wrk("http://127.0.0.1:1/", b"{}", connections=1, seconds=1).requests == 40785
    fake_wrk(REFUSALS)
    with pytest.raises(common.BenchError, match=r"380 requests, errors \{'status': 380\}"):
        wrk.run_wrk("http://127.0.0.1:1/", b"{}", connections=4, seconds=1)


def test_without_wrk_the_remedy_is_named(
    common: Any, wrk: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(common.BenchError, match="apt-get install -y wrk"):
        wrk.wrk_path()


def test_a_body_that_a_script_cannot_carry_is_refused(common: Any, wrk: Any) -> None:
    with pytest.raises(common.BenchError, match="cannot carry"):
        wrk.run_wrk("http://127.0.0.1:1/", b"x]==]x", connections=1, seconds=1)


def test_percentiles(common: Any) -> None:
    assert common.percentile(range(1, 101), 99) == 99
    assert common.percentile([5.0], 50) == 5.0
    with pytest.raises(common.BenchError):
        common.percentile([], 50)


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
