import asyncio
import threading
import time
from collections import deque

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headrace.core.channel import Channel, aselect, select
from headrace.core.context import Context
from headrace.errors import Cancelled, ChannelClosed, ConfigError, DeadlineExceeded, Unavailable


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


def run_threads(*functions):
    """Run every function in a thread of its own to the end; the first error of any is raised here."""
    errors = []

    def guard(function):
        try:
            function()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guard, args=(function,), daemon=True) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive(), "a thread hangs"
    if errors:
        raise errors[0]


def wait_until(condition):
    limit = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < limit, "it never happened"
        time.sleep(0.001)


def assert_idle(*channels):
    for channel in channels:
        assert not channel._senders
        assert not channel._receivers


@pytest.mark.parametrize("capacity", [0, -1])
def test_a_channel_must_hold_something(capacity):
    with pytest.raises(ConfigError, match=f"at least 1, got {capacity}"):
        Channel(capacity)


def test_an_empty_channel_is_still_true():
    assert Channel(1)


def test_select_needs_a_channel():
    with pytest.raises(ConfigError, match="at least one channel"):
        select([])


def test_a_full_channel_holds_its_sender_back():
    channel = Channel(1)
    channel.send("a")
    sent = threading.Event()

    def sender():
        channel.send("b")
        sent.set()

    def receiver():
        wait_until(lambda: channel._senders)
        assert not sent.is_set()
        assert channel.recv() == "a"
        assert channel.recv() == "b"

    run_threads(sender, receiver)
    assert_idle(channel)


def test_close_drains_receivers_and_refuses_senders():
    channel = Channel(2)
    channel.send(1)
    channel.send(2)

    def blocked_sender():
        with pytest.raises(ChannelClosed):
            channel.send(3)

    def closer():
        wait_until(lambda: channel._senders)
        channel.close()
        channel.close()

    run_threads(blocked_sender, closer)
    assert list(channel) == [1, 2]
    assert_idle(channel)


def test_close_wakes_every_receiver():
    channel = Channel(1)

    def receiver():
        with pytest.raises(ChannelClosed):
            channel.recv()

    def closer():
        wait_until(lambda: len(channel._receivers) == 3)
        channel.close()

    run_threads(receiver, receiver, receiver, closer)
    assert_idle(channel)


def test_the_context_wakes_a_sleeper_with_its_own_error():
    channel, ctx = Channel(1), Context()
    reason = Unavailable("draining")

    def receiver():
        with pytest.raises(Unavailable) as caught:
            channel.recv(timeout_s=60, ctx=ctx)
        assert caught.value is reason

    def canceller():
        wait_until(lambda: channel._receivers)
        ctx.cancel(reason)

    run_threads(receiver, canceller)
    assert_idle(channel)
    assert not ctx._callbacks


def test_the_earlier_of_timeout_and_deadline_ends_the_wait():
    channel = Channel(1)
    with pytest.raises(DeadlineExceeded, match="request r1"):
        channel.recv(timeout_s=60, ctx=Context("r1", timeout_s=0.01))
    ctx = Context(timeout_s=60)
    with pytest.raises(DeadlineExceeded, match=r"0\.01 s"):
        channel.recv(timeout_s=0.01, ctx=ctx)
    assert ctx.error is None
    assert not ctx._callbacks
    channel.send(1)
    with pytest.raises(DeadlineExceeded):
        channel.send(2, timeout_s=0.01)
    assert_idle(channel)
    assert channel.recv() == 1


async def test_async_ends_wait_time_out_and_close():
    channel, ctx = Channel(1), Context()
    with pytest.raises(DeadlineExceeded):
        await channel.arecv(timeout_s=0.01)
    with pytest.raises(DeadlineExceeded, match="request r2"):
        await channel.arecv(ctx=Context("r2", timeout_s=0.01))
    receiving = asyncio.create_task(channel.arecv(ctx=ctx))
    await asyncio.sleep(0)
    ctx.cancel(Unavailable("gone"))
    with pytest.raises(Unavailable):
        await receiving
    receiving = asyncio.create_task(channel.arecv())
    await asyncio.sleep(0)
    await channel.asend(1)
    assert await receiving == 1
    await channel.asend(2)
    sending = asyncio.create_task(channel.asend(3))
    await asyncio.sleep(0)
    assert [await channel.arecv(), await channel.arecv()] == [2, 3]
    await sending
    channel.close()
    with pytest.raises(ChannelClosed):
        await channel.asend(4)
    assert [item async for item in channel] == []
    assert_idle(channel)


async def test_a_cancelled_receiver_loses_no_item_and_passes_its_wake_on():
    channel = Channel(4)
    first = asyncio.create_task(channel.arecv())
    second = asyncio.create_task(channel.arecv())
    await asyncio.sleep(0)
    channel.send("item")  # wakes the first, which is cancelled before it can run
    first.cancel()
    assert await asyncio.wait_for(second, 5) == "item"
    assert first.cancelled()
    assert_idle(channel)


async def test_a_receiver_that_was_robbed_keeps_its_place():
    channel, order = Channel(1), []

    async def receive(name):
        order.append((name, await channel.arecv()))

    tasks = [asyncio.create_task(receive(name)) for name in ("first", "second")]
    await asyncio.sleep(0)
    channel.send("robbed")
    assert channel.try_recv() == "robbed"
    await asyncio.sleep(0.01)  # the first one finds nothing and enrols again
    for item in ("a", "b"):
        channel.send(item)
        await asyncio.sleep(0.01)
    assert order == [("first", "a"), ("second", "b")]
    await asyncio.gather(*tasks)
    assert_idle(channel)


async def test_a_cancelled_sender_passes_its_place_on():
    channel = Channel(1)
    channel.send("a")
    first = asyncio.create_task(channel.asend("never"))
    second = asyncio.create_task(channel.asend("b"))
    await asyncio.sleep(0)
    assert channel.recv() == "a"
    first.cancel()
    await asyncio.wait_for(second, 5)
    assert [channel.try_recv(), channel.try_recv()] == ["b", None]
    assert_idle(channel)


async def test_a_selecting_task_passes_on_the_wake_it_did_not_use():
    left, right = Channel(1), Channel(1)
    both = asyncio.create_task(aselect([left, right]))
    await asyncio.sleep(0)
    other = asyncio.create_task(right.arecv())
    await asyncio.sleep(0)
    left.send("l")
    right.send("r")  # takes `both` out of the queue of `right`, which it leaves without an item
    assert await asyncio.wait_for(both, 5) == (left, "l")
    assert await asyncio.wait_for(other, 5) == "r"
    assert_idle(left, right)


async def fall_asleep(coroutine):
    """Run a coroutine by hand to its first sleep; nobody will run it any further."""
    coroutine.send(None)
    return coroutine


def test_a_sleeper_on_a_dead_loop_is_passed_over():
    channel, got = Channel(1), []
    dead = asyncio.run(fall_asleep(channel.arecv()))
    assert len(channel._receivers) == 1

    def sender():
        wait_until(lambda: len(channel._receivers) == 2)
        channel.send("item")

    run_threads(lambda: got.append(channel.recv()), sender)
    assert got == ["item"]
    dead.close()
    assert_idle(channel)


async def test_a_woken_task_that_is_thrown_away_passes_its_wake_on():
    channel = Channel(1)
    thrown_away = await fall_asleep(channel.arecv())
    other = asyncio.create_task(channel.arecv())
    await asyncio.sleep(0)
    channel.send("item")
    thrown_away.close()
    assert await asyncio.wait_for(other, 5) == "item"
    assert_idle(channel)


def test_select_is_fair_and_passes_over_drained_channels():
    channels = [Channel(10) for _ in range(3)]
    for number, channel in enumerate(channels):
        for _ in range(3):
            channel.send(number)
    assert [select(channels)[1] for _ in range(6)] == [0, 1, 2, 0, 1, 2]
    channels[1].close()
    assert [select(channels)[1] for _ in range(3)] == [0, 1, 2]
    with pytest.raises(DeadlineExceeded):
        select(channels, timeout_s=0)
    channels[0].close()
    channels[2].close()
    with pytest.raises(ChannelClosed):
        select(channels)


def test_select_wakes_when_the_last_channel_closes():
    channels = [Channel(1), Channel(1)]

    def selecting():
        with pytest.raises(ChannelClosed):
            select(channels)

    def closing():
        wait_until(lambda: channels[1]._receivers)
        channels[0].close()
        channels[1].close()

    run_threads(selecting, closing)
    assert_idle(*channels)


def test_torture_threads():
    """Every item arrives once, and the items of one producer arrive in order at each consumer."""
    channel, producers, consumers, count = Channel(3), 4, 3, 2000
    received = [[] for _ in range(consumers)]

    def produce(name):
        for number in range(count):
            channel.send((name, number))

    def consume(mine):
        mine.extend(channel)

    def close_after(functions):
        run_threads(*functions)
        channel.close()

    run_threads(
        lambda: close_after([lambda name=name: produce(name) for name in range(producers)]),
        *[lambda mine=mine: consume(mine) for mine in received],
    )
    everything = sorted(item for mine in received for item in mine)
    assert everything == [(name, number) for name in range(producers) for number in range(count)]
    for mine in received:
        for name in range(producers):
            numbers = [number for who, number in mine if who == name]
            assert numbers == sorted(numbers)
    assert_idle(channel)


def test_torture_select():
    channels = [Channel(1), Channel(2)]
    count, got = 1500, [[], []]

    def produce(channel):
        for number in range(count):
            channel.send(number)
        channel.close()

    def consume(mine):
        while True:
            try:
                mine.append(select(channels, timeout_s=20))
            except ChannelClosed:
                return

    run_threads(
        lambda: produce(channels[0]),
        lambda: produce(channels[1]),
        lambda: consume(got[0]),
        lambda: consume(got[1]),
    )
    for channel in channels:
        assert sorted(item for mine in got for source, item in mine if source is channel) == list(range(count))
    assert_idle(*channels)


def test_torture_cancelled_tasks_mixed_with_threads_and_loops():
    """Receivers on two event loops are cancelled at random moments while threads and tasks send: nothing is lost."""
    channel, count, got = Channel(2), 1200, []

    def produce():
        for number in range(count):
            channel.send(("thread", number), timeout_s=20)

    async def asend_all():
        for number in range(count):
            await channel.asend(("task", number), timeout_s=20)

    async def receive_with_cancels(seed):
        async def collect():
            async for item in channel:
                got.append(item)  # noqa: PERF401 - a comprehension cut short would drop what it holds

        rounds = 0
        while True:
            task = asyncio.create_task(collect())
            for _ in range((rounds * 7 + seed) % 5):
                await asyncio.sleep(0)
            if not channel.closed:
                task.cancel()
            try:
                await task
            except asyncio.CancelledError:
                rounds += 1
            else:
                return

    def produce_all():
        run_threads(produce, lambda: asyncio.run(asend_all()))
        channel.close()

    def timed_out_receiver():
        while True:
            try:
                got.append(channel.recv(timeout_s=0.0005))
            except DeadlineExceeded:
                continue
            except ChannelClosed:
                return

    run_threads(
        produce_all,
        timed_out_receiver,
        lambda: asyncio.run(receive_with_cancels(1)),
        lambda: asyncio.run(receive_with_cancels(3)),
    )
    assert sorted(got) == [(kind, number) for kind in ("task", "thread") for number in range(count)]
    assert_idle(channel)


def test_torture_cancelled_senders():
    """A cancelled send either happened or did not: what arrives is what was not cancelled, plus nothing."""
    channel, got, sent = Channel(1), [], []

    async def send_with_cancels():
        for number in range(1500):
            task = asyncio.create_task(channel.asend(number))
            for _ in range(number % 4):
                await asyncio.sleep(0)
            task.cancel()
            try:
                await task
            except asyncio.CancelledError:
                continue
            sent.append(number)
        channel.close()

    run_threads(lambda: asyncio.run(send_with_cancels()), lambda: got.extend(channel))
    assert got == sent
    assert_idle(channel)
