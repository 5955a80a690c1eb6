"""The batcher on real threads: exact splits, no idle wait, deadlines, cancellation, priority, isolation of faults."""

import asyncio
import gc
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.context import Context
from headrace.errors import Cancelled, DeadlineExceeded, Overloaded, StageFailed, Unavailable
from headrace.serve.config import BatchingConfig
from headrace.serve.scheduler.batcher import Batcher
from headrace.serve.scheduler.work import Work


class Harness:
    """A batcher over `function`, the sizes of the batches it ran, and an awaitable submit."""

    def __init__(self, function, *, execution="thread", instances=1, joinable=True, fixed=False, **batching):
        self.sizes = []
        self.runs = []
        self.executor = ThreadPoolExecutor(instances)
        self.batcher = Batcher(
            "m",
            function,
            self.executor,
            BatchingConfig(**batching),
            execution,
            instances,
            joinable=joinable,
            fixed=fixed,
            observe=lambda batch, outcomes, start, took: self.sizes.append(sum(work.rows for work in batch)),
            run_s=1e-6,
        )

    def submit(self, array, ctx=None):
        future = asyncio.get_running_loop().create_future()

        def done(result, error):
            if not future.done():
                future.set_exception(error) if error else future.set_result(result["y"])

        self.batcher.submit(Work({"x": array}, len(array), ctx or Context(), done, lambda error, seconds: None))
        return future

    async def __aenter__(self):
        return self

    async def __aexit__(self, *exc):
        await self.batcher.drain(5)
        await asyncio.to_thread(self.executor.shutdown)


def double(tensors):
    return {"y": tensors["x"] * 2}


class Gate:
    """Doubles, but each run waits for `open`."""

    def __init__(self):
        self.open = threading.Event()
        self.entered = threading.Event()
        self.seen = []

    def __call__(self, tensors):
        self.entered.set()
        assert self.open.wait(10)
        self.seen.append(tensors["x"].copy())
        return double(tensors)


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 5), st.integers(1, 3)), min_size=1, max_size=20),
    st.integers(1, 8),
    st.sampled_from(["inline", "thread"]),
    st.integers(1, 2),
)
def test_every_request_gets_its_own_rows_back(shapes, max_batch, execution, instances):
    async def scenario():
        async with Harness(double, execution=execution, instances=instances, max_batch=max_batch) as harness:
            inputs = [np.full((rows, width), i, np.float32) for i, (rows, width) in enumerate(shapes)]
            answers = await asyncio.gather(*(harness.submit(array) for array in inputs))
            for array, answer in zip(inputs, answers, strict=True):
                np.testing.assert_array_equal(answer, array * 2)
            assert sum(harness.sizes) == sum(len(array) for array in inputs)
            assert max(harness.sizes) <= max(max_batch, *(rows for rows, _ in shapes))

    asyncio.run(scenario())


async def test_requests_of_one_tick_form_one_batch_without_a_timer():
    async with Harness(double, execution="inline", max_batch=8, window_ms=60_000) as harness:
        await asyncio.gather(*(harness.submit(np.ones((1, 2))) for _ in range(8)))
        assert harness.sizes == [8]


async def test_a_lone_request_is_not_held_for_the_window():
    async with Harness(double, max_batch=8, window_ms=3_600_000) as harness:
        await asyncio.wait_for(harness.submit(np.ones((1, 2))), 10)


async def test_while_one_runs_the_others_gather():
    gate = Gate()
    async with Harness(gate, max_batch=4) as harness:
        first = harness.submit(np.ones((1, 2)))
        await asyncio.to_thread(gate.entered.wait)
        rest = [harness.submit(np.ones((1, 2))) for _ in range(6)]
        await asyncio.sleep(0.02)
        gate.open.set()
        await asyncio.gather(first, *rest)
        assert harness.sizes == [1, 4, 2]


async def test_with_a_free_instance_the_window_bounds_the_wait():
    gate = Gate()
    async with Harness(gate, instances=2, max_batch=100, window_ms=30) as harness:
        first = harness.submit(np.ones((1, 2)))
        await asyncio.to_thread(gate.entered.wait)
        second = harness.submit(np.ones((1, 2)))
        for _ in range(500):
            if harness.batcher.running == 2:
                break
            await asyncio.sleep(0.01)
        assert harness.batcher.running == 2
        gate.open.set()
        await asyncio.gather(first, second)


async def test_one_bad_row_fails_alone():
    def refuses_negative(tensors):
        if (tensors["x"] < 0).any():
            raise ValueError("negative")
        return double(tensors)

    async with Harness(refuses_negative, execution="inline", max_batch=8) as harness:
        good = [harness.submit(np.full((1, 2), i)) for i in range(3)]
        bad = harness.submit(np.full((1, 2), -1))
        with pytest.raises(StageFailed, match="negative"):
            await bad
        for i, answer in enumerate(await asyncio.gather(*good)):
            np.testing.assert_array_equal(answer, np.full((1, 2), 2 * i))


async def test_a_model_that_returns_other_rows_is_told_to_go_alone():
    async with Harness(lambda tensors: {"y": tensors["x"].sum(0, keepdims=True)}, execution="inline") as harness:
        a, b = harness.submit(np.ones((1, 2))), harness.submit(np.ones((1, 2)))
        # joined they would be mixed up; each alone is right
        np.testing.assert_array_equal(await a, [[1, 1]])
        np.testing.assert_array_equal(await b, [[1, 1]])


async def test_a_deadline_is_honoured_while_queued_and_while_running():
    gate = Gate()
    async with Harness(gate) as harness:
        running = harness.submit(np.ones((1, 2)), Context(timeout_s=0.05))
        await asyncio.to_thread(gate.entered.wait)
        queued = harness.submit(np.full((1, 2), 7.0), Context(timeout_s=0.05))
        for future in (running, queued):
            with pytest.raises(DeadlineExceeded):
                await asyncio.wait_for(future, 10)
        gate.open.set()
    assert [x[0, 0] for x in gate.seen] == [1.0]  # the queued one was never run


async def test_cancelled_work_is_not_run():
    gate = Gate()
    async with Harness(gate) as harness:
        first = harness.submit(np.ones((1, 2)))
        await asyncio.to_thread(gate.entered.wait)
        ctx = Context()
        dropped = harness.submit(np.full((1, 2), 7.0), ctx)
        ctx.cancel()
        gate.open.set()
        await first
        with pytest.raises(Cancelled):
            await dropped
    assert len(gate.seen) == 1


async def test_higher_priority_overtakes_the_queue():
    gate = Gate()
    async with Harness(gate, max_batch=1) as harness:
        futures = [harness.submit(np.zeros((1, 2)))]
        await asyncio.to_thread(gate.entered.wait)
        for value, priority in ((1, 0), (2, 5), (3, 0), (4, 9), (5, 5)):
            futures.append(harness.submit(np.full((1, 2), value), Context(priority=priority)))
        gate.open.set()
        await asyncio.gather(*futures)
    assert [int(x[0, 0]) for x in gate.seen] == [0, 4, 2, 5, 1, 3]


async def test_a_full_queue_refuses_with_a_retry_hint():
    gate = Gate()
    async with Harness(gate, max_queue=2, max_batch=1) as harness:
        first = harness.submit(np.ones((1, 2)))
        await asyncio.to_thread(gate.entered.wait)
        waiting = [harness.submit(np.ones((1, 2))) for _ in range(2)]
        with pytest.raises(Overloaded) as error:
            await harness.submit(np.ones((1, 2)))
        assert error.value.retry_after_s >= 0
        gate.open.set()
        await asyncio.gather(first, *waiting)


async def test_draining_finishes_what_was_accepted_and_refuses_the_rest():
    gate = Gate()
    async with Harness(gate, max_batch=1) as harness:
        accepted = [harness.submit(np.ones((1, 2))) for _ in range(3)]
        drained = asyncio.ensure_future(harness.batcher.drain(10))
        await asyncio.sleep(0.01)
        with pytest.raises(Unavailable, match="unloaded"):
            await harness.submit(np.ones((1, 2)))
        gate.open.set()
        await drained
        assert all(future.done() and future.exception() is None for future in accepted)


async def test_a_drain_that_takes_too_long_answers_the_waiting():
    gate = Gate()
    async with Harness(gate, max_batch=1) as harness:
        first = harness.submit(np.ones((1, 2)))
        await asyncio.to_thread(gate.entered.wait)
        waiting = harness.submit(np.ones((1, 2)))
        await harness.batcher.drain(0.01)
        with pytest.raises(Unavailable):
            await waiting
        gate.open.set()
        await first


async def test_slow_models_leave_the_event_loop():
    loop_thread = threading.get_ident()
    threads = []

    def slow(tensors):
        threads.append(threading.get_ident())
        until = time.thread_time() + 0.005
        while time.thread_time() < until:
            pass
        return double(tensors)

    async with Harness(slow, execution="auto", max_batch=1) as harness:
        for _ in range(5):
            await harness.submit(np.ones((1, 2)))
    assert threads[0] == loop_thread
    assert threads[-1] != loop_thread


async def test_shapes_that_differ_never_share_a_batch():
    seen = []

    def shapes(tensors):
        seen.append(tensors["x"].shape)
        return double(tensors)

    async with Harness(shapes, execution="inline", max_batch=8) as harness:
        await asyncio.gather(*(harness.submit(np.ones((1, width))) for width in (3, 4, 3, 4, 3)))
    assert sorted(seen) == [(2, 4), (3, 3)]


async def test_answered_work_holds_no_tensors_until_its_deadline():
    kept = []

    def watched(width):
        array = np.ones((1, width), np.float32)
        kept.append(weakref.ref(array))
        return array

    gate = Gate()
    async with Harness(gate, max_batch=1) as harness:
        first = harness.submit(watched(2), Context(timeout_s=3600))
        await asyncio.to_thread(gate.entered.wait)
        expired = harness.submit(watched(2), Context(timeout_s=0.01))
        with pytest.raises(DeadlineExceeded):
            await expired
        gate.open.set()
        await first
        gate.seen.clear()
        await asyncio.sleep(0.05)
        del first, expired
        gc.collect()
        assert [ref() for ref in kept] == [None, None]


async def test_an_answer_that_cannot_be_delivered_costs_the_others_nothing(caplog):
    def explode(result, error):
        raise RuntimeError("the one who is told fails")

    async with Harness(double, execution="inline", max_batch=8) as harness:
        before = harness.submit(np.ones((1, 2)))
        harness.batcher.submit(Work({"x": np.ones((1, 2))}, 1, Context("bad"), explode, lambda error, seconds: None))
        after = harness.submit(np.ones((1, 2)))
        np.testing.assert_array_equal(await before, [[2, 2]])
        np.testing.assert_array_equal(await after, [[2, 2]])
    assert "bad" in caplog.text
