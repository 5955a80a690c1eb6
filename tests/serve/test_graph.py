import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import ConfigError
from headrace.serve.graph import Graph, Step


class Mark:
    """A stage to wire up; no test here runs it."""

    def process(self, payload, ctx):
        return payload


def step(name, after=None, timeout_s=None):
    return Step(Mark(), name, after, timeout_s)


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
