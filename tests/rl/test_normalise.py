"""Running statistics are those of all samples together; rewards keep their mean and returns begin anew at each end."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import InvalidInput
from headrace.rl.normalise import Moments, Normaliser, RewardScaler


@given(
    sizes=st.lists(st.integers(0, 40), min_size=1, max_size=6),
    seed=st.integers(0, 2**32 - 1),
    offset=st.floats(-1e4, 1e4),
)
def test_moments_do_not_depend_on_the_batches(sizes: list[int], seed: int, offset: float) -> None:
    rng = np.random.default_rng(seed)
    moments, batches = Moments.zeros(3), [rng.normal(size=(n, 3)) + offset for n in sizes]
    for batch in batches:
        moments.update(batch)
    everything = np.concatenate(batches)
    assert moments.count == len(everything)
    if len(everything):
        np.testing.assert_allclose(moments.mean, everything.mean(axis=0), rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(moments.variance, everything.var(axis=0), rtol=1e-6, atol=1e-9)
    else:
        assert moments.variance.tolist() == [1, 1, 1]


def test_moments_refuse_what_is_no_number() -> None:
    moments = Moments.zeros(2)
    with pytest.raises(InvalidInput, match="not finite"):
        moments.update(np.array([[1.0, np.nan]]))
    with pytest.raises(InvalidInput, match=r"\[\.\.\., 2\]"):
        moments.update(np.zeros((4, 3)))
    assert moments.count == 0


def test_observations_are_centred_scaled_and_clipped() -> None:
    moments = Moments.zeros(2)
    raw = np.random.default_rng(0).normal([3, -100], [0.1, 20], size=(1000, 2))
    moments.update(raw)
    seen = Normaliser.of(moments, limit=2.5)(raw)
    assert seen.dtype == np.float32
    assert np.abs(seen).max() == 2.5
    np.testing.assert_allclose(seen.mean(axis=0), 0, atol=0.02)
    np.testing.assert_allclose(seen.std(axis=0), 1, atol=0.05)
    assert Normaliser.of(Moments.zeros(2))(raw[:1]).tolist() == np.clip(raw[:1].astype(np.float32), -10, 10).tolist()


def test_rewards_are_divided_by_the_spread_of_returns() -> None:
    scaler = RewardScaler(2, gamma=0.5)
    ended = [np.array([0, 0]), np.array([1, 0]), np.array([0, 0])]
    for step in range(3):
        scaler.update(np.array([1.0, 2.0]), ended[step])
    returns = np.array([1, 2, 1.5, 3, 1, 3.5])  # the first environment's began anew at its end
    assert scaler.scale == pytest.approx(1 / returns.std())
    scaled = scaler(np.array([[3.0, -1000.0]]))
    np.testing.assert_allclose(scaled, [[3 / returns.std(), -10]], rtol=1e-6)
    with pytest.raises(InvalidInput, match="expected rewards and ends"):
        scaler.update(np.zeros(3), np.zeros(3))
