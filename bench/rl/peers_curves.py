"""What `curves.py` runs with the peers' Python: SB3's PPO; its settings as JSON in, its curve as a JSON line out.

python bench/rl/peers_curves.py '{"env": "CartPole-v1", "seed": 0, …}'
"""

from __future__ import annotations

import json
import sys


def main() -> None:
    import torch
    from stable_baselines3 import PPO
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import VecNormalize

    asked = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    env = make_vec_env(asked["env"], n_envs=asked["n_envs"], seed=asked["seed"])
    if asked["normalise_obs"]:
        env = VecNormalize(env, norm_reward=False, gamma=asked["gamma"])
    curve: list[tuple[int, float]] = []

    class Watch(BaseCallback):
        def _on_step(self) -> bool:
            return True

        def _on_rollout_end(self) -> None:
            recent = [episode["r"] for episode in self.model.ep_info_buffer]
            if recent:
                curve.append((self.num_timesteps, sum(recent) / len(recent)))

    model = PPO(
        "MlpPolicy",
        env,
        n_steps=asked["n_steps"],
        batch_size=asked["batch"],
        n_epochs=asked["epochs"],
        gamma=asked["gamma"],
        gae_lambda=asked["gae_lambda"],
        learning_rate=asked["learning_rate"],
        clip_range=0.2,
        ent_coef=0.0,
        seed=asked["seed"],
        device="cpu",
    )
    model.learn(asked["total_steps"], callback=Watch())
    print(json.dumps(curve))


if __name__ == "__main__":
    main()
