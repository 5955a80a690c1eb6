"""Training watched from outside: scraped and profiled while it runs."""

from __future__ import annotations

import json
import socket
import threading
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from headrace.core.context import Context
from headrace.core.telemetry import Registry
from headrace.errors import ConfigError, InvalidInput
from headrace.rl.config import load_config
from headrace.rl.metrics import TrainMetrics
from headrace.rl.monitor import monitored, profile
from headrace.rl.train import train


def _get(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=20) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


@pytest.fixture
def metrics() -> TrainMetrics:
    return TrainMetrics(Registry())


def test_a_run_can_be_scraped_and_profiled(metrics: TrainMetrics, tmp_path: Path) -> None:
    config = load_config(
        None, ["target_return=nan", "eval_every=2"], env="headrace/CartPole-v1", total_steps=1_000_000_000
    )
    ctx, updated = Context(), threading.Event()
    with monitored(metrics, 0) as port:
        run = threading.Thread(
            target=lambda: train(
                config,
                tmp_path / "run",
                metrics=metrics,
                ctx=ctx,
                watch=lambda report: report.updates > 3 and updated.set(),
            )
        )
        run.start()
        try:
            assert updated.wait(60)
            assert _get(port, "/healthz") == (200, "ok\n")
            status, found = _get(port, "/profile?seconds=0.5")
            assert status == 200
            shares = json.loads(found)
            assert shares["samples"] > 5
            assert shares["stages"]["collect"] > 0
            assert shares["stages"]["learn"] > 0
            assert any("headrace.rl.train.train" in stack for stack in shares["stacks"])
        finally:
            ctx.cancel()
            run.join()
        status, text = _get(port, "/metrics")
    assert status == 200
    families = {family.name: family for family in text_string_to_metric_families(text)}
    values = {(sample.name, *sample.labels.values()): sample.value for f in families.values() for sample in f.samples}
    updates = values["headrace_rl_updates_total",]
    assert values["headrace_rl_steps_total",] == updates * config.n_envs * config.n_steps
    assert values["headrace_rl_episode_return_bucket", "+Inf"] == values["headrace_rl_episodes_total",] > 0
    assert values["headrace_rl_stage_seconds_count", "learn"] == updates
    assert values["headrace_rl_stage_seconds_count", "evaluate"] >= updates // 2
    assert values["headrace_rl_stage_seconds_count", "checkpoint"] >= 1
    assert values["headrace_rl_policy_lag",] == 0
    assert ("headrace_rl_loss", "entropy") in values
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=5)


def test_requests_that_make_no_sense_are_told_so(metrics: TrainMetrics) -> None:
    with monitored(metrics, 0) as port:
        assert _get(port, "/else")[0] == 404
        for seconds in ("0", "-1", "nan", "61", "x"):
            status, text = _get(port, f"/profile?seconds={seconds}")
            assert status == 400
            assert "above 0 and at most 60" in json.loads(text)["error"]
        with socket.create_connection(("127.0.0.1", port)) as rude:  # who says nothing holds up nobody
            rude.sendall(b"GET /metr")
            assert _get(port, "/healthz")[0] == 200
    with pytest.raises(InvalidInput, match="at most 60"):
        profile(metrics, 0)


def test_a_port_that_is_taken_or_cannot_be_is_an_error(metrics: TrainMetrics) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"metrics port {port}: cannot listen"), monitored(metrics, port):
            pass
    with pytest.raises(ConfigError, match="metrics port 70000"), monitored(metrics, 70000):
        pass
