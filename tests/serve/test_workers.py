import asyncio

import pytest

from headrace.core.context import Context
from headrace.errors import Cancelled, Overloaded, Unavailable
from headrace.serve.graph import Step
from headrace.serve.pipeline import Pipeline
from headrace.serve.protocol import Payload
from headrace.serve.workers import Workers


async def test_threads_held_by_the_dead_are_bounded_and_said(workers, mark, make_hang, until):
    hangs = [make_hang(), make_hang()]
    for hang in hangs:
        ctx = Context()
        task = asyncio.create_task(Pipeline("p", [Step(hang, "hang")], workers=workers).run(Payload(), ctx))
        await until(hang.started.is_set)
        ctx.cancel()
        with pytest.raises(Cancelled):
            await task
    quick = Pipeline("p", [mark("a")], workers=workers)
    with pytest.raises(Overloaded, match="all 2 worker threads are held by stages that outlived their deadline"):
        await quick.run(Payload(), Context())
    for hang in hangs:
        hang.go.set()
    await until(lambda: workers.unfinished == 0)
    await quick.run(Payload(), Context())


async def test_the_queue_for_threads_is_bounded_and_forgets_the_dead(make_hang, until):
    workers = Workers(size=1, max_waiting=1)
    hang = make_hang()
    first = asyncio.create_task(workers.run(lambda: hang.process(1, None)))
    await until(hang.started.is_set)
    second = asyncio.create_task(workers.run(lambda: 2))
    await asyncio.sleep(0)
    with pytest.raises(Overloaded, match="1 stages already wait for 1 worker threads"):
        await workers.run(lambda: 3)
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    hang.go.set()
    assert await first == 1
    assert await workers.run(lambda: 4) == 4
    assert workers.abandoned == 0
    workers.close()
    with pytest.raises(Unavailable):
        await workers.run(lambda: 5)
