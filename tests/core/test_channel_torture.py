"""Many threads, tasks and event loops at one channel; whatever is lost, doubled or stuck fails the run."""

import asyncio

from headrace.core.channel import Channel, select
from headrace.errors import ChannelClosed, DeadlineExceeded


def test_torture_threads(run_threads, assert_idle):
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


def test_torture_select(run_threads, assert_idle):
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


def test_torture_cancelled_tasks_mixed_with_threads_and_loops(run_threads, assert_idle):
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


def test_torture_cancelled_senders(run_threads, assert_idle):
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
