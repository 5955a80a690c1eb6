"""Whatever else runs, is cancelled or runs out of pages: every answer is the one its request gets alone."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from headrace.core.context import Context
from headrace.errors import Cancelled
from headrace.llm.engine import Engine
from headrace.llm.params import SamplingParams

Alone = Callable[[list[int], int], tuple[int, ...]]
MakeEngine = Callable[..., Engine]

STEMS = [[7] * 70, [8, 9] * 25, list(range(40))]
"""Beginnings that many prompts share."""


@dataclass
class Plan:
    prompt: list[int]
    params: SamplingParams
    ctx: Context
    cancel: str
    after: int
    answers: dict[int, list[int]] = field(default_factory=dict)
    reasons: dict[int, str] = field(default_factory=dict)


def _plans(rng: random.Random, count: int, alone: Alone) -> list[Plan]:
    """Prompts that share beginnings; some are the next turn of another's conversation."""
    plans: list[Plan] = []
    for i in range(count):
        stem = rng.choice([[], *STEMS])
        stem = stem[: rng.randint(0, len(stem))]
        if plans and rng.random() < 0.25:
            before = rng.choice(plans[-20:]).prompt
            stem = [*before, *alone(before, 20)][:150]
        prompt = stem + [rng.randrange(4) for _ in range(rng.randint(1, 40))]
        params = SamplingParams(
            max_tokens=rng.randint(1, 40),
            n=rng.choice([1, 1, 1, 2, 3]),
            lookup=rng.choice([0, 0, 3]),
            temperature=rng.choice([0.0, 0.0, 0.0, 1.0]),
            seed=i,
        )
        ctx = Context(priority=rng.choice([0, 0, 0, 1, -1]), tenant=rng.choice("abc"))
        plans.append(
            Plan(prompt, params, ctx, rng.choice(["", "", "", "", "reader", "context", "drop"]), rng.randint(0, 6))
        )
    return plans


def _read(engine: Engine, plan: Plan) -> None:
    """Read one request to its end, or cancel it on the way as planned."""
    generation = engine.generate(plan.prompt, plan.params, ctx=plan.ctx)
    try:
        for n, chunk in enumerate(generation):
            plan.answers.setdefault(chunk.index, []).extend(chunk.tokens)
            if chunk.finish_reason:
                plan.reasons[chunk.index] = chunk.finish_reason
            if plan.cancel and n == plan.after:
                if plan.cancel == "reader":
                    generation.cancel()
                elif plan.cancel == "context":
                    plan.ctx.cancel()
                else:
                    return  # and drop it
    except Cancelled:
        assert plan.cancel == "context"


@pytest.mark.parametrize(("seed", "n_pages", "step_tokens"), [(1, 22, 24), (2, 30, 64), (3, 64, 17), (4, 23, 40)])
def test_a_thousand_random_requests(
    make_engine: MakeEngine, alone: Alone, seed: int, n_pages: int, step_tokens: int
) -> None:
    rng = random.Random(seed)
    plans = _plans(rng, 250, alone)
    engine = make_engine(n_pages=n_pages, max_context=n_pages * 16, step_tokens=step_tokens, max_queue=250)
    waiting = list(plans)

    def client() -> None:
        while True:
            try:
                plan = waiting.pop()
            except IndexError:
                return
            _read(engine, plan)

    clients = [threading.Thread(target=client) for _ in range(24)]
    for thread in clients:
        thread.start()
    for thread in clients:
        thread.join()

    calm = make_engine(n_pages=512)
    finished = 0
    for plan in plans:
        for index, tokens in plan.answers.items():
            if plan.params.temperature == 0:
                expected = alone(plan.prompt, len(tokens))
            else:
                expected = tuple(calm.generate(plan.prompt, plan.params).collect()[index].tokens[: len(tokens)])
            assert tuple(tokens) == expected
            if plan.reasons.get(index) == "length":
                assert len(tokens) == plan.params.max_tokens
                finished += 1
        if not plan.cancel:
            assert plan.reasons == dict.fromkeys(range(plan.params.n), "length")
    assert finished >= 200
    assert engine._loop._scheduler.preemptions > 0 or n_pages > 30, "the pages were never short: the test is too easy"
