import threading

import pytest

from headrace.core.channel import Channel, select
from headrace.core.context import Context
from headrace.errors import ChannelClosed, ConfigError, DeadlineExceeded, Unavailable


@pytest.mark.parametrize("capacity", [0, -1])
def test_a_channel_must_hold_something(capacity):
    with pytest.raises(ConfigError, match=f"at least 1, got {capacity}"):
        Channel(capacity)


def test_an_empty_channel_is_still_true():
    assert Channel(1)


def test_select_needs_a_channel():
    with pytest.raises(ConfigError, match="at least one channel"):
        select([])


def test_a_full_channel_holds_its_sender_back(run_threads, wait_until, assert_idle):
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


def test_close_drains_receivers_and_refuses_senders(run_threads, wait_until, assert_idle):
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


def test_close_wakes_every_receiver(run_threads, wait_until, assert_idle):
    channel = Channel(1)

    def receiver():
        with pytest.raises(ChannelClosed):
            channel.recv()

    def closer():
        wait_until(lambda: len(channel._receivers) == 3)
        channel.close()

    run_threads(receiver, receiver, receiver, closer)
    assert_idle(channel)


def test_the_context_wakes_a_sleeper_with_its_own_error(run_threads, wait_until, assert_idle):
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


def test_the_earlier_of_timeout_and_deadline_ends_the_wait(assert_idle):
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


def test_select_wakes_when_the_last_channel_closes(run_threads, wait_until, assert_idle):
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
