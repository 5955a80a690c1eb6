"""The reinforcement-learning plane: environments and a policy in, trajectories and a better policy out."""

from headrace.rl.config import TrainConfig, load_config
from headrace.rl.envs import Env, compile, make_env
from headrace.rl.train import Trainer, train

__all__ = ["Env", "TrainConfig", "Trainer", "compile", "load_config", "make_env", "train"]
