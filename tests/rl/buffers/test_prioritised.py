"""Draws by priority: in proportion, weighed against it, dropped for rows that are gone."""

import numpy as np
import pytest

from headrace.errors import InvalidInput, Unavailable
from headrace.rl.buffers import Field, PrioritisedReplay, ReplayBuffer

# 0.999 quantile of chi-square with 99 degrees of freedom (Wilson & Hilferty 1931: 99 (1 - 2/891 + 3.09 sqrt(2/891))^3).
CHI_99 = 148.2


def filled(n=100, **settings):
    buffer = PrioritisedReplay([Field("x")], n, **settings)
    buffer.push(x=np.arange(n, dtype=np.float32))
    return buffer


def counts(buffer, batches, n):
    return sum(np.bincount(buffer.sample(n).slots, minlength=buffer.capacity) for _ in range(batches))


def chi_square(seen, expected):
    return ((seen - expected) ** 2 / expected).sum()


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_uniform_draws_are_uniform(seed):
    buffer = ReplayBuffer([Field("x")], 100, seed=seed)
    buffer.push(x=np.arange(130, dtype=np.float32))
    seen = counts(buffer, 200, 250)
    assert chi_square(seen, np.full(100, seen.sum() / 100)) < CHI_99


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("n", [1, 7, 64])
def test_draws_are_in_proportion_to_the_priorities(alpha, n):
    buffer = filled(alpha=alpha, epsilon=0.5, seed=n)
    priorities = np.random.default_rng(0).uniform(0, 10, 100).astype(np.float32)
    every = buffer.gather(np.arange(100))
    assert buffer.update_priorities(every, priorities) == 100
    seen = counts(buffer, 40_000 // n, n)
    share = (priorities + 0.5) ** alpha
    expected = share / share.sum() * seen.sum()
    assert chi_square(seen, expected) < CHI_99


def test_weights_undo_the_priorities():
    """With beta = 1 a weighted mean over draws is the plain mean over rows, whatever the priorities."""
    buffer = filled(alpha=0.8, seed=4)
    buffer.update_priorities(buffer.gather(np.arange(100)), np.arange(1, 101, dtype=np.float32))
    total = weight = 0.0
    for _ in range(300):
        batch = buffer.sample(100, beta=1.0)
        total += (batch.weights * batch["x"] / batch.weights.sum()).sum()
        weight += 1.0
        assert batch.weights.max() == 1.0
    assert total / weight == pytest.approx(49.5, rel=0.05)
    assert (buffer.sample(50, beta=0.0).weights == 1).all()


def test_a_new_row_gets_the_highest_priority_so_far_and_an_overwritten_one_loses_its_own():
    buffer = filled(10, alpha=1.0, epsilon=0.0, seed=1)
    batch = buffer.gather(np.arange(10))
    buffer.update_priorities(batch, np.full(10, 0.001, np.float32))
    assert (counts(buffer, 100, 10) == 100).all()
    producer = ReplayBuffer.attach(buffer.name)  # knows nothing of priorities
    producer.push(x=np.float32(99))
    seen = counts(buffer, 100, 10)
    assert seen[0] > 980  # its priority is the first of all, 1, against 0.009 of the others together
    assert buffer.update_priorities(batch, np.full(10, 5.0, np.float32)) == 9
    seen = counts(buffer, 100, 46)
    assert np.allclose(seen[1:] / seen[0], 5, rtol=0.3)


@pytest.mark.parametrize("bad", [-1.0, np.nan, np.inf])
def test_a_bad_priority_is_named_and_changes_nothing(bad):
    buffer = filled(10)
    batch = buffer.sample(10)
    before = buffer.sample(10).weights
    priorities = np.arange(10, dtype=np.float32)
    priorities[3] = bad
    with pytest.raises(InvalidInput, match=r"priorities\[3\]: expected 0 or more"):
        buffer.update_priorities(batch, priorities)
    with pytest.raises(InvalidInput, match="priorities: expected a contiguous array of 10, got 9"):
        buffer.update_priorities(batch, priorities[:9])
    assert (buffer.sample(10).weights == before).all()
    buffer.check_integrity()


def test_bad_settings_and_nothing_to_draw():
    for settings in ({"alpha": -1.0}, {"alpha": np.nan}, {"epsilon": -1.0}):
        with pytest.raises(InvalidInput, match=next(iter(settings))):
            filled(**settings)
    buffer = PrioritisedReplay([Field("x")], 10)
    with pytest.raises(Unavailable):
        buffer.sample(1)
    buffer.push(x=0.0)
    with pytest.raises(InvalidInput, match="beta"):
        buffer.sample(1, beta=-1.0)
    buffer.sample(3)
    buffer.clear()
    with pytest.raises(Unavailable):
        buffer.sample(1)


def test_priorities_of_torch_tensors_and_float64_are_taken():
    buffer = filled(10, alpha=1.0)
    batch = buffer.sample(10)
    torch = pytest.importorskip("torch")
    assert buffer.update_priorities(batch, torch.arange(10, dtype=torch.float64).numpy()) == 10
    assert buffer.update_priorities(batch, torch.arange(10, dtype=torch.float32)) == 10
