"""Environments that behave, or misbehave as they are told; they travel to the workers by value."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from pettingzoo import ParallelEnv

cloudpickle.register_pickle_by_value(sys.modules[__name__])

SHARED_MEMORY = Path("/dev/shm")


class Counter(gymnasium.Env):
    """The observation is (number, episode, step); an episode ends after `length` steps.

    `wrong` happens in the step (of any episode) with the number `at`, or in a reset if `at` is 0, from the episode
    `after` on; `once` holds it back once the file of that name exists.
    """

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012
    observation_space = spaces.Box(-1e6, 1e6, (3,), np.float32)
    action_space = spaces.Discrete(3)

    def __init__(
        self,
        number: int = 0,
        length: int = 5,
        wrong: str = "",
        at: int = 3,
        after: int = 0,
        once: Path | None = None,
        truncates: bool = False,
        delay_s: float = 0.0,
        talks: int = 0,
    ) -> None:
        self.number, self.length, self.wrong, self.at, self.after = number, length, wrong, at, after
        self.once, self.truncates, self.delay_s, self.talks = once, truncates, delay_s, talks
        self.episode, self.steps, self.render_mode = 0, 0, None
        self.closed_file: Path | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.episode += 1
        self.steps = 0
        if self.at == 0:
            self._misbehave()
        return self._look(), {"seed": str(seed), "options": options} if options else {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        time.sleep(self.delay_s)
        reward: Any = 1.0
        if self.steps == self.at:
            reward = self._misbehave() or reward
        over = self.steps >= self.length
        info: dict[str, Any] = {"action": int(action)} if over else {}
        if self.talks:
            info["said"] = "x" * self.talks
        obs = self._look()
        if self.steps == self.at and self.wrong == "shape" and self._due():
            obs = np.zeros(4, np.float32)
        if self.steps == self.at and self.wrong == "dtype" and self._due():
            obs = obs.astype(np.complex64)
        if self.steps == self.at and self.wrong == "nan observation" and self._due():
            obs[1] = np.nan
        return obs, reward, over and not self.truncates, over and self.truncates, info

    def close(self) -> None:
        if self.closed_file is not None:
            self.closed_file.write_text("closed")

    def render(self) -> Any:
        return np.full((2, 2, 3), self.number, np.uint8)

    def _look(self) -> np.ndarray:
        return np.array([self.number, self.episode, self.steps], np.float32)

    def _due(self) -> bool:
        return self.episode > self.after and (self.once is None or not self.once.exists())

    def _misbehave(self) -> Any:
        if not self._due() or self.wrong in ("shape", "dtype", "nan observation"):
            return None
        if self.once is not None:
            self.once.touch()
        if self.wrong == "raise":
            raise KeyError("the cable is loose")
        if self.wrong == "exit":
            sys.exit(3)
        if self.wrong == "_exit":
            os._exit(7)
        if self.wrong == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.wrong == "segfault":
            os.kill(os.getpid(), signal.SIGSEGV)
        if self.wrong == "hang":
            while True:
                pass
        if self.wrong == "sleep":
            time.sleep(1000)
        if self.wrong == "leak":
            self.leaked = np.ones(40 << 20)  # 320 MiB
        return {"nan": np.nan, "inf": -np.inf, "text": "much"}.get(self.wrong)


class Nested(gymnasium.Env):
    """Gives back the action of the last step, among other things."""

    action_space = spaces.Dict(
        steer=spaces.Box(-1, 1, (2,), np.float64), gear=spaces.Tuple([spaces.Discrete(3), spaces.MultiBinary(2)])
    )
    observation_space = spaces.Dict(
        action=action_space, picture=spaces.Box(0, 255, (4, 4, 3), np.uint8), when=spaces.MultiDiscrete([10, 10])
    )

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        self.steps += 1
        picture = np.full((4, 4, 3), self.steps, np.uint8)
        obs = {"picture": picture, "action": action, "when": np.array([self.steps, 0])}
        return obs, 0.5, self.steps == 4, False, {}


class Tag(ParallelEnv):
    """Agent k leaves, terminated, after k + `lasting` steps; all are truncated after `limit`."""

    metadata = {"name": "tag", "render_modes": []}  # noqa: RUF012

    def __init__(self, lasting: int = 2, limit: int = 10, wrong: str = "", different: bool = False) -> None:
        self.lasting, self.limit, self.wrong, self.different = lasting, limit, wrong, different
        self.possible_agents = ["a", "b", "c"]
        self.episode = 0

    def observation_space(self, agent: str) -> spaces.Space:
        return spaces.Box(-1e6, 1e6, (4 if self.different and agent == "b" else 3,), np.float32)

    def action_space(self, agent: str) -> spaces.Space:
        return spaces.Discrete(5)

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.agents, self.steps = self.possible_agents[:], 0
        self.episode += 1
        return self._look(), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, Any]) -> Any:
        assert list(actions) == self.agents
        self.steps += 1
        if self.wrong == "raise" and self.steps == 2 and self.episode == 1:
            raise RuntimeError("caught")
        looks = self._look()
        rewards = {agent: float(action) for agent, action in actions.items()}
        ended = {agent: self.steps >= self.lasting + self.possible_agents.index(agent) for agent in self.agents}
        cut = {agent: self.steps >= self.limit and not ended[agent] for agent in self.agents}
        infos = {agent: {"left": self.steps} if ended[agent] else {} for agent in self.agents}
        self.agents = [agent for agent in self.agents if not ended[agent] and not cut[agent]]
        return looks, rewards, ended, cut, infos

    def _look(self) -> dict[str, Any]:
        place = self.possible_agents.index
        return {agent: np.array([place(agent), self.episode, self.steps], np.float32) for agent in self.agents}


def left() -> set[str]:
    """Shared memory that this process owns, and workers that it started."""
    found = {path.name for path in SHARED_MEMORY.glob(f"headrace-{os.getpid()}-*")}
    for task in Path("/proc/self/task").iterdir():
        for pid in (task / "children").read_text().split():
            with contextlib.suppress(OSError):
                if b"headrace.rl.workers" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    found.add(pid)
    return found


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """Every test closes what it made: no process and no shared memory of ours stays."""
    before = left()
    yield
    assert left() <= before
