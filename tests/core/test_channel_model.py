from collections import deque

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headrace.core.channel import Channel, select
from headrace.core.context import Context
from headrace.errors import Cancelled, ChannelClosed, DeadlineExceeded


class ChannelAgainstDeque(RuleBasedStateMachine):
    """Whatever one thread does with a channel, a plain deque with a bound and a flag predicts."""

    def __init__(self):
        super().__init__()
        self.channel = Channel(3)
        self.model = deque()
        self.closed = False
        self.ended = Context("ended")
        self.ended.cancel()

    @rule(item=st.integers())
    def send(self, item):
        if self.closed:
            with pytest.raises(ChannelClosed):
                self.channel.send(item, timeout_s=0)
            with pytest.raises(ChannelClosed):
                self.channel.try_send(item)
        elif len(self.model) == 3:
            assert not self.channel.try_send(item)
            with pytest.raises(DeadlineExceeded):
                self.channel.send(item, timeout_s=0)
        else:
            self.channel.send(item, timeout_s=0)
            self.model.append(item)

    @rule(item=st.integers())
    @precondition(lambda self: len(self.model) < 3 and not self.closed)
    def try_send(self, item):
        assert self.channel.try_send(item)
        self.model.append(item)

    @rule()
    def recv(self):
        if self.model:
            assert self.channel.recv(timeout_s=0) == self.model.popleft()
        elif self.closed:
            with pytest.raises(ChannelClosed):
                self.channel.recv()
            with pytest.raises(ChannelClosed):
                self.channel.try_recv()
        else:
            with pytest.raises(DeadlineExceeded):
                self.channel.recv(timeout_s=0)
            assert self.channel.try_recv() is None
            assert self.channel.try_recv("nothing") == "nothing"

    @rule()
    @precondition(lambda self: self.model)
    def try_recv(self):
        assert self.channel.try_recv() == self.model.popleft()

    @rule()
    @precondition(lambda self: self.model)
    def select(self):
        assert select([Channel(1), self.channel]) == (self.channel, self.model.popleft())

    @rule()
    def an_ended_context_moves_nothing(self):
        with pytest.raises(Cancelled):
            self.channel.send(0, ctx=self.ended)
        with pytest.raises(Cancelled):
            self.channel.recv(ctx=self.ended)

    @rule()
    @precondition(lambda self: len(self.model) == 3)
    def close(self):
        self.channel.close()
        self.closed = True

    @invariant()
    def agrees(self):
        assert len(self.channel) == len(self.model)
        assert self.channel.closed is self.closed
        assert not self.channel._senders
        assert not self.channel._receivers


TestChannelAgainstDeque = ChannelAgainstDeque.TestCase
TestChannelAgainstDeque.settings = settings(max_examples=50, stateful_step_count=30, deadline=None)
