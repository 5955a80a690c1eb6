import asyncio
import threading
import time

import pytest

from headrace.core.context import Context
from headrace.errors import HeadraceError, Overloaded, StageFailed
from headrace.serve.graph import Step
from headrace.serve.pipeline import Pipeline
from headrace.serve.protocol import Payload


def test_adjacent_blocking_stages_share_one_thread_hop(compiled, mark, step):
    plan = compiled(
        step("a"),
        step("b"),
        step("i", stage=mark("i", "inline")),
        step("c"),
        step("d", stage=mark("d", "loop")),
        step("e"),
    )
    assert plan.groups == [("thread", ["a", "b", "i", "c"]), ("loop", ["d"]), ("thread", ["e"])]


def test_a_blocking_stage_with_a_time_limit_has_a_hop_of_its_own(compiled, step):
    assert compiled(step("a"), step("b", timeout_s=1), step("c")).groups == [
        ("thread", ["a"]),
        ("thread", ["b"]),
        ("thread", ["c"]),
    ]


async def test_stages_run_in_order_where_they_belong(compiled, mark, step):
    plan = compiled(step("a"), step("b"), step("c", stage=mark("c", "loop")), step("d", stage=mark("d", "inline")))
    facts = (await plan.run(Payload(), Context())).metadata
    assert facts["path"] == ["a", "b", "c", "d"]
    assert facts["a"] is facts["b"]
    assert facts["a"] is not threading.main_thread()
    assert facts["c"] is facts["d"] is threading.main_thread()


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


@pytest.mark.parametrize("where", ["thread", "loop", "inline"])
async def test_other_errors_become_failed_stages_with_their_cause(compiled, mark, step, where):
    broken = mark("b", where)

    def fail(payload, ctx):
        raise KeyError("nose")

    async def fail_later(payload, ctx):
        await asyncio.sleep(0)
        raise KeyError("nose")

    broken.process = fail_later if where == "loop" else fail
    with pytest.raises(StageFailed) as caught:
        await compiled(step("a"), step("b", stage=broken)).run(Payload(), Context())
    assert (caught.value.stage, str(caught.value)) == ("b", "stage 'b': KeyError: 'nose'")
    assert isinstance(caught.value.__cause__, KeyError)


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


async def test_the_observer_hears_of_every_stage_and_every_error(workers, mark):
    heard = []

    class Ear:
        def stage(self, pipeline, stage, ctx, started_s, seconds, error):
            assert started_s <= time.perf_counter()
            assert seconds >= 0
            heard.append((pipeline, stage, ctx.request_id, type(error)))

    def fail(payload, ctx):
        raise ValueError

    pipeline = Pipeline(
        "p", [mark("a"), mark("b", "loop"), mark("c"), Step(fail, "d"), mark("e")], workers=workers, observer=Ear()
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
