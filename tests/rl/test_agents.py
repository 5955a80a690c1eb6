"""Thousands of agents written as a few lines: everybody gets its observations, slow and broken ones harm nobody."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

import numpy as np
import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from headrace.core.channel import Channel
from headrace.core.context import Context
from headrace.core.telemetry import Registry, Tracer, TraceSettings, render
from headrace.errors import Cancelled, ConfigError, DeadlineExceeded, InvalidInput
from headrace.rl.agents import AgentEpisode, Agents, Seen
from headrace.rl.envs import CompiledEnv, make_env
from headrace.rl.envs.batch import BatchEnv
from headrace.rl.metrics import AgentMetrics


async def balancing(obs: Channel[Seen], act: Channel[Any]) -> None:
    async for seen in obs:
        await act.asend(int(seen.obs[2] + 0.5 * seen.obs[3] > 0))


async def collect(agents: Agents, count: int | None = None) -> list[AgentEpisode]:
    return [episode async for episode in agents.episodes(count)]


async def test_five_lines_keep_the_pole_up(cartpole: CompiledEnv) -> None:
    episodes = await collect(Agents(cartpole, balancing, n_agents=20, shard=8), 30)
    assert len(episodes) == 30
    assert {episode.outcome for episode in episodes} <= {"terminated", "truncated"}
    assert np.mean([episode.length for episode in episodes]) > 150
    assert all(episode.total == episode.length for episode in episodes)


async def test_agents_see_what_the_environment_does(cartpole: CompiledEnv) -> None:
    seen_by: list[list[Seen]] = []

    async def left(obs: Channel[Seen], act: Channel[Any]) -> None:
        seen_by.append([])
        mine = seen_by[-1]
        async for seen in obs:
            mine.append(seen._replace(obs=seen.obs.copy()))
            assert not seen.obs.flags.writeable or seen.terminated
            await act.asend(0)

    episodes = await collect(Agents(cartpole, left, n_agents=6, shard=4, seed=3), 6)
    batch = BatchEnv(cartpole, 6, seed=3)
    rows = [[batch.reset()[agent].copy()] for agent in range(6)]
    for _ in range(max(episode.length for episode in episodes)):
        step = batch.step(np.zeros(6, np.int64))
        for agent in range(6):
            rows[agent].append((batch.final_obs if step.terminated[agent] else step.obs)[agent].copy())
    for episode in episodes:
        history = next(seen for seen in seen_by if (seen[0].obs == rows[episode.agent][0]).all())
        assert len(history) == episode.length + 1
        assert [(seen.reward, seen.terminated) for seen in history] == [
            (0.0, False), *[(1.0, False)] * (episode.length - 1), (1.0, True)
        ]  # fmt: skip
        wanted = rows[episode.agent][: episode.length + 1]
        assert (np.array([seen.obs for seen in history]) == np.array(wanted)).all()


async def test_thousands_run_at_once(cartpole: CompiledEnv) -> None:
    alive, most = 0, 0

    async def counted(obs: Channel[Seen], act: Channel[Any]) -> None:
        nonlocal alive, most
        alive += 1
        most = max(most, alive)
        async for _ in obs:
            await act.asend(1)
        alive -= 1

    episodes = await collect(Agents(cartpole, counted, n_agents=2000), 3000)
    assert len(episodes) == 3000
    assert most == 2000
    assert alive == 0
    assert len({(episode.agent, episode.number) for episode in episodes}) == 3000
    assert {8, 9, 10} & {episode.length for episode in episodes}


async def test_what_an_agent_does_does_not_depend_on_shards(cartpole: CompiledEnv) -> None:
    async def first_episodes(shard: int) -> dict[int, int]:
        episodes = await collect(Agents(cartpole, balancing, n_agents=10, shard=shard, seed=5), 10)
        return {episode.agent: episode.length for episode in episodes if episode.number == 0}

    one, other = await first_episodes(3), await first_episodes(10)
    assert one == other


async def test_unread_episodes_hold_the_agents_back(cartpole: CompiledEnv) -> None:
    begun = 0

    async def counted(obs: Channel[Seen], act: Channel[Any]) -> None:
        nonlocal begun
        begun += 1
        async for _ in obs:
            await act.asend(0)

    agents = Agents(cartpole, counted, n_agents=8, shard=4, unread=5)
    async with aclosing(agents.episodes()) as episodes:
        await anext(episodes)
        before = -1
        while before != begun:
            before = begun
            await asyncio.sleep(0.05)
        assert begun <= 1 + 5 + 3 * 8
        for _ in range(100):
            await anext(episodes)
        assert begun > 90


async def test_stopping_lets_episodes_come_to_their_end(cartpole: CompiledEnv) -> None:
    agents = Agents(cartpole, balancing, n_agents=10, shard=5)
    found = []
    async for episode in agents.episodes():
        found.append(episode)
        if len(found) == 3:
            agents.stop()
    assert 10 <= len(found) <= 30
    assert {episode.outcome for episode in found} <= {"terminated", "truncated"}
    again = await collect(agents, 10)
    assert len(again) == 10, "they can begin once more"


async def test_a_slow_agent_loses_its_episode_alone(cartpole: CompiledEnv) -> None:
    asleep: set[asyncio.Task[None]] = set()

    async def sometimes_slow(obs: Channel[Seen], act: Channel[Any]) -> None:
        steps = 0
        async for seen in obs:
            steps += 1
            if steps == 4 and seen.obs[0] > 0.02:
                asleep.add(asyncio.current_task())
                await asyncio.sleep(3600)
            await act.asend(0)

    episodes = await collect(Agents(cartpole, sometimes_slow, n_agents=30, shard=15, timeout_s=0.5), 60)
    slow = [episode for episode in episodes if episode.outcome == "timeout"]
    assert len(episodes) == 60
    assert 0 < len(slow) < 60
    assert all(episode.length == 3 and isinstance(episode.error, DeadlineExceeded) for episode in slow)
    assert all(episode.length > 6 for episode in episodes if episode.outcome == "terminated")
    assert all(task.cancelled() for task in asleep)


async def raises(obs: Channel[Seen], act: Channel[Any]) -> None:
    await obs.arecv()
    raise ValueError("no idea")


async def returns(obs: Channel[Seen], act: Channel[Any]) -> None:
    await act.asend(1)
    await obs.arecv()


async def acts_badly(obs: Channel[Seen], act: Channel[Any]) -> None:
    async for _ in obs:
        await act.asend(7)


async def acts_blindly(obs: Channel[Seen], act: Channel[Any]) -> None:
    while True:
        await act.asend(0)


@pytest.mark.parametrize(
    ("broken", "told"),
    [
        (raises, "no idea"),
        (returns, "ended before its episode"),
        (acts_badly, "expected 0 … 1, got 7"),
        (acts_blindly, "without looking"),
    ],
)
async def test_a_broken_agent_harms_nobody_else(cartpole: CompiledEnv, broken: Any, told: str) -> None:
    number = 0

    async def every_third(obs: Channel[Seen], act: Channel[Any]) -> None:
        nonlocal number
        number += 1
        await (broken if number % 3 == 0 else balancing)(obs, act)

    episodes = await collect(Agents(cartpole, every_third, n_agents=9, shard=4, timeout_s=20), 18)
    failed = [episode for episode in episodes if episode.outcome == "failed"]
    assert len(episodes) == 18
    assert len(failed) == 6
    assert all(told in str(episode.error) for episode in failed)
    assert all(episode.length > 30 for episode in episodes if episode not in failed)


async def test_leaving_early_cancels_everybody(cartpole: CompiledEnv) -> None:
    before = len(asyncio.all_tasks())
    async with aclosing(Agents(cartpole, balancing, n_agents=50).episodes()) as episodes:
        await anext(episodes)
    assert len(asyncio.all_tasks()) == before


async def test_a_context_ends_it(cartpole: CompiledEnv) -> None:
    ctx = Context()
    before = len(asyncio.all_tasks())
    episodes = Agents(cartpole, balancing, n_agents=50).episodes(ctx=ctx)
    await anext(episodes)
    ctx.cancel()
    with pytest.raises(Cancelled):
        await anext(episodes)
    assert len(asyncio.all_tasks()) == before


async def test_actions_of_several_numbers() -> None:
    async def twist(obs: Channel[Seen], act: Channel[Any]) -> None:
        async for _ in obs:
            await act.asend([0.5])

    episodes = await collect(Agents(make_env("headrace/Pendulum-v1"), twist, n_agents=3), 4)
    assert [(episode.length, episode.outcome) for episode in episodes] == [(200, "truncated")] * 4


async def test_what_cannot_be_is_refused(cartpole: CompiledEnv) -> None:
    for wrong in ({"n_agents": 0}, {"shard": 0}, {"unread": 0}, {"threads": 0}):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            Agents(cartpole, balancing, **{"n_agents": 1, **wrong})
    with pytest.raises(InvalidInput, match="seed"):
        Agents(cartpole, balancing, n_agents=1, seed=-1)
    agents = Agents(cartpole, balancing, n_agents=4)
    async with aclosing(agents.episodes()) as episodes:
        await anext(episodes)
        with pytest.raises(ConfigError, match="under way"):
            await anext(agents.episodes())


async def test_agents_are_counted_and_sampled_episodes_traced(cartpole: CompiledEnv) -> None:
    exporter, registry = InMemorySpanExporter(), Registry()
    tracer = Tracer(TraceSettings(sample_ratio=1.0), exporter=exporter)

    async def falling(obs: Channel[Seen], act: Channel[Any]) -> None:
        async for _ in obs:
            await act.asend(0)

    episodes = await collect(Agents(cartpole, falling, n_agents=3, metrics=AgentMetrics(registry, tracer)), 5)
    spans = exporter.get_finished_spans()
    roots = {
        (span.attributes["agent_id"], span.attributes["episode"]): span for span in spans if span.name == "episode"
    }
    assert sorted(roots) == sorted((episode.agent, episode.number) for episode in episodes)
    acts = [span for span in spans if span.name == "act"]
    for episode in episodes:
        root = roots[episode.agent, episode.number]
        assert root.attributes["outcome"] == "terminated"
        own = [span for span in acts if span.parent.span_id == root.context.span_id]
        assert [span.attributes["episode_step"] for span in own] == list(range(episode.length))
        assert {span.attributes["agent_id"] for span in own} == {episode.agent}
    text = render(registry)[0].decode()
    assert f"headrace_rl_agent_act_seconds_count {float(len(acts))}" in text
    assert 'headrace_rl_agent_episodes_total{outcome="terminated"} 5.0' in text
    assert "headrace_rl_agent_unread_episodes 0.0" in text
