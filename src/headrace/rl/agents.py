"""Agents as concurrent actors: a coroutine per episode, observations in by one channel, actions out by another.

    async def agent(obs, act):
        async for seen in obs:
            await act.asend(choose(seen.obs))

    async for episode in Agents(make_env("headrace/CartPole-v1"), agent, n_agents=4000).episodes(100_000):
        ...

Agents live in shards. A shard's worker takes work items (as many episodes as the shard has agents) from a bounded
channel, hands each agent what it sees, and steps the shard's environments, on a thread of a pool, once all have acted;
finished episodes go into a bounded channel, and while nobody takes them from there, the workers wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress

from headrace.core.channel import Channel
from headrace.core.context import Context
from headrace.core.machine import machine
from headrace.core.telemetry import Registry
from headrace.errors import ChannelClosed, ConfigError
from headrace.rl.actor import PATIENCE_S, Actor, Agent, AgentEpisode, Outcome, Seen
from headrace.rl.envs import CompiledEnv
from headrace.rl.metrics import AgentMetrics
from headrace.rl.rows import EnvRows

__all__ = ["Agent", "AgentEpisode", "Agents", "Outcome", "Seen"]


class Agents:
    """`n_agents` agents, each in an environment of its own.

    Args:
        env: Compiled environment.
        agent: Called for each episode; its `obs` is closed after the last observation, whose action nobody wants. One
            that fails ends its own episode and nobody else's.
        shard: Agents that wait for each other at every step.
        seed: Of the environments.
        timeout_s: How long the others of its shard wait for an agent, an episode long; then it is cancelled. None: for
            ever.
        unread: Finished episodes that may wait to be read.
        threads: That step environments; default: one per usable CPU.
        metrics: Where latencies, outcomes and returns are counted and sampled episodes traced; default: nowhere.

    Raises `ConfigError` for numbers out of range.
    """

    def __init__(
        self,
        env: CompiledEnv,
        agent: Agent,
        *,
        n_agents: int,
        shard: int = 256,
        seed: int = 0,
        timeout_s: float | None = None,
        unread: int = 1024,
        threads: int | None = None,
        metrics: AgentMetrics | None = None,
    ) -> None:
        threads = machine().usable_cpus if threads is None else threads
        for name, number in (("n_agents", n_agents), ("shard", shard), ("unread", unread), ("threads", threads)):
            if number < 1:
                raise ConfigError(f"agents: expected {name} of at least 1, got {number}")
        self.env, self.agent, self.n_agents, self.shard = env, agent, n_agents, shard
        self.timeout_s, self.unread = timeout_s, unread
        self.rows = EnvRows(env, n_agents, seed)
        self.metrics = metrics or AgentMetrics(Registry(enabled=False))
        self.stopping = False
        self._threads = threads
        self._work: Channel[int] | None = None

    def stop(self) -> None:
        """Begin no more episodes; those under way come to their end, then `episodes` does. From its event loop."""
        self.stopping = True
        if self._work is not None:
            self._work.close()

    async def episodes(self, count: int | None = None, ctx: Context | None = None) -> AsyncIterator[AgentEpisode]:
        """Run `count` episodes (None: until `stop`) and yield each as it ends. Leaving early cancels all agents.

        Raises the error of `ctx` when that ends first, and what an environment raises. One call at a time.
        """
        if self._work is not None:
            raise ConfigError("agents: episodes are under way already")
        work = Channel[int](1)  # items are small, and there is no use in promising episodes early
        shards = [range(at, min(at + self.shard, self.n_agents)) for at in range(0, self.n_agents, self.shard)]
        self._work, self.stopping = work, False
        results = Channel[AgentEpisode](self.unread)
        self.metrics.watch(lambda: len(results))
        with ThreadPoolExecutor(self._threads, thread_name_prefix="agents") as pool:
            workers = [asyncio.create_task(_Shard(self, agents, pool).run(work, results)) for agents in shards]
            everything = [asyncio.create_task(self._feed(work, count)), asyncio.create_task(_close(workers, results))]
            try:
                while (ended := await _next(results, ctx)) is not None:
                    yield ended
                await everything[-1]
            finally:
                for task in (*everything, *workers):
                    task.cancel()
                await asyncio.gather(*everything, *workers, return_exceptions=True)
                self._work = None

    async def _feed(self, work: Channel[int], count: int | None) -> None:
        with suppress(ChannelClosed):
            left = count
            while left is None or left > 0:
                item = self.shard if left is None else min(left, self.shard)
                await work.asend(item)
                left = None if left is None else left - item
            work.close()


async def _next(results: Channel[AgentEpisode], ctx: Context | None) -> AgentEpisode | None:
    try:
        return await results.arecv(ctx=ctx)
    except ChannelClosed:
        return None


async def _close(workers: list[asyncio.Task[None]], results: Channel[AgentEpisode]) -> None:
    try:
        await asyncio.gather(*workers)
    finally:
        results.close()


class _Shard:
    """The worker of one shard."""

    def __init__(self, owner: Agents, agents: range, pool: Executor) -> None:
        self._owner, self._pool, self._agents = owner, pool, agents
        self._actors = [Actor(owner.rows, owner.agent, n, owner.timeout_s, owner.metrics) for n in agents]
        self._left = 0  # episodes of the work item that nobody has begun

    async def run(self, work: Channel[int], results: Channel[AgentEpisode]) -> None:
        rows, loop = self._owner.rows, asyncio.get_running_loop()
        try:
            rows.reset(self._agents.start, self._agents.stop)
            while await self._begin(work):
                running = [actor for actor in self._actors if actor.running]
                for actor in running:
                    actor.show()
                for actor in running:
                    await actor.act()
                await loop.run_in_executor(self._pool, rows.step, self._agents.start, self._agents.stop)
                for actor in self._actors:
                    ended = actor.account()
                    if ended is not None:
                        await results.asend(ended)
                await asyncio.sleep(0)  # whoever has seen its end can come to it
        finally:
            tasks = [actor.task for actor in self._actors if actor.task is not None]
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.wait(tasks, timeout=PATIENCE_S)

    async def _begin(self, work: Channel[int]) -> bool:
        """Begin episodes where agents are free; False when there are no more and none is under way."""
        while True:
            for actor in self._actors:
                if actor.free and self._take(work):
                    actor.begin()
            if any(actor.running for actor in self._actors):
                return True
            if ending := [actor for actor in self._actors if not actor.free]:
                await asyncio.wait([actor.task for actor in ending if actor.task], timeout=PATIENCE_S)
                for actor in ending:
                    actor.hurry()
                continue
            try:
                self._left = await work.arecv()
            except ChannelClosed:
                return False

    def _take(self, work: Channel[int]) -> bool:
        """Take one episode of the item in hand, or of the next one if that is there."""
        if self._owner.stopping:
            self._left = 0
            return False
        if not self._left:
            with suppress(ChannelClosed):
                self._left = work.try_recv(0)
        if not self._left:
            return False
        self._left -= 1
        return True
