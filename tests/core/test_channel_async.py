import asyncio

import pytest

from headrace.core.channel import Channel, aselect
from headrace.core.context import Context
from headrace.errors import ChannelClosed, DeadlineExceeded, Unavailable


async def test_async_ends_wait_time_out_and_close(assert_idle):
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


async def test_a_cancelled_receiver_loses_no_item_and_passes_its_wake_on(assert_idle):
    channel = Channel(4)
    first = asyncio.create_task(channel.arecv())
    second = asyncio.create_task(channel.arecv())
    await asyncio.sleep(0)
    channel.send("item")  # wakes the first, which is cancelled before it can run
    first.cancel()
    assert await asyncio.wait_for(second, 5) == "item"
    assert first.cancelled()
    assert_idle(channel)


async def test_a_receiver_that_was_robbed_keeps_its_place(assert_idle):
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


async def test_a_cancelled_sender_passes_its_place_on(assert_idle):
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


async def test_a_selecting_task_passes_on_the_wake_it_did_not_use(assert_idle):
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


def test_a_sleeper_on_a_dead_loop_is_passed_over(run_threads, wait_until, assert_idle):
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


async def test_a_woken_task_that_is_thrown_away_passes_its_wake_on(assert_idle):
    channel = Channel(1)
    thrown_away = await fall_asleep(channel.arecv())
    other = asyncio.create_task(channel.arecv())
    await asyncio.sleep(0)
    channel.send("item")
    thrown_away.close()
    assert await asyncio.wait_for(other, 5) == "item"
    assert_idle(channel)
