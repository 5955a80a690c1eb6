import asyncio
import threading

import numpy as np
import pytest

from headrace.core.context import Context
from headrace.errors import ConfigError, InvalidInput
from headrace.serve.graph import Step
from headrace.serve.pipeline import Pipeline
from headrace.serve.protocol import Payload


class SetTensor:
    inline = True

    def __init__(self, name, value, meta=None):
        self._name, self._value, self._meta = name, value, meta

    def process(self, payload, ctx):
        payload.tensors[self._name] = self._value
        if self._meta is not None:
            payload.metadata["meta"] = self._meta
        return payload


async def test_independent_branches_run_at_the_same_time(compiled, mark):
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
            "p", [mark("a"), *(Step(function, n, ("a",)) for n in "bc"), Step(mark("d"), "d", ("b", "c"))]
        )
        async with asyncio.timeout(10):
            await pipeline.run(Payload(), Context())
        await pipeline.close()


async def test_branches_get_their_own_dicts_and_share_arrays(compiled, mark, step):
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
        step("a", stage=mark("a", "inline")),
        step("b", ("a",), Look("b")),
        step("c", ("a",), Look("c")),
        step("d", ("b", "c")),
    )
    joined = await plan.run(Payload(tensors={"x": array}), Context())
    assert "c" not in seen["b"].tensors
    assert "b" not in seen["c"].tensors
    assert seen["b"].tensors["x"] is seen["c"].tensors["x"] is array
    assert set(joined.tensors) == {"x", "b", "c"}


async def test_two_branches_that_set_one_tensor_are_named(compiled, step):
    plan = compiled(
        step("a"),
        step("b", ("a",), SetTensor("x", np.zeros(1))),
        step("c", ("a",), SetTensor("x", np.ones(1))),
        step("d", ("b", "c")),
    )
    with pytest.raises(ConfigError, match="stage 'd': stages 'b' and 'c' both set tensor 'x'"):
        await plan.run(Payload(), Context())


async def test_a_tensor_changed_on_one_branch_wins_over_the_one_it_replaced(compiled, mark, step):
    old, new = np.zeros(1), np.ones(1)
    for order in (("b", "c"), ("c", "b")):
        plan = compiled(
            step("a", stage=SetTensor("x", old)),
            step("b", ("a",), SetTensor("x", new)),
            step("c", ("a",), mark("c", "inline")),
            step("d", order),
        )
        assert (await plan.run(Payload(), Context())).tensors["x"] is new


async def test_metadata_of_the_later_branch_wins(compiled, step):
    same = np.zeros(1)
    for order, expected in ((("b", "c"), 2), (("c", "b"), 1)):
        plan = compiled(
            step("a"),
            step("b", ("a",), SetTensor("x", same, 1)),
            step("c", ("a",), SetTensor("x", same, 2)),
            step("d", order),
        )
        assert (await plan.run(Payload(), Context())).metadata["meta"] == expected


async def test_results_meet_like_tensors_unless_one_is_empty(compiled, step):
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


async def test_nested_diamonds_and_several_starts(compiled, step):
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


async def test_an_error_on_one_branch_ends_the_others(compiled, mark):
    left = asyncio.Event()

    async def wait(payload, ctx):
        try:
            await asyncio.sleep(60)
        finally:
            left.set()

    async def fail(payload, ctx):
        await asyncio.sleep(0)
        raise InvalidInput("no")

    pipeline = Pipeline("p", [Step(wait, "b", ()), Step(fail, "c", ()), Step(mark("d"), "d", ("b", "c"))])
    with pytest.raises(InvalidInput, match="stage 'c': no"):
        await pipeline.run(Payload(), Context())
    assert left.is_set()
    await pipeline.close()


async def test_many_runs_at_once_do_not_mix(compiled, mark, step):
    plan = compiled(
        step("a"),
        step("b", ("a",), mark("b", "loop")),
        step("c", ("a",)),
        step("d", ("b", "c"), type("Id", (), {"process": lambda self, p, c: p})()),
    )

    async def one(i):
        answer = await plan.run(Payload(text=str(i), tensors={"x": np.array([i])}), Context())
        assert (answer.text, answer.tensors["x"].tolist()) == (str(i), [i])

    await asyncio.gather(*(one(i) for i in range(200)))
