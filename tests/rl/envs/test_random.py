"""Philox against its authors' known answers, and the streams built on it against what they promise."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.rl.envs.random import chance, integers, key_stream, new_stream, normal, philox4x32, uniform

_WORD = (1 << 32) - 1


# kat_vectors of Random123 1.14, philox4x32 with 10 rounds
@pytest.mark.parametrize(
    ("counter", "key", "answer"),
    [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((_WORD,) * 4, (_WORD,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_gives_the_known_answers(counter, key, answer):
    first, second = philox4x32(*(np.uint64(c) for c in counter), np.uint64(key[0] | key[1] << 32))
    words = (int(first) & _WORD, int(first) >> 32, int(second) & _WORD, int(second) >> 32)
    assert words == answer


def test_philox_agrees_with_big_integers():
    def reference(counter, key):
        c, k = list(counter), list(key)
        for _ in range(10):
            high0, low0 = divmod(0xD2511F53 * c[0], 1 << 32)
            high1, low1 = divmod(0xCD9E8D57 * c[2], 1 << 32)
            c = [high1 ^ c[1] ^ k[0], low1, high0 ^ c[3] ^ k[1], low0]
            k = [(k[0] + 0x9E3779B9) & _WORD, (k[1] + 0xBB67AE85) & _WORD]
        return c

    rng = np.random.default_rng(0)
    for _ in range(50):
        *counter, k0, k1 = (int(w) for w in rng.integers(0, 1 << 32, 6))
        first, second = philox4x32(*(np.uint64(c) for c in counter), np.uint64(k0 | k1 << 32))
        assert [int(first) & _WORD, int(first) >> 32, int(second) & _WORD, int(second) >> 32] == reference(
            counter, (k0, k1)
        )


@given(
    seed=st.integers(0, 2**64 - 1), env=st.integers(0, 2**31), episode=st.integers(0, 2**31), step=st.integers(0, 99)
)
def test_a_stream_depends_on_its_key_alone(seed, env, episode, step):
    used = new_stream(seed ^ 1)
    uniform(used, 0.0, 1.0)  # leaves half a block behind
    key_stream(used, seed, env, episode, step)
    fresh = new_stream(seed, env, episode, step)
    assert [uniform(used, 0.0, 1.0) for _ in range(5)] == [uniform(fresh, 0.0, 1.0) for _ in range(5)]


def test_streams_of_neighbours_differ():
    keys = [(s, e, p, t) for s in (0, 1) for e in (0, 1) for p in (0, 1) for t in (0, 1)]
    draws = {key: tuple(uniform(rng, 0.0, 1.0) for _ in range(3)) for key in keys for rng in [new_stream(*key)]}
    assert len({value for row in draws.values() for value in row}) == 3 * len(keys)


def test_draws_have_the_right_moments():
    rng = new_stream(7)
    flat = np.array([uniform(rng, -1.0, 3.0) for _ in range(4000)])
    assert flat.min() >= -1.0
    assert flat.max() < 3.0
    assert flat.mean() == pytest.approx(1.0, abs=0.06)
    bell = np.array([normal(rng, 2.0, 0.5) for _ in range(4000)])
    assert bell.mean() == pytest.approx(2.0, abs=0.03)
    assert bell.std() == pytest.approx(0.5, abs=0.03)
    whole = np.bincount([integers(rng, 6) for _ in range(6000)], minlength=6)
    assert len(whole) == 6
    assert np.abs(whole - 1000).max() < 130
    assert np.mean([chance(rng, 0.25) for _ in range(4000)]) == pytest.approx(0.25, abs=0.03)


@given(st.integers(1, 2**31 - 1), st.integers(0, 2**64 - 1))
def test_integers_stay_below_n(n, seed):
    assert 0 <= integers(new_stream(seed), n) < n
