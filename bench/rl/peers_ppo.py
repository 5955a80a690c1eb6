"""What `ppo.py` runs with the peers' Python: prints steps a second, or how a run ended as a JSON line.

python bench/rl/peers_ppo.py gymnax | sb3-steps | sb3-solve SEED
"""

from __future__ import annotations

import json
import sys
import time


def gymnax_steps_s(envs: int = 16384, steps: int = 200) -> float:
    """CartPole with random actions, one compiled scan; the best of five runs after the compilation."""
    import gymnax
    import jax

    env, params = gymnax.make("CartPole-v1")
    reset, step = jax.vmap(env.reset, (0, None)), jax.vmap(env.step, (0, 0, 0, None))

    def one(carry, _):
        key, state = carry
        key, act, go = jax.random.split(key, 3)
        actions = jax.random.randint(act, (envs,), 0, 2)
        obs, state, reward, *_ = step(jax.random.split(go, envs), state, actions, params)
        return (key, state), (obs.sum(), reward.sum())

    def run(carry):
        return jax.lax.scan(one, carry, None, steps)

    compiled = jax.jit(run)
    key = jax.random.key(0)
    _, state = reset(jax.random.split(key, envs), params)
    carry, _ = jax.block_until_ready(compiled((key, state)))
    best_s = float("inf")
    for _ in range(5):
        began_s = time.perf_counter()
        carry, _ = jax.block_until_ready(compiled(carry))
        best_s = min(best_s, time.perf_counter() - began_s)
    return envs * steps / best_s


def sb3_model(seed: int):
    """The zoo's hyper-parameters for CartPole-v1."""
    import torch
    from stable_baselines3 import PPO
    from stable_baselines3.common.env_util import make_vec_env

    torch.set_num_threads(1)  # faster than two for networks this small
    env = make_vec_env("CartPole-v1", n_envs=8, seed=seed)
    return PPO(
        "MlpPolicy",
        env,
        n_steps=32,
        batch_size=256,
        gae_lambda=0.8,
        gamma=0.98,
        n_epochs=20,
        ent_coef=0.0,
        learning_rate=lambda left: 1e-3 * left,
        clip_range=lambda left: 0.2 * left,
        seed=seed,
        device="cpu",
    )


def sb3_steps_s(steps: int = 20_480) -> float:
    model = sb3_model(0)
    model.learn(2048)
    began_s = time.perf_counter()
    model.learn(steps)
    return steps / (time.perf_counter() - began_s)


def sb3_solve(seed: int) -> dict[str, object]:
    """Evaluate where recent episodes are long, until 100 episodes reach 475 on average."""
    import numpy as np
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.evaluation import evaluate_policy

    held_out = make_vec_env("CartPole-v1", n_envs=20, seed=seed + 1000)
    found = {"solved": False, "steps": 0, "return": 0.0}

    class Stop(BaseCallback):
        def _on_rollout_start(self) -> None:
            recent = [episode["r"] for episode in self.model.ep_info_buffer][-20:]
            if recent and np.mean(recent) > 150 and self.num_timesteps % 2560 == 0:
                mean, _ = evaluate_policy(self.model, held_out, n_eval_episodes=100)
                found.update(solved=bool(mean >= 475), steps=self.num_timesteps, **{"return": float(mean)})

        def _on_step(self) -> bool:
            return not found["solved"]

    sb3_model(seed).learn(100_000, callback=Stop())
    return found


def main() -> int:
    if sys.argv[1] == "sb3-solve":
        print(json.dumps(sb3_solve(int(sys.argv[2]))))
    else:
        print({"gymnax": gymnax_steps_s, "sb3-steps": sb3_steps_s}[sys.argv[1]]())
    return 0


if __name__ == "__main__":
    sys.exit(main())
