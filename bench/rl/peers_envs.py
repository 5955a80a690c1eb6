"""What `envs.py` measures of one peer: steps a second of CartPole alone with random actions, as a JSON line.

python bench/rl/peers_envs.py gymnasium | envpool | gymnax
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable

import numpy as np

SECONDS, ROUNDS = 0.4, 3


def fastest(step: Callable[[np.ndarray], object], n: int, rows: int) -> float:
    """Steps a second of the best round; `rows` environments move with every call."""
    rng = np.random.default_rng(0)
    actions = [rng.integers(0, 2, rows).astype(np.int32) for _ in range(16)]
    best = 0.0
    for _ in range(ROUNDS + 1):  # the first warms up
        calls, began_s = 0, time.perf_counter()
        while time.perf_counter() - began_s < SECONDS:
            step(actions[calls % 16])
            calls += 1
        best = max(best, calls * rows / (time.perf_counter() - began_s))
    return best


def gymnasium_steps_s() -> dict[str, float]:
    """Its NumPy CartPole, the one that `make_vec` picks by itself."""
    import gymnasium

    found = {}
    for n in (1024, 8192, 32768):
        envs = gymnasium.make_vec("CartPole-v1", num_envs=n, vectorization_mode="vector_entry_point")
        envs.reset(seed=0)
        found[str(n)] = fastest(envs.step, n, n)
    return found


def envpool_steps_s() -> dict[str, float]:
    """Two threads; all environments in step with each other, and asynchronously by halves."""
    import envpool

    found = {}
    for n in (64, 1024, 8192):
        envs = envpool.make("CartPole-v1", env_type="gymnasium", num_envs=n, num_threads=2, seed=0)
        envs.reset()
        found[str(n)] = fastest(envs.step, n, n)
        envs = envpool.make("CartPole-v1", env_type="gymnasium", num_envs=n, batch_size=n // 2, num_threads=2, seed=0)
        envs.async_reset()

        def step(actions: np.ndarray, envs=envs) -> None:
            info = envs.recv()[-1]
            envs.send(actions, info["env_id"])

        found[f"{n}, {n // 2} a call"] = fastest(step, n, n // 2)
    return found


def gymnax_steps_s(steps: int = 100) -> dict[str, float]:
    """One compiled scan that draws its own actions; compilation not counted."""
    import gymnax
    import jax

    env, params = gymnax.make("CartPole-v1")
    reset, step = jax.vmap(env.reset, (0, None)), jax.vmap(env.step, (0, 0, 0, None))
    found = {}
    for n in (2048, 16384):

        def one(carry, _, n=n):
            key, state = carry
            key, act, go = jax.random.split(key, 3)
            obs, state, reward, *_ = step(jax.random.split(go, n), state, jax.random.randint(act, (n,), 0, 2), params)
            return (key, state), (obs.sum(), reward.sum())

        run = jax.jit(lambda carry, one=one: jax.lax.scan(one, carry, None, steps))
        key = jax.random.key(0)
        carry, _ = jax.block_until_ready(run((key, reset(jax.random.split(key, n), params)[1])))
        best_s = float("inf")
        for _ in range(ROUNDS):
            began_s = time.perf_counter()
            carry, _ = jax.block_until_ready(run(carry))
            best_s = min(best_s, time.perf_counter() - began_s)
        found[str(n)] = n * steps / best_s
    return found


if __name__ == "__main__":
    measure = {"gymnasium": gymnasium_steps_s, "envpool": envpool_steps_s, "gymnax": gymnax_steps_s}[sys.argv[1]]
    print(json.dumps(measure()))
