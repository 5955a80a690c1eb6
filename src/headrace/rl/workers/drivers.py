"""One environment in a worker process: an action is read from the board, what the environment answers is written there.

`GymDriver` drives a Gymnasium environment, which has one row; `ParallelDriver` a PettingZoo parallel environment, which
has one row for each agent. Both return what is no array, the infos, and raise what the environment raises.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from headrace.errors import InvalidInput
from headrace.rl.workers.board import Board
from headrace.rl.workers.faults import BadValues, Fault
from headrace.rl.workers.layout import Rows, reader, writer

__all__ = ["BadValue", "Driver", "DriverSettings", "Entry", "GymDriver", "ParallelDriver", "Spaces", "plain"]


@dataclass(frozen=True, slots=True)
class DriverSettings:
    """`same_step`: begin the next episode in the step that ends one. `infos`: whether to send them."""

    same_step: bool
    bad_values: BadValues
    bad_limit: float
    infos: bool


class Spaces(NamedTuple):
    """What an environment says of itself: spaces of one row, `agents` (none for Gymnasium), metadata, render mode;
    and its name, limit of steps (0: none) and solving return as registered."""

    observation: Any
    action: Any
    agents: tuple[str, ...]
    metadata: dict[str, Any]
    render_mode: str | None
    id: str
    max_steps: int = 0
    reward_threshold: float | None = None


class Entry(NamedTuple):
    """Infos of a call that is not empty: of `env`, and of the episode that ended within the step, if one did."""

    env: int
    info: Mapping[str, Any]
    final_info: Mapping[str, Any]


class BadValue(InvalidInput):
    """A NaN or an infinity where that stops the run."""


class Driver(Protocol):
    number: int
    notes: list[Fault]
    env: Any

    def build(self) -> Spaces: ...
    def attach(self, board: Board, settings: DriverSettings) -> None: ...
    def reset(self, seed: int | None, options: dict[str, Any] | None) -> Entry | None: ...
    def step(self) -> Entry | None: ...
    def discard(self) -> None: ...
    @property
    def doing(self) -> tuple[int, Any]: ...


def plain(action: Any) -> Any:
    """An action as lists and numbers, to be told."""
    if isinstance(action, dict):
        return {key: plain(part) for key, part in action.items()}
    if isinstance(action, tuple):
        return tuple(plain(part) for part in action)
    return action.tolist() if isinstance(action, (np.ndarray, np.generic)) else action


class _Base:
    """What both drivers share: making the environment, and numbers that are none."""

    def __init__(self, number: int, factory: Callable[[], Any]) -> None:
        self.number, self.factory = number, factory
        self.env: Any = None
        self.notes: list[Fault] = []
        self.resetting = True

    def attach(self, board: Board, settings: DriverSettings) -> None:
        self.board, self.settings = board, settings
        self.write, self.read = writer(board.obs), reader(board.actions)
        self.first = self.number * board.spec.agents
        # Writing a number through a memoryview takes a third of the time that an array takes.
        self.rewards: Any = memoryview(board.rewards)
        self.returns: Any = memoryview(board.returns)
        self.lengths = memoryview(board.lengths)
        self.terminated, self.truncated = memoryview(board.terminated), memoryview(board.truncated)
        self.over = memoryview(board.over)

    def discard(self) -> None:
        """Close the environment, whatever state it is in; the next reset makes a new one."""
        env, self.env = self.env, None
        with contextlib.suppress(Exception):
            if env is not None:
                env.close()

    @property
    def doing(self) -> tuple[int, Any]:
        """The step that is being taken and its action; (0, None) in a reset."""
        if self.resetting:
            return 0, None
        spec = self.board.spec
        actions = [plain(self.board.actions.element(self.first + a)) for a in range(spec.agents)]
        return self.lengths[self.first] + 1, actions[0] if spec.agents == 1 else actions

    def _mend(self, row: int, reward: float, fine: bool) -> float:
        """A bad reward or observation in; the reward to go on with out. Raises `BadValue` where the run has to stop."""
        what = "an observation that is not finite" if math.isfinite(reward) else f"the reward {reward}"
        if self.settings.bad_values == "stop":
            raise BadValue(f"gave {what}")
        step, action = self.doing
        self.notes.append(Fault(self.number, "bad_value", step, action, f"gave {what}"))
        limit = self.settings.bad_limit
        if not fine:
            _tidy(self.board.obs, row, limit)
        if self.settings.bad_values == "drop":
            return 0.0
        if math.isfinite(reward):
            return reward
        return 0.0 if math.isnan(reward) else math.copysign(limit, reward)

    def _keep_final(self, row: int) -> None:
        for final, now in zip(self.board.final.arrays, self.board.obs.arrays, strict=True):
            final[row] = now[row]


def _tidy(rows: Rows, row: int, limit: float) -> None:
    for array in rows.arrays:
        if array.dtype.kind == "f":
            array[row] = np.nan_to_num(array[row], nan=0.0, posinf=limit, neginf=-limit)


def _number(value: Any) -> float:
    if isinstance(value, np.ndarray):
        if value.size != 1:
            raise InvalidInput(f"reward: expected one number, got an array of the shape {list(value.shape)}")
        value = value.item()
    try:
        return float(value)
    except TypeError:
        raise InvalidInput(f"reward: expected a number, got {value!r}") from None


class GymDriver(_Base):
    """A `gymnasium.Env`."""

    def build(self) -> Spaces:
        self.env = env = self.factory()
        spec, name = env.spec, type(env.unwrapped).__name__
        known = (name, 0, None) if spec is None else (spec.id, spec.max_episode_steps or 0, spec.reward_threshold)
        return Spaces(env.observation_space, env.action_space, (), dict(env.metadata), env.render_mode, *known)

    def reset(self, seed: int | None, options: dict[str, Any] | None) -> Entry | None:
        info = self._begin(seed, options)
        row = self.number
        self.rewards[row] = self.returns[row] = 0.0
        self.lengths[row] = 0
        self.terminated[row] = self.truncated[row] = self.over[row] = False
        return Entry(row, info, {}) if info else None

    def _begin(self, seed: int | None, options: dict[str, Any] | None) -> Mapping[str, Any]:
        self.resetting = True
        if self.env is None:
            self.build()
        observation, info = self.env.reset(seed=seed, options=options)
        self.length, self.total = 0, 0.0
        if not self.write(self.number, observation):
            self._mend(self.number, 0.0, False)
        return info if self.settings.infos else {}

    def step(self) -> Entry | None:
        row, self.resetting = self.number, False
        if not self.length:  # until now the board told of the episode before
            self.lengths[row] = 0
            self.returns[row] = 0.0
        observation, reward, terminated, truncated, info = self.env.step(self.read(row))
        if type(reward) is not float:
            reward = _number(reward)
        fine = self.write(row, observation)
        if not fine or not math.isfinite(reward):
            reward = self._mend(row, reward, fine)
            if self.settings.bad_values == "drop":
                terminated, truncated = False, True
        self.length += 1
        self.total += reward
        self.rewards[row], self.returns[row], self.lengths[row] = reward, self.total, self.length
        self.terminated[row], self.truncated[row] = bool(terminated), bool(truncated)
        over = self.over[row] = bool(terminated or truncated)
        if over and self.settings.same_step:
            self._keep_final(row)
            first = self._begin(None, None)
            self.over[row] = False
            return Entry(row, first, info) if (first or info) and self.settings.infos else None
        return Entry(row, info, {}) if info and self.settings.infos else None


class ParallelDriver(_Base):
    """A `pettingzoo.ParallelEnv` whose possible agents all have the same spaces; one row each, in their order.

    An agent that leaves before the episode is over is terminated or truncated once; from then on it is not `alive`: its
    observation stays, its reward is 0, and its action is ignored.
    """

    def build(self) -> Spaces:
        self.env = env = self.factory()
        agents = tuple(env.possible_agents)
        if not agents:
            raise InvalidInput("parallel environment: possible_agents is empty")
        observation, action = env.observation_space(agents[0]), env.action_space(agents[0])
        for agent in agents[1:]:
            for kind, own, other in (
                ("observation", env.observation_space(agent), observation),
                ("action", env.action_space(agent), action),
            ):
                if own != other:
                    raise InvalidInput(
                        f"parallel environment: agents must share one {kind} space (pad them with a wrapper), but "
                        f"{agents[0]!r} has {other} and {agent!r} has {own}"
                    )
        name = str(env.metadata.get("name", type(env).__name__))
        return Spaces(observation, action, agents, dict(env.metadata), getattr(env, "render_mode", None), name)

    def reset(self, seed: int | None, options: dict[str, Any] | None) -> Entry | None:
        infos = self._begin(seed, options)
        board, rows = self.board, self.rows
        for column in (board.rewards, board.returns, board.lengths, board.terminated, board.truncated):
            column[rows] = 0
        board.over[self.number] = False
        return Entry(self.number, infos, {}) if infos else None

    def attach(self, board: Board, settings: DriverSettings) -> None:
        super().attach(board, settings)
        self.rows = slice(self.first, self.first + board.spec.agents)

    def _begin(self, seed: int | None, options: dict[str, Any] | None) -> Mapping[str, Any]:
        self.resetting = True
        if self.env is None:
            self.build()
        observations, infos = self.env.reset(seed=seed, options=options)
        self.agents = {agent: self.first + i for i, agent in enumerate(self.env.possible_agents)}
        self.board.alive[self.rows] = False
        self.length = 0
        for agent in self.env.agents:
            row = self.agents[agent]
            self.board.alive[row] = True
            if not self.write(row, observations[agent]):
                self._mend(row, 0.0, False)
        return self._told(infos)

    def _told(self, infos: Mapping[str, Any]) -> dict[str, Any]:
        return {agent: info for agent, info in infos.items() if info} if self.settings.infos else {}

    def step(self) -> Entry | None:
        board, rows, self.resetting = self.board, self.rows, False
        if not self.length:
            board.lengths[rows], board.returns[rows] = 0, 0.0
        acting = list(self.env.agents)
        actions = {agent: self.read(self.agents[agent]) for agent in acting}
        observations, rewards, terminations, truncations, infos = self.env.step(actions)
        board.rewards[rows] = 0.0
        board.terminated[rows] = board.truncated[rows] = False
        self.length += 1
        dropped = False
        for agent in acting:
            row, reward = self.agents[agent], _number(rewards[agent])
            fine = self.write(row, observations[agent])
            if not fine or not math.isfinite(reward):
                reward = self._mend(row, reward, fine)
                dropped = dropped or self.settings.bad_values == "drop"
            board.rewards[row] = reward
            board.returns[row] += reward
            board.lengths[row] = self.length
            board.terminated[row], board.truncated[row] = bool(terminations[agent]), bool(truncations[agent])
        if dropped:
            for row in (self.agents[agent] for agent in acting):
                board.terminated[row], board.truncated[row] = False, True
        over = dropped or not self.env.agents
        board.alive[rows] = False
        for agent in () if over else self.env.agents:
            board.alive[self.agents[agent]] = True
        board.over[self.number] = over
        told = self._told(infos)
        if self.settings.same_step:
            for row in (self.agents[agent] for agent in acting):
                if board.terminated[row] or board.truncated[row]:
                    self._keep_final(row)
        if over and self.settings.same_step:
            first = self._begin(None, None)
            board.over[self.number] = False
            return Entry(self.number, first, told) if first or told else None
        return Entry(self.number, told, {}) if told else None
