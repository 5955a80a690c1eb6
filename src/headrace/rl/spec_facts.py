"""The facts of an environment as JSON knows them, for checkpoints: an `EnvSpec` in, a table out, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.errors import LoadFailed
from headrace.rl.spec import ActionSpace, Box, Discrete, EnvSpec, MultiDiscrete

__all__ = ["facts_of", "spec_of"]


def facts_of(spec: EnvSpec) -> dict[str, Any]:
    return {
        "id": spec.id,
        "observation": _space(spec.observation),
        "action": _space(spec.action),
        "max_steps": spec.max_steps,
        "reward_threshold": spec.reward_threshold,
        "players": spec.players,
    }


def spec_of(facts: Mapping[str, Any]) -> EnvSpec:
    """The spec that `facts_of` wrote. Raises `LoadFailed`."""
    try:
        observation, action = _found(facts["observation"]), _found(facts["action"])
        if not isinstance(observation, Box):
            raise ValueError(f"observations in {observation}")
        rest = {name: facts[name] for name in ("max_steps", "reward_threshold", "players")}
        return EnvSpec(facts["id"], observation, action, **rest)
    except (KeyError, TypeError, ValueError) as error:
        raise LoadFailed(f"checkpoint: the facts of its environment cannot be read: {error!r}") from error


def _space(space: ActionSpace) -> dict[str, Any]:
    if isinstance(space, Box):
        return {"low": space.low.tolist(), "high": space.high.tolist()}
    return {"n": space.n} if isinstance(space, Discrete) else {"nvec": list(space.nvec)}


def _found(facts: Mapping[str, Any]) -> ActionSpace:
    if "low" in facts:
        return Box(facts["low"], facts["high"])
    return Discrete(facts["n"]) if "n" in facts else MultiDiscrete(tuple(facts["nvec"]))
