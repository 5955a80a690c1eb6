"""Environments: plain Python over declared fields in, machine code that steps thousands of them at once out."""

from headrace.rl.envs.compiler import CompiledEnv, compile
from headrace.rl.envs.definition import Array, Env
from headrace.rl.envs.registry import make_env
from headrace.rl.spec import Box, Discrete, EnvSpec, MultiDiscrete

__all__ = ["Array", "Box", "CompiledEnv", "Discrete", "Env", "EnvSpec", "MultiDiscrete", "compile", "make_env"]
