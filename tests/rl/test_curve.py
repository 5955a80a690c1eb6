"""Learning curves drawn: looked at pixel by pixel where it matters."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from headrace.errors import InvalidInput
from headrace.rl.config import load_config
from headrace.rl.curve import Curve, History, draw_curves, read_history
from headrace.rl.log import EventLog
from headrace.rl.train import train


def _pixels(png: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(png)).convert("RGB")).astype(int)


def _blue(pixels: np.ndarray) -> np.ndarray:
    """Where the first curve's colour is."""
    return np.abs(pixels[:370, 71:700] - (31, 111, 180)).sum(axis=2) < 60


def test_a_rising_curve_rises() -> None:
    pixels = _pixels(draw_curves([Curve("", [([0, 100], [0, 10])])]))
    assert pixels.shape == (420, 720, 3)
    rows, columns = np.nonzero(_blue(pixels))
    early, late = rows[columns < 100].mean(), rows[columns > 500].mean()
    assert early > late + 200


def test_several_runs_are_a_mean_within_a_band() -> None:
    runs = [([0, 50, 100], [0, 0, 0]), ([0, 100], [10, 10])]
    pixels = _pixels(draw_curves([Curve("ours", runs), Curve("theirs", [([0, 100], [2, 2])])]))
    rows, _ = np.nonzero(_blue(pixels))
    assert 180 < np.median(rows) < 215  # the mean, 5, in the middle
    tinted = pixels[150, 400]
    assert tinted.min() < 250
    assert tinted.sum() > 500


@pytest.mark.parametrize("values", [[5.0], [5.0, 5.0], [-3e9, 4e9], [np.nan, 1.0, np.inf, 2.0], [1e-9, 2e-9]])
def test_any_finite_values_can_be_drawn(values: list[float]) -> None:
    assert draw_curves([Curve("x", [(np.arange(len(values)) * 1000, values)])], title="t").startswith(b"\x89PNG")


def test_nothing_and_lengths_that_differ_are_refused() -> None:
    for curves in ([], [Curve("x", [])], [Curve("x", [([1], [np.nan])])]):
        with pytest.raises(InvalidInput, match="at least one with a finite point"):
            draw_curves(curves)
    with pytest.raises(InvalidInput, match=r"as many steps as values, got \[2\] and \[1\]"):
        draw_curves([Curve("x", [([1, 2], [1])])])


def test_a_history_keeps_its_ends_in_bounded_memory() -> None:
    history = History(most=100)
    for steps in range(10_000):
        history.add("return", steps, steps / 2)
    (curve,) = history.curves()
    ((x, y),) = curve.runs
    assert len(x) <= 100
    assert (x[0], x[-1]) == (0, 9999)
    assert x == sorted(x)
    assert y == [steps / 2 for steps in x]


def test_a_run_ends_with_its_curve(tmp_path: Path) -> None:
    config = load_config(None, ["n_envs=64", "n_steps=32"], env="headrace/CartPole-v1", total_steps=50_000)
    train(config, tmp_path / "run")
    assert _blue(_pixels((tmp_path / "run" / "curve.png").read_bytes())).any()


def test_a_run_that_is_gone_on_with_keeps_its_whole_curve(tmp_path: Path) -> None:
    changes = ["n_envs=32", "n_steps=32", "eval_every=4", "eval_episodes=5", "target_return=nan"]
    for steps, resume in ((8192, False), (16384, True)):
        train(
            load_config(None, changes, env="headrace/CartPole-v1", total_steps=steps), tmp_path / "run", resume=resume
        )
    episodes, evaluation = read_history(tmp_path / "run").curves()
    assert (episodes.label, evaluation.label) == ("episodes", "evaluation")
    assert list(episodes.runs[0][0]) == list(range(1024, 16385, 1024))
    assert list(evaluation.runs[0][0]) == [4096, 8192, 12288, 16384]
    columns = np.nonzero(_blue(_pixels((tmp_path / "run" / "curve.png").read_bytes())))[1]
    assert columns.min() < 80


def test_what_a_break_undid_is_left_out(tmp_path: Path) -> None:
    for first, last, value in ((1, 9, 1.0), (5, 12, 2.0)):
        log = EventLog(tmp_path)
        for steps in range(first, last):
            log.write(steps, {"rollout/mean_return": value, "loss/policy": 0.0})
        log.close()
    ((x, y),) = read_history(tmp_path).curves()[0].runs
    assert x == list(range(1, 12))
    assert y == [1.0] * 4 + [2.0] * 7
    ((x, _),) = read_history(tmp_path, until=3).curves()[0].runs
    assert x == [1, 2, 3]


def test_a_damaged_log_is_read_up_to_the_damage(tmp_path: Path) -> None:
    log = EventLog(tmp_path)
    for steps in range(100):
        log.write(steps, {"eval/mean_return": 1.0})
    log.close()
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:-7])
    (tmp_path / "events.out.tfevents.1.empty").touch()
    ((x, _),) = read_history(tmp_path).curves()[0].runs
    assert x == list(range(99))
