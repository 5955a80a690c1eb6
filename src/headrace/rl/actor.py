"""One agent at work: its coroutine at one end of two channels, a row of a batch of environments at the other.

What it sees goes in, its action comes out and into the row; after the step its reward is read, and the episode when it
is over. A shard's worker (`headrace.rl.agents`) calls these methods in turn for each of its actors.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from headrace.core.channel import Channel
from headrace.errors import ChannelClosed, DeadlineExceeded, HeadraceError, InvalidInput
from headrace.rl.envs.actions import bad_number, check_actions
from headrace.rl.metrics import AgentMetrics
from headrace.rl.rows import EnvRows
from headrace.rl.spec import Discrete

__all__ = ["PATIENCE_S", "Actor", "Agent", "AgentEpisode", "Outcome", "Seen"]

_log = logging.getLogger(__name__)

PATIENCE_S = 0.5
"""How long agents on their way out are waited for at a time."""

Outcome: TypeAlias = Literal["terminated", "truncated", "timeout", "failed"]


class Seen(NamedTuple):
    """What an agent receives: the observation float32[obs_size] (read-only, good until the agent acts), the reward of
    its last action (0 at first), and whether the episode is over: then no action is asked for any more."""

    obs: npt.NDArray[np.float32]
    reward: float
    terminated: bool
    truncated: bool


class AgentEpisode(NamedTuple):
    """An episode's end. `total` is its undiscounted return, `length` its steps. `error` says what an agent raised
    ("failed") or what it was too slow for ("timeout")."""

    agent: int
    number: int
    total: float
    length: int
    outcome: Outcome
    error: Exception | None


Agent: TypeAlias = Callable[[Channel[Seen], Channel[Any]], Awaitable[None]]


class Actor:
    """One agent's place: its row of the environments, and the episode under way."""

    def __init__(
        self, rows: EnvRows, agent: Agent, number: int, timeout_s: float | None, metrics: AgentMetrics
    ) -> None:
        self._rows, self._agent, self._number, self._timeout_s = rows, agent, number, timeout_s
        self._metrics = metrics
        self._view = rows.obs[number].view()
        self._view.flags.writeable = False
        space = rows.env.spec.action
        self._choices = space.n if isinstance(space, Discrete) else 0
        self._episode = -1
        self._stale = False  # whether the row has gone on since an episode of it began
        self.running = False
        self.task: asyncio.Task[None] | None = None
        self._raised: Exception | None = None

    @property
    def free(self) -> bool:
        return not self.running and (self.task is None or self.task.done())

    def begin(self) -> None:
        if self._stale:
            self._rows.restart(self._number)
        self._stale, self.running, self._raised = False, True, None
        self._failure: tuple[Outcome, Exception] | None = None
        self._episode, self._length = self._episode + 1, 0
        self._total = 0.0
        self._watched = self._metrics.began(self._number, self._episode)
        self._seen = Seen(self._view, 0.0, False, False)
        self._obs, self._act = Channel[Seen](2), Channel[Any](1)
        self._left_s = self._timeout_s
        self.task = asyncio.ensure_future(self._live(self._obs, self._act))

    async def _live(self, obs: Channel[Seen], act: Channel[Any]) -> None:
        try:
            await self._agent(obs, act)
        except Exception as error:  # an agent's fault is its own episode's
            self._raised = error
            if not self.running:
                _log.exception("agent %d failed after the end of its episode %d", self._number, self._episode)
        finally:
            obs.close()
            act.close()

    def show(self) -> None:
        self._shown_s = time.monotonic()
        with suppress(ChannelClosed):
            if not self._obs.try_send(self._seen):
                self._fail("failed", InvalidInput("the agent acted without looking at what it was shown"))

    async def act(self) -> None:
        """Wait for the action and put it into the row; without one the episode has failed."""
        if self._failure is not None:
            return
        began_s = time.monotonic()
        try:
            action = await self._act.arecv(self._left_s)
            if type(action) is not int or not 0 <= action < self._choices:  # the long way round
                action = check_actions(self._rows.env.spec, [action], 1)[0]
            self._rows.actions[self._number] = action
            self._watched.acted(self._length, time.monotonic() - self._shown_s)
        except DeadlineExceeded:
            self._fail("timeout", DeadlineExceeded(f"the agent took longer than {self._timeout_s} s"))
        except ChannelClosed:
            self._fail("failed", self._raised or InvalidInput("the agent ended before its episode was over"))
        except HeadraceError as error:
            self._fail("failed", error)
        if self._left_s is not None:
            self._left_s = max(0.0, self._left_s - (time.monotonic() - began_s))

    def account(self) -> AgentEpisode | None:
        """Read the row after a step; the episode, if it is over."""
        if not self.running:
            self._stale = True
            return None
        outcome: Outcome
        if self._failure is not None:
            self._stale = True
            outcome, error = self._failure
        else:
            rows, number = self._rows, self._number
            reward = float(rows.rewards[number])
            if not math.isfinite(reward):
                action = rows.actions[number]
                raise InvalidInput(bad_number(rows.env.spec.id, number, self._length + 1, action, "reward", reward))
            self._total, self._length = self._total + reward, self._length + 1
            terminated, truncated = bool(rows.terminated[number]), bool(rows.truncated[number])
            if not (terminated or truncated):
                self._seen = Seen(self._view, reward, False, False)
                return None
            outcome, error = "terminated" if terminated else "truncated", None
            with suppress(ChannelClosed):  # the agent may not care for the end
                self._obs.try_send(Seen(rows.final_obs[number].copy(), reward, terminated, truncated))
        self._obs.close()
        self.running = False
        self._watched.ended(outcome, self._total)
        return AgentEpisode(self._number, self._episode, self._total, self._length, outcome, error)

    def hurry(self) -> None:
        """Cancel an agent that the others have waited for after the end of its episode, once its time is up."""
        if self.task is not None and self._left_s is not None:
            self._left_s -= PATIENCE_S
            if self._left_s <= 0:
                self.task.cancel()

    def _fail(self, outcome: Outcome, error: Exception) -> None:
        self._failure = outcome, error
        if self.task is not None:
            self.task.cancel()
