import asyncio
import threading
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.context import Context
from headrace.errors import (
    Cancelled,
    ConfigError,
    DeadlineExceeded,
    HeadraceError,
    InvalidInput,
    Overloaded,
    StageFailed,
    Unavailable,
)
from headrace.serve.graph import Graph, Step
from headrace.serve.pipeline import Pipeline
from headrace.serve.plan import Plan
from headrace.serve.protocol import Payload
from headrace.serve.workers import Workers


class Mark:
    """A blocking stage that appends its name and its thread to the payload's metadata."""

    def __init__(self, name):
        self.name = name

    def process(self, payload, ctx):
        payload.metadata["path"] = [*payload.metadata.get("path", ()), self.name]
        payload.metadata[self.name] = threading.current_thread()
        return payload


class AsyncMark(Mark):
    async def process(self, payload, ctx):
        await asyncio.sleep(0)
        return Mark.process(self, payload, ctx)


class InlineMark(Mark):
    inline = True


class SetTensor:
    inline = True

    def __init__(self, name, value, meta=None):
        self._name, self._value, self._meta = name, value, meta

    def process(self, payload, ctx):
        payload.tensors[self._name] = self._value
        if self._meta is not None:
            payload.metadata["meta"] = self._meta
        return payload


@pytest.fixture
def workers():
    pool = Workers(size=2)
    yield pool
    pool.close()


@pytest.fixture
def compiled(workers):
    def build(*steps, observer=None):
        return Plan("p", Graph("p", steps), workers, observer)

    return build


def step(name, after=None, stage=None, timeout_s=None):
    return Step(stage or Mark(name), name, after, timeout_s)


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ([], "pipeline 'p' has no stages"),
        ([step("a"), step("a")], "pipeline 'p' has two stages named 'a'"),
        ([step("")], "pipeline 'p' has a stage without a name: Mark"),
        ([step("a"), step("b", ("c",))], "pipeline 'p' stage 'b' comes after 'c', which is not there: 'a', 'b'"),
        ([step("a", ("a",))], "pipeline 'p' goes round in a circle: a -> a"),
        (
            [step("x", ()), step("a", ("x", "c")), step("b", ("a",)), step("c", ("b",))],
            "pipeline 'p' goes round in a circle: a -> b -> c -> a",
        ),
        (
            [step("a"), step("b", ("a",)), step("c", ("a",))],
            "pipeline 'p' ends in several stages: 'b', 'c'; join them with one that comes after all of them",
        ),
        ([step("a"), step("b", ("a", "a"))], "pipeline 'p' stage 'b' names a stage twice in `after`: 'a', 'a'"),
        ([step("a", timeout_s=0)], "pipeline 'p' stage 'a': timeout_s must be above 0, got 0"),
    ],
)
def test_wiring_mistakes_are_named(steps, message):
    with pytest.raises(ConfigError) as caught:
        Graph("p", steps)
    assert str(caught.value) == message


@given(st.data())
def test_any_acyclic_graph_is_sorted_and_any_order_of_writing_gives_the_same_ancestors(data):
    count = data.draw(st.integers(1, 8))
    after = [tuple(f"s{j}" for j in range(i) if data.draw(st.booleans())) for i in range(count)]
    everything = tuple(f"s{i}" for i in range(count))
    steps = [step(f"s{i}", needs) for i, needs in enumerate(after)] + [step("end", everything)]
    shuffled = Graph("p", data.draw(st.permutations(steps)))
    order = [s.name for s in shuffled.steps]
    for s in shuffled.steps:
        assert all(order.index(need) < order.index(s.name) for need in shuffled.before[s.name])
    assert shuffled.ancestors == Graph("p", steps).ancestors


def test_adjacent_blocking_stages_share_one_thread_hop(compiled):
    plan = compiled(
        step("a"), step("b"), step("i", stage=InlineMark("i")), step("c"), step("d", stage=AsyncMark("d")), step("e")
    )
    assert plan.groups == [("thread", ["a", "b", "i", "c"]), ("loop", ["d"]), ("thread", ["e"])]


def test_a_blocking_stage_with_a_time_limit_has_a_hop_of_its_own(compiled):
    assert compiled(step("a"), step("b", timeout_s=1), step("c")).groups == [
        ("thread", ["a"]),
        ("thread", ["b"]),
        ("thread", ["c"]),
    ]


async def test_stages_run_in_order_where_they_belong(compiled):
    plan = compiled(step("a"), step("b"), step("c", stage=AsyncMark("c")), step("d", stage=InlineMark("d")))
    facts = (await plan.run(Payload(), Context())).metadata
    assert facts["path"] == ["a", "b", "c", "d"]
    assert facts["a"] is facts["b"]
    assert facts["a"] is not threading.main_thread()
    assert facts["c"] is facts["d"] is threading.main_thread()


async def test_independent_branches_run_at_the_same_time(compiled):
    met = asyncio.Barrier(2)
    hall = threading.Barrier(2, timeout=10)

    async def meet(payload, ctx):
        await met.wait()
        return payload

    def meet_blocking(payload, ctx):
        hall.wait()
        return payload

    for function in (meet, meet_blocking):
        pipeline = Pipeline(
            "p", [Mark("a"), *(Step(function, n, ("a",)) for n in "bc"), Step(Mark("d"), "d", ("b", "c"))]
        )
        async with asyncio.timeout(10):
            await pipeline.run(Payload(), Context())
        await pipeline.close()


async def test_branches_get_their_own_dicts_and_share_arrays(compiled):
    array = np.ones(3)
    seen = {}

    class Look:
        inline = True

        def __init__(self, name):
            self._name = name

        def process(self, payload, ctx):
            seen[self._name] = payload
            payload.tensors[self._name] = array * 2
            return payload

    plan = compiled(
        step("a", stage=InlineMark("a")),
        step("b", ("a",), Look("b")),
        step("c", ("a",), Look("c")),
        step("d", ("b", "c")),
    )
    joined = await plan.run(Payload(tensors={"x": array}), Context())
    assert "c" not in seen["b"].tensors
    assert "b" not in seen["c"].tensors
    assert seen["b"].tensors["x"] is seen["c"].tensors["x"] is array
    assert set(joined.tensors) == {"x", "b", "c"}


async def test_two_branches_that_set_one_tensor_are_named(compiled):
    plan = compiled(
        step("a"),
        step("b", ("a",), SetTensor("x", np.zeros(1))),
        step("c", ("a",), SetTensor("x", np.ones(1))),
        step("d", ("b", "c")),
    )
    with pytest.raises(ConfigError, match="stage 'd': stages 'b' and 'c' both set tensor 'x'"):
        await plan.run(Payload(), Context())


async def test_a_tensor_changed_on_one_branch_wins_over_the_one_it_replaced(compiled):
    old, new = np.zeros(1), np.ones(1)
    for order in (("b", "c"), ("c", "b")):
        plan = compiled(
            step("a", stage=SetTensor("x", old)),
            step("b", ("a",), SetTensor("x", new)),
            step("c", ("a",), InlineMark("c")),
            step("d", order),
        )
        assert (await plan.run(Payload(), Context())).tensors["x"] is new


async def test_metadata_of_the_later_branch_wins(compiled):
    same = np.zeros(1)
    for order, expected in ((("b", "c"), 2), (("c", "b"), 1)):
        plan = compiled(
            step("a"),
            step("b", ("a",), SetTensor("x", same, 1)),
            step("c", ("a",), SetTensor("x", same, 2)),
            step("d", order),
        )
        assert (await plan.run(Payload(), Context())).metadata["meta"] == expected


async def test_results_meet_like_tensors_unless_one_is_empty(compiled):
    def answer(value):
        def process(payload, ctx):
            payload.result = value
            return payload

        return type("Answer", (), {"inline": True, "process": staticmethod(process)})()

    def plan(left, right):
        return compiled(
            step("a"), step("b", ("a",), answer(left)), step("c", ("a",), answer(right)), step("d", ("b", "c"))
        )

    assert (await plan({"k": 1}, None).run(Payload(), Context())).result == {"k": 1}
    assert (await plan(None, {"k": 1}).run(Payload(), Context())).result == {"k": 1}
    with pytest.raises(ConfigError, match="'b' and 'c' both set result"):
        await plan({"k": 1}, {"k": 1}).run(Payload(), Context())


async def test_nested_diamonds_and_several_starts(compiled):
    plan = compiled(
        step("a", ()),
        step("z", ()),
        step("b", ("a",)),
        step("c", ("a",)),
        step("d", ("b", "c")),
        step("e", ("d", "a", "z")),
    )
    facts = (await plan.run(Payload(), Context())).metadata
    assert set("abcdez") <= set(facts)


async def test_errors_of_the_tree_keep_their_class_and_gain_the_stage_once(compiled):
    shared = Overloaded("full", retry_after_s=7)

    def fail(payload, ctx):
        raise shared

    inner = Pipeline("inner", [Step(fail, "deep")])
    outer = Pipeline("outer", [Step(inner, "inner")])
    for _ in range(2):
        with pytest.raises(Overloaded) as caught:
            await outer.run(Payload(), Context())
        assert str(caught.value) == "stage 'deep': full"
        assert caught.value.retry_after_s == 7
    assert str(shared) == "full"
    await inner.close()
    await outer.close()


@pytest.mark.parametrize("where", [Mark, AsyncMark, InlineMark])
async def test_other_errors_become_failed_stages_with_their_cause(compiled, where):
    class Broken(where):
        def process(self, payload, ctx):
            raise KeyError("nose")

    with pytest.raises(StageFailed) as caught:
        await compiled(step("a"), step("b", stage=Broken("b"))).run(Payload(), Context())
    assert (caught.value.stage, str(caught.value)) == ("b", "stage 'b': KeyError: 'nose'")
    assert isinstance(caught.value.__cause__, KeyError)


async def test_an_error_on_one_branch_ends_the_others(compiled):
    left = asyncio.Event()

    async def wait(payload, ctx):
        try:
            await asyncio.sleep(60)
        finally:
            left.set()

    async def fail(payload, ctx):
        await asyncio.sleep(0)
        raise InvalidInput("no")

    pipeline = Pipeline("p", [Step(wait, "b", ()), Step(fail, "c", ()), Step(Mark("d"), "d", ("b", "c"))])
    with pytest.raises(InvalidInput, match="stage 'c': no"):
        await pipeline.run(Payload(), Context())
    assert left.is_set()
    await pipeline.close()


@pytest.mark.parametrize("answer", [None, "text"])
async def test_a_stage_that_returns_no_payload_is_told(compiled, answer):
    pipeline = Pipeline("p", [Step(lambda payload, ctx: answer, "a")])
    with pytest.raises(StageFailed, match=f"stage 'a': process returned {type(answer).__name__}, expected Payload"):
        await pipeline.run(Payload(), Context())
    await pipeline.close()


async def test_a_plain_stage_that_returns_a_coroutine_is_told(compiled):
    async def later(payload, ctx):
        return payload

    pipeline = Pipeline("p", [Step(lambda p, c: later(payload=p, ctx=c), "a")])
    with pytest.raises(StageFailed, match="declare `process` with `async def`"):
        await pipeline.run(Payload(), Context())
    await pipeline.close()


class Hang:
    """A blocking stage that waits until it is let go."""

    def __init__(self):
        self.started, self.go = threading.Event(), threading.Event()

    def process(self, payload, ctx):
        self.started.set()
        assert self.go.wait(20)
        return payload


async def until(condition):
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - another thread makes it true
            await asyncio.sleep(0.001)


async def test_a_missed_deadline_names_the_stage_and_leaves_the_thread_behind(workers):
    hang = Hang()
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


async def test_the_deadline_of_a_blocking_stage_needs_no_help(workers):
    hang = Hang()
    pipeline = Pipeline("p", [Step(hang, "hang")], workers=workers)
    with pytest.raises(DeadlineExceeded, match="stage 'hang': request r: deadline exceeded"):
        await pipeline.run(Payload(), Context("r", timeout_s=0.02))
    hang.go.set()
    await until(lambda: workers.unfinished == 0)


@pytest.mark.parametrize("blocking", [True, False])
async def test_a_stage_has_a_time_limit_of_its_own(compiled, workers, blocking):
    hang = Hang()
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
async def test_cancelling_the_context_from_another_thread_wakes_the_wait(workers, blocking):
    hang = Hang()
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


async def test_cancellation_wakes_every_branch(workers):
    async def sleep(payload, ctx):
        await asyncio.sleep(60)

    pipeline = Pipeline(
        "p", [Step(sleep, "a", ()), Step(sleep, "b", ()), Step(Mark("c"), "c", ("a", "b"))], workers=workers
    )
    ctx = Context("r", timeout_s=0.02)
    with pytest.raises(DeadlineExceeded, match=r"stage '[ab]': request r: deadline exceeded"):
        await pipeline.run(Payload(), ctx)


async def test_a_branch_has_its_own_time_limit_and_its_values_still_meet(compiled, workers):
    hang = Hang()
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


async def test_threads_held_by_the_dead_are_bounded_and_said(workers):
    hangs = [Hang(), Hang()]
    for hang in hangs:
        ctx = Context()
        task = asyncio.create_task(Pipeline("p", [Step(hang, "hang")], workers=workers).run(Payload(), ctx))
        await until(hang.started.is_set)
        ctx.cancel()
        with pytest.raises(Cancelled):
            await task
    quick = Pipeline("p", [Mark("a")], workers=workers)
    with pytest.raises(Overloaded, match="all 2 worker threads are held by stages that outlived their deadline"):
        await quick.run(Payload(), Context())
    for hang in hangs:
        hang.go.set()
    await until(lambda: workers.unfinished == 0)
    await quick.run(Payload(), Context())


async def test_the_queue_for_threads_is_bounded_and_forgets_the_dead():
    workers = Workers(size=1, max_waiting=1)
    hang = Hang()
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


async def test_the_observer_hears_of_every_stage_and_every_error(workers):
    heard = []

    class Ear:
        def stage(self, pipeline, stage, ctx, started_s, seconds, error):
            assert started_s <= time.perf_counter()
            assert seconds >= 0
            heard.append((pipeline, stage, ctx.request_id, type(error)))

    def fail(payload, ctx):
        raise ValueError

    pipeline = Pipeline(
        "p", [Mark("a"), AsyncMark("b"), Mark("c"), Step(fail, "d"), Mark("e")], workers=workers, observer=Ear()
    )
    with pytest.raises(StageFailed):
        await pipeline.run(Payload(), Context("r"))
    quiet = type(None)
    assert heard == [
        ("p", "a", "r", quiet),
        ("p", "b", "r", quiet),
        ("p", "c", "r", quiet),
        ("p", "d", "r", StageFailed),
    ]


async def test_many_runs_at_once_do_not_mix(compiled):
    plan = compiled(
        step("a"),
        step("b", ("a",), AsyncMark("b")),
        step("c", ("a",)),
        step("d", ("b", "c"), type("Id", (), {"process": lambda self, p, c: p})()),
    )

    async def one(i):
        answer = await plan.run(Payload(text=str(i), tensors={"x": np.array([i])}), Context())
        assert (answer.text, answer.tensors["x"].tolist()) == (str(i), [i])

    await asyncio.gather(*(one(i) for i in range(200)))


def test_headrace_errors_of_every_class_can_gain_a_stage():
    from headrace import errors
    from headrace.serve.plan import _with_stage

    for name in errors.__all__:
        kind = getattr(errors, name)
        extra = {"MissingExtra": ("pkg", "extra"), "StageFailed": ("inner", "why")}.get(name, ("why",))
        error = kind(*extra)
        named = _with_stage(error, "s")
        assert type(named) is kind
        assert str(named).startswith("stage ")
        assert {k: v for k, v in vars(named).items() if k != "stage"} == {
            k: v for k, v in vars(error).items() if k != "stage"
        }
        assert isinstance(named, HeadraceError)
