"""What `pipeline.py` runs with the peers' Python: a rollout loop over one of two vector environments, as a JSON line.

python bench/rl/peers_pipeline.py gymnasium | envpool
"""

from __future__ import annotations

import json
import sys
import time

import numpy as np
import torch

N_STEPS, SECONDS = 125, 5.0
N_ENVS = 4096


class Running:
    """Mean and variance of rows, as vector wrappers keep them."""

    def __init__(self, size: int) -> None:
        self.count, self.mean, self.var = 1e-4, np.zeros(size), np.ones(size)

    def update(self, rows: np.ndarray) -> None:
        n, delta = len(rows), rows.mean(axis=0) - self.mean
        total = self.count + n
        spread = self.var * self.count + rows.var(axis=0) * n + delta**2 * self.count * n / total
        self.mean, self.var, self.count = self.mean + delta * n / total, spread / total, total


def network(outputs: int, gain: float) -> torch.nn.Module:
    layers = [torch.nn.Linear(4, 64), torch.nn.Linear(64, 64), torch.nn.Linear(64, outputs)]
    for layer, scale in zip(layers, (2**0.5, 2**0.5, gain), strict=True):
        torch.nn.init.orthogonal_(layer.weight, scale)
        torch.nn.init.zeros_(layer.bias)
    return torch.nn.Sequential(layers[0], torch.nn.Tanh(), layers[1], torch.nn.Tanh(), layers[2])


def gymnasium_env(n_envs: int):
    import gymnasium

    env = gymnasium.make_vec("CartPole-v1", n_envs, vectorization_mode="vector_entry_point")
    return env.reset(seed=0)[0], env.step


def envpool_env(n_envs: int):
    import envpool

    env = envpool.make("CartPole-v1", env_type="gymnasium", num_envs=n_envs, seed=0)
    return env.reset()[0], lambda actions: env.step(actions.astype(np.int32))


def main() -> None:
    kind = {"gymnasium": gymnasium_env, "envpool": envpool_env}[sys.argv[1]]
    torch.manual_seed(0)
    actor, critic, running = network(2, 0.01), network(1, 1.0), Running(4)
    raw, step = kind(N_ENVS)
    shape = (N_STEPS, N_ENVS)
    obs, actions = np.empty((*shape, 4), np.float32), np.empty(shape, np.int64)
    log_probs, values, rewards = (np.empty(shape, np.float32) for _ in range(3))
    ends = np.empty((2, *shape), bool)
    returns, episodes, total, steps = np.zeros(N_ENVS), 0, 0.0, 0
    began_s = time.perf_counter()
    with torch.inference_mode():
        while time.perf_counter() - began_s < SECONDS:
            for t in range(N_STEPS):
                running.update(raw)
                obs[t] = np.clip((raw - running.mean) / np.sqrt(running.var + 1e-8), -10, 10)
                seen = torch.from_numpy(obs[t])
                chosen = torch.distributions.Categorical(logits=actor(seen))
                drawn = chosen.sample()
                actions[t], log_probs[t] = drawn.numpy(), chosen.log_prob(drawn).numpy()
                values[t] = critic(seen)[:, 0].numpy()
                raw, rewards[t], ends[0, t], ends[1, t], _ = step(actions[t])
                returns += rewards[t]
                ended = ends[0, t] | ends[1, t]
                if ended.any():
                    episodes += int(ended.sum())
                    total += float(returns[ended].sum())
                    returns[ended] = 0
                steps += N_ENVS
    took_s = time.perf_counter() - began_s
    found = {
        "episodes_s": episodes / took_s,
        "mean_length": total / episodes,  # a reward of 1 a step
        "mean_return": total / episodes,
        "steps_s": steps / took_s,
        "samples_trained_s": 0,
        "policy_lag": 0,
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
