import asyncio
import threading

import pytest

from headrace.core.context import Context
from headrace.errors import Cancelled, DeadlineExceeded
from headrace.serve.graph import Step
from headrace.serve.pipeline import Pipeline
from headrace.serve.protocol import Payload


async def test_a_missed_deadline_names_the_stage_and_leaves_the_thread_behind(workers, make_hang, until):
    hang = make_hang()
    ran = []
    pipeline = Pipeline("p", [Step(hang, "hang"), Step(lambda p, c: ran.append(1) or p, "next")], workers=workers)
    ctx = Context("r")
    task = asyncio.create_task(pipeline.run(Payload(), ctx))
    await until(hang.started.is_set)
    ctx.cancel(DeadlineExceeded("too late"))
    with pytest.raises(DeadlineExceeded, match="stage 'hang': too late"):
        await task
    assert workers.abandoned == 1
    hang.go.set()
    await until(lambda: workers.unfinished == 0)
    assert workers.abandoned == 0
    assert ran == []


async def test_the_deadline_of_a_blocking_stage_needs_no_help(workers, make_hang, until):
    hang = make_hang()
    pipeline = Pipeline("p", [Step(hang, "hang")], workers=workers)
    with pytest.raises(DeadlineExceeded, match="stage 'hang': request r: deadline exceeded"):
        await pipeline.run(Payload(), Context("r", timeout_s=0.02))
    hang.go.set()
    await until(lambda: workers.unfinished == 0)


@pytest.mark.parametrize("blocking", [True, False])
async def test_a_stage_has_a_time_limit_of_its_own(compiled, workers, step, make_hang, until, blocking):
    hang = make_hang()
    waiting = hang if blocking else type("Sleep", (), {"process": lambda self, p, c: asyncio.sleep(60)})()
    if not blocking:

        async def sleep(payload, ctx):
            await asyncio.sleep(60)

        waiting.process = sleep
    plan = compiled(step("a"), step("slow", stage=waiting, timeout_s=0.02), step("c"))
    ctx = Context(timeout_s=30)
    with pytest.raises(DeadlineExceeded, match=r"^stage 'slow': no answer within 0\.02 s$"):
        await plan.run(Payload(), ctx)
    assert ctx.error is None
    hang.go.set()
    await until(lambda: workers.unfinished == 0)


@pytest.mark.parametrize("blocking", [True, False])
async def test_cancelling_the_context_from_another_thread_wakes_the_wait(workers, make_hang, until, blocking):
    hang = make_hang()
    inside = asyncio.Event()

    async def sleep(payload, ctx):
        inside.set()
        await asyncio.sleep(60)

    pipeline = Pipeline("p", [Step(hang if blocking else sleep, "hang")], workers=workers)
    ctx = Context("r")
    task = asyncio.create_task(pipeline.run(Payload(), ctx))
    await until(lambda: hang.started.is_set() or inside.is_set())
    thread = threading.Thread(target=ctx.cancel)
    thread.start()
    with pytest.raises(Cancelled, match="stage 'hang': request r: cancelled"):
        await asyncio.wait_for(task, 10)
    assert task.cancelling() == 0
    thread.join()
    hang.go.set()
    await until(lambda: workers.unfinished == 0)


async def test_cancellation_wakes_every_branch(workers, mark):
    async def sleep(payload, ctx):
        await asyncio.sleep(60)

    pipeline = Pipeline(
        "p", [Step(sleep, "a", ()), Step(sleep, "b", ()), Step(mark("c"), "c", ("a", "b"))], workers=workers
    )
    ctx = Context("r", timeout_s=0.02)
    with pytest.raises(DeadlineExceeded, match=r"stage '[ab]': request r: deadline exceeded"):
        await pipeline.run(Payload(), ctx)


async def test_a_branch_has_its_own_time_limit_and_its_values_still_meet(compiled, workers, step, make_hang, until):
    hang = make_hang()
    steps = [step("a"), step("b", ("a",), hang, timeout_s=30), step("c", ("a",)), step("d", ("b", "c"))]
    hang.go.set()
    assert {"a", "c", "d"} <= set((await compiled(*steps).run(Payload(), Context())).metadata)
    hang.go.clear()
    steps[1] = step("b", ("a",), hang, timeout_s=0.02)
    with pytest.raises(DeadlineExceeded, match=r"^stage 'b': no answer within 0\.02 s$"):
        await compiled(*steps).run(Payload(), Context())
    hang.go.set()
    await until(lambda: workers.unfinished == 0)


async def test_a_cancelled_task_stays_cancelled(workers):
    async def sleep(payload, ctx):
        await asyncio.sleep(60)

    pipeline = Pipeline("p", [Step(sleep, "a")], workers=workers)
    task = asyncio.create_task(pipeline.run(Payload(), Context(timeout_s=30)))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_an_ended_context_runs_nothing(compiled):
    ran = []
    ctx = Context()
    ctx.cancel()
    pipeline = Pipeline("p", [Step(lambda p, c: ran.append(1) or p, "a")])
    with pytest.raises(Cancelled):
        await pipeline.run(Payload(), ctx)
    assert ran == []
    await pipeline.close()
