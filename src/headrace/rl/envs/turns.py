"""A game by turns as PettingZoo's AEC environment: one compiled environment with `players` above 1 in, agents out.

For training, step a `BatchEnv` of the game itself: it observes for whoever is to move, so that one policy plays both
sides, or two play each other; `reward` is the mover's.

Importing this module imports pettingzoo.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from pettingzoo import AECEnv  # type: ignore[import-untyped]

from headrace.errors import InvalidInput
from headrace.rl.envs.batch import Autoreset, BatchEnv
from headrace.rl.envs.definition import Env
from headrace.rl.envs.registry import make_env
from headrace.rl.spec import Discrete, to_gymnasium

__all__ = ["TurnsEnv"]


class TurnsEnv(AECEnv):  # type: ignore[misc]
    """Agents `player_0`, `player_1`, … who move in turn. Observations are `{"observation", "action_mask"}`.

    What a step pays its mover it takes from the others, in equal parts. Raises `InvalidInput` for an environment of one
    player, of actions that are not `Discrete`, or that does not say what is legal.
    """

    def __init__(
        self, env: str | type[Env], *, params: Mapping[str, Any] | None = None, render_mode: str | None = None
    ) -> None:
        super().__init__()
        compiled = make_env(env, params)
        spec, action = compiled.spec, compiled.spec.action
        legal = getattr(compiled.definition.env, "is_legal", None)
        if spec.players < 2 or not isinstance(action, Discrete) or legal is None:
            raise InvalidInput(f"{spec.id}: expected a game of 2 or more players with Discrete actions and is_legal")
        self.metadata = {"name": spec.id, "render_modes": ["rgb_array"], "is_parallelizable": False}
        self.render_mode = render_mode
        self._batch = BatchEnv(compiled, 1, autoreset=Autoreset.DISABLED, threads=1)
        self._legal, self._n_actions = legal, action.n
        self.possible_agents = [f"player_{k}" for k in range(spec.players)]
        mask = spaces.Box(0, 1, (action.n,), np.int8)
        seen = spaces.Dict({"observation": to_gymnasium(spec.observation), "action_mask": mask})
        self.observation_spaces = dict.fromkeys(self.possible_agents, seen)
        self.action_spaces = {agent: to_gymnasium(action) for agent in self.possible_agents}

    def observation_space(self, agent: str) -> Any:
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> Any:
        return self.action_spaces[agent]

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        """With `seed`, game 0 of that seed; without, the next one. There are no options: PettingZoo's convention has
        them ignored."""
        if seed is not None or not self._batch.begun:
            self._batch.reset(seed)
        else:
            self._batch.restart([True])
        self.agents = list(self.possible_agents)
        self.agent_selection = self.agents[0]
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self.infos: dict[str, dict[str, Any]] = {agent: {} for agent in self.agents}

    def observe(self, agent: str) -> dict[str, NDArray[Any]]:
        """What whoever is to move sees. Others get the same board as their own; they may not move."""
        over = any(self.terminations.values()) or any(self.truncations.values())
        mask = np.zeros(self._n_actions, np.int8)
        if agent == self.agent_selection and not over:
            definition = self._batch.env.definition
            state = definition.state_at(self._batch.fields(), 0)
            mask[:] = [self._legal(state, action, definition.params) for action in range(self._n_actions)]
        return {"observation": self._batch.obs[0].copy(), "action_mask": mask}

    def step(self, action: Any) -> None:
        """Move for `agent_selection`. Raises `InvalidInput` for an action outside the space."""
        agent = self.agent_selection
        if self.terminations[agent] or self.truncations[agent]:
            self._was_dead_step(action)
            return
        step = self._batch.step(np.asarray(action)[np.newaxis])
        self._cumulative_rewards[agent] = 0.0
        paid, others = float(step.reward[0]), len(self.agents) - 1
        self.rewards = {a: paid if a == agent else -paid / others for a in self.agents}
        self.terminations = dict.fromkeys(self.agents, bool(step.terminated[0]))
        self.truncations = dict.fromkeys(self.agents, bool(step.truncated[0]))
        self.agent_selection = self.agents[(self.agents.index(agent) + 1) % len(self.agents)]
        self._accumulate_rewards()

    def render(self) -> NDArray[np.uint8] | None:
        return self._batch.draw() if self.render_mode == "rgb_array" else None

    def close(self) -> None:
        pass
