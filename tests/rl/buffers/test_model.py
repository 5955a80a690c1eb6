"""Random sequences of operations beside a plain NumPy replay memory: whatever is done, both hold and give the same."""

import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headrace.rl.buffers import Field, NStep, PrioritisedReplay

FIELDS = (Field("obs", (3,)), Field("number", (), np.int64), Field("flag", (), np.bool_))


def rows(first, n):
    numbers = np.arange(first, first + n)
    return {
        "obs": (numbers[:, None] * 3 + np.arange(3)).astype(np.float32),
        "number": numbers,
        "flag": numbers % 3 == 0,
    }


class Oracle:
    """Arrays, an index and a list of leaves: no tree, no chunks, no memory shared."""

    def __init__(self, capacity, alpha, epsilon):
        self.capacity, self.alpha, self.epsilon = capacity, np.float32(alpha), np.float32(epsilon)
        self.sequences = np.full(capacity, -1)
        self.leaves = np.zeros(capacity)
        self.arrays = {name: np.zeros((capacity, *a.shape[1:]), a.dtype) for name, a in rows(0, 1).items()}
        self.next, self.newest = 0, 1.0

    def push(self, given):
        for i in range(len(given["number"])):
            slot = self.next % self.capacity
            for name, array in self.arrays.items():
                array[slot] = given[name][i]
            self.sequences[slot], self.leaves[slot] = self.next, self.newest
            self.next += 1

    def clear(self):
        self.sequences[:], self.leaves[:] = -1, 0.0

    def update(self, batch, priorities):
        updated = 0
        for slot, sequence, priority in zip(batch.slots, batch.sequences, priorities, strict=True):
            if sequence == -1 or self.sequences[slot] != sequence:
                continue
            self.leaves[slot] = np.float32(np.power(priority + self.epsilon, self.alpha))
            self.newest = max(self.newest, self.leaves[slot])
            updated += 1
        return updated


class Machine(RuleBasedStateMachine):
    @initialize(capacity=st.integers(1, 90), seed=st.integers(0, 2**64 - 1))
    def make(self, capacity, seed):
        self.buffer = PrioritisedReplay(FIELDS, capacity, seed=seed, alpha=0.7, epsilon=0.01)
        self.other = PrioritisedReplay.attach(self.buffer.name)
        self.oracle = Oracle(capacity, 0.7, 0.01)
        self.last = None
        self.numbers = itertools.count()

    @rule(n=st.integers(0, 200), there=st.booleans())
    def push(self, n, there):
        made = rows(next(self.numbers) * 1000, n)
        assert (self.other if there else self.buffer).push(**made) == n
        self.oracle.push(made)

    @precondition(lambda self: (self.oracle.sequences >= 0).any())
    @rule(n=st.integers(1, 70), beta=st.floats(0, 1))
    def sample(self, n, beta):
        self.last = batch = self.buffer.sample(n, beta=beta)
        assert (self.oracle.sequences[batch.slots] == batch.sequences).all()
        for name, array in self.oracle.arrays.items():
            assert np.array_equal(array[batch.slots], batch[name])
        leaves = self.oracle.leaves[batch.slots]
        assert (leaves > 0).all()
        np.testing.assert_allclose(batch.weights, (leaves.min() / leaves) ** beta, rtol=1e-5)
        # One from each of n equal parts: the i-th row's share of the sum overlaps the i-th part.
        ends = np.cumsum(self.oracle.leaves)
        total, part = ends[-1], np.arange(n)
        slack = total * 1e-9
        assert (ends[batch.slots] > part * total / n - slack).all()
        assert (ends[batch.slots] - leaves < (part + 1) * total / n + slack).all()

    @precondition(lambda self: self.last is not None)
    @rule(data=st.data())
    def update(self, data):
        values = st.floats(0, 1000, width=32)
        priorities = np.array(data.draw(st.lists(values, min_size=len(self.last), max_size=len(self.last))), np.float32)
        assert self.buffer.update_priorities(self.last, priorities) == self.oracle.update(self.last, priorities)

    @rule()
    def clear(self):
        self.buffer.clear()
        self.oracle.clear()

    @invariant()
    def same_rows(self):
        batch = self.other.gather(np.arange(self.oracle.capacity))
        held = self.oracle.sequences >= 0
        assert (batch.sequences == self.oracle.sequences).all()
        for name, array in self.oracle.arrays.items():
            assert np.array_equal(batch[name][held], array[held])
        assert len(self.buffer) == held.sum()
        assert self.buffer.check_integrity().in_flight == 0
        assert self.buffer.stats == (0, 0, 0)


Machine.TestCase.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
TestReplayModel = Machine.TestCase


def n_step_rows(steps, n, gamma):
    """The rows of one stream, straight from the definition of the n-step return."""
    made = []
    for t in range(len(steps)):
        total, power = 0.0, 1.0
        for k, step in enumerate(steps[t : t + n], 1):
            total, power = total + power * float(step["reward"]), power * gamma
            ended = step["terminated"] or step["truncated"]
            if ended or k == n:
                discount = 0.0 if step["terminated"] else power
                made.append((steps[t]["obs"], total, step["final_obs" if ended else "next_obs"], discount))
                break
    return made


STEP = st.tuples(st.floats(-10, 10, width=32), st.booleans(), st.integers(0, 9), st.integers(0, 9), st.integers(0, 9))


@settings(max_examples=80, deadline=None)
@given(
    n=st.integers(1, 6),
    gamma=st.floats(0, 1),
    streams=st.integers(1, 4),
    data=st.data(),
)
def test_n_step_rows_follow_from_the_definition(n, gamma, streams, data):
    fields = [Field("obs"), Field("reward"), Field("next_obs"), Field("discount")]
    buffer = PrioritisedReplay(fields, 1000)
    assembler = NStep(buffer, streams, n, gamma)
    taken = [[] for _ in range(streams)]
    pushed = 0
    for t in range(data.draw(st.integers(1, 25))):
        drawn = data.draw(st.lists(STEP, min_size=streams, max_size=streams))
        step = {
            "obs": np.array([100 * t + s for s in range(streams)], np.float32),
            "reward": np.array([d[0] for d in drawn], np.float32),
            "next_obs": np.array([100 * t + 100 + s for s in range(streams)], np.float32),
            "final_obs": np.array([-t - 1.0] * streams, np.float32),
            "terminated": np.array([d[2] == 0 for d in drawn]),
            "truncated": np.array([d[3] == 0 for d in drawn]),
        }
        active = np.array([d[4] != 0 for d in drawn])
        pushed += assembler.push(**step, active=active)
        for s in range(streams):
            if active[s]:
                taken[s].append({name: array[s] for name, array in step.items()})
    batch = buffer.gather(np.arange(pushed))
    got = [[] for _ in range(streams)]
    for obs, *rest in zip(*(batch[field.name].tolist() for field in fields), strict=True):
        got[int(obs) % 100].append((obs, *rest))
    for s in range(streams):
        expected = n_step_rows(taken[s], n, gamma)
        assert len(got[s]) == len(expected)
        if expected:
            np.testing.assert_allclose(got[s], expected, rtol=1e-6, atol=1e-6)
