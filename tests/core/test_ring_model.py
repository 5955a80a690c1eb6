import collections

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from headrace.core.ring import MpmcRing, SpscRing
from headrace.errors import ChannelClosed, DeadlineExceeded


class RingModel(RuleBasedStateMachine):
    """Any sequence of calls does to the ring what it does to a bounded deque."""

    kind = SpscRing

    @initialize(log2_slots=st.integers(1, 3))
    def make(self, log2_slots):
        self.ring = self.kind.create(slots=1 << log2_slots, slot_bytes=16)
        self.model = collections.deque()
        self.closed = False

    @property
    def room(self):
        return self.ring.slots - len(self.model)

    @rule(messages=st.lists(st.binary(max_size=16), max_size=12))
    @precondition(lambda self: not self.closed)
    def push_many(self, messages):
        fit = min(self.room, len(messages))
        if messages and not fit:
            with pytest.raises(DeadlineExceeded):
                self.ring.push_many(messages, timeout_s=0)
        else:
            assert self.ring.push_many(messages, timeout_s=0) == fit
        self.model.extend(messages[:fit])

    @rule(message=st.binary(max_size=16))
    @precondition(lambda self: not self.closed)
    def try_push(self, message):
        fits = self.room > 0
        assert self.ring.try_push(message) == fits
        if fits:
            self.model.append(message)

    @rule(message=st.binary(max_size=16), keep=st.booleans())
    @precondition(lambda self: not self.closed and self.room > 0)
    def in_place(self, message, keep):
        self.ring.reserve(0)[: len(message)] = message
        if keep:
            self.ring.commit(len(message))
            self.model.append(message)
        elif self.kind is SpscRing:
            self.ring.abandon()
        else:  # an abandoned claim holds its place until a consumer gets there: keep the model simple
            self.ring.commit(0)
            self.model.append(b"")

    @rule()
    def try_pop(self):
        if self.model:
            assert self.ring.try_pop() == self.model.popleft()
        elif self.closed:
            with pytest.raises(ChannelClosed):
                self.ring.try_pop()
        else:
            assert self.ring.try_pop() is None

    @rule(limit=st.integers(1, 12))
    @precondition(lambda self: len(self.model) > 0)
    def pop_many(self, limit):
        expected = [self.model.popleft() for _ in range(min(limit, len(self.model)))]
        assert self.ring.pop_many(limit, timeout_s=0) == expected

    @rule()
    @precondition(lambda self: len(self.model) > 0)
    def peek(self):
        assert bytes(self.ring.peek(0)) == self.model.popleft()
        self.ring.release()

    @rule()
    def length(self):
        assert len(self.ring) == len(self.model)

    @rule()
    def close(self):
        self.ring.close()
        self.closed = True
        with pytest.raises(ChannelClosed):
            self.ring.push(b"")


class MpmcModel(RingModel):
    kind = MpmcRing


TestSpscModel = RingModel.TestCase
TestSpscModel.settings = settings(max_examples=40, deadline=None)
TestMpmcModel = MpmcModel.TestCase
TestMpmcModel.settings = settings(max_examples=40, deadline=None)
