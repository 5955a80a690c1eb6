"""`Channel`: the one way two concurrent parts of a process talk. Items go in at one end, out at the other, in order.

A channel is bounded (a full one holds its senders back), closable, and open to threads and asyncio tasks of any event
loop at the same time. `select` and `aselect` receive from whichever of several channels has something first.

How it stays free of lost wake-ups: a sleeper enrols in a queue of the channel under its lock, and only while it cannot
proceed. Every new item takes one receiver out of the queue and wakes it, every freed place does so with one sender. The
woken one looks again itself; the item stays in the channel until then, so cancelling a sleeper cannot lose it. Whoever
was taken out of the queue and leaves without using what it was woken for wakes the next one.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Iterator, Sequence
from threading import RLock
from typing import Generic, TypeVar, overload

from headrace.core.context import Context
from headrace.core.waiter import Waiter, ablock, block
from headrace.errors import ChannelClosed, ConfigError

__all__ = ["Channel", "aselect", "select"]

T = TypeVar("T")
D = TypeVar("D")

_CLOSED = "the channel is closed"


class Channel(Generic[T]):
    """A bounded FIFO of `capacity` items (at least 1; `ConfigError` otherwise).

    Every blocking method takes `timeout_s` (seconds; None waits for ever, 0 tries once) and `ctx`; it raises
    `DeadlineExceeded` when the time is up, the context's own error when the context ends first, and `ChannelClosed`.
    An item that could not be sent was not sent; an item that was not received stays.
    """

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise ConfigError(f"expected a channel capacity of at least 1, got {capacity}: a channel must hold an item")
        self.capacity = capacity
        # Re-entrant: an abandoned task's clean-up may run inside any allocation, also one made under this lock.
        self._lock = RLock()
        self._items: deque[T] = deque()
        self._closed = False
        self._senders: OrderedDict[Waiter, None] = OrderedDict()
        self._receivers: OrderedDict[Waiter, None] = OrderedDict()
        self._turn = 0

    @property
    def closed(self) -> bool:
        """Whether `close` was called; items may still be waiting."""
        return self._closed

    def __len__(self) -> int:
        """Items waiting now; between 0 and `capacity`."""
        return len(self._items)

    def __bool__(self) -> bool:
        return True

    def close(self) -> None:
        """Refuse further items. Senders get `ChannelClosed` at once, receivers once what is left has been taken."""
        with self._lock:
            self._closed = True
            sleepers = [*self._senders, *self._receivers]
            self._senders.clear()
            self._receivers.clear()
        for sleeper in sleepers:
            sleeper.wake()

    def try_send(self, item: T) -> bool:
        """Send without waiting; False when the channel is full. Raises `ChannelClosed`."""
        return self._put(item, None)

    @overload
    def try_recv(self) -> T | None: ...
    @overload
    def try_recv(self, default: D) -> T | D: ...
    def try_recv(self, default: D | None = None) -> T | D | None:
        """Receive without waiting; `default` when nothing is there. Raises `ChannelClosed` when nothing will come."""
        found = self._take(None)
        if found:
            return found[0]
        if found is None:
            raise ChannelClosed(_CLOSED)
        return default

    def send(self, item: T, timeout_s: float | None = None, ctx: Context | None = None) -> None:
        """Send `item`, waiting in this thread while the channel is full."""
        if ctx is not None or not self._put(item, None):
            block(_Sending(self, item), timeout_s, ctx)

    def recv(self, timeout_s: float | None = None, ctx: Context | None = None) -> T:
        """Take the oldest item, waiting in this thread while there is none."""
        if ctx is None and (found := self._take(None)):
            return found[0]
        operation = _Receiving((self,))
        block(operation, timeout_s, ctx)
        return operation.item

    async def asend(self, item: T, timeout_s: float | None = None, ctx: Context | None = None) -> None:
        """Send `item`, suspending this task while the channel is full."""
        if ctx is not None or not self._put(item, None):
            await ablock(_Sending(self, item), timeout_s, ctx)

    async def arecv(self, timeout_s: float | None = None, ctx: Context | None = None) -> T:
        """Take the oldest item, suspending this task while there is none."""
        if ctx is None and (found := self._take(None)):
            return found[0]
        operation = _Receiving((self,))
        await ablock(operation, timeout_s, ctx)
        return operation.item

    def __iter__(self) -> Iterator[T]:
        """Items until the channel is closed and drained."""
        try:
            while True:
                yield self.recv()
        except ChannelClosed:
            return

    def __aiter__(self) -> AsyncIterator[T]:
        """Items until the channel is closed and drained."""
        return self

    async def __anext__(self) -> T:
        try:
            return await self.arecv()
        except ChannelClosed:
            raise StopAsyncIteration from None

    def _put(self, item: T, waiter: Waiter | None, front: bool = False) -> bool:
        """Append and wake a receiver; False when full, and then `waiter`, if any, is enrolled."""
        with self._lock:
            if self._closed:
                raise ChannelClosed(_CLOSED)
            if len(self._items) >= self.capacity:
                if waiter is not None:
                    _enrol(self._senders, waiter, front)
                return False
            self._items.append(item)
        if self._receivers:
            self._wake(self._receivers)
        return True

    def _take(self, waiter: Waiter | None, front: bool = False) -> tuple[T] | tuple[()] | None:
        """(item,) after waking a sender; () when empty, and then `waiter`, if any, is enrolled; None when drained."""
        with self._lock:
            if not self._items:
                if self._closed:
                    return None
                if waiter is not None:
                    _enrol(self._receivers, waiter, front)
                return ()
            item = self._items.popleft()
        if self._senders:
            self._wake(self._senders)
        return (item,)

    def _wake(self, queue: OrderedDict[Waiter, None]) -> None:
        """Wake whoever has slept longest and still can be woken."""
        while queue:
            with self._lock:
                try:
                    waiter, _ = queue.popitem(last=False)
                except KeyError:
                    return
            if waiter.wake():
                return

    def _leave(self, queue: OrderedDict[Waiter, None], waiter: Waiter) -> None:
        """Strike `waiter` out; if it was woken, the wake goes on to the next one who could use it."""
        with self._lock:
            if waiter in queue:
                del queue[waiter]
                return
            useful = len(self._items) > 0 if queue is self._receivers else len(self._items) < self.capacity
        if useful:
            self._wake(queue)


def select(
    channels: Sequence[Channel[T]], timeout_s: float | None = None, ctx: Context | None = None
) -> tuple[Channel[T], T]:
    """Receive from whichever channel has an item first; returns that channel and the item.

    Fair: the search starts behind the channel that was served last. Channels that are closed and drained are passed
    over; `ChannelClosed` is raised once all of them are. Other errors as for `Channel.recv`.
    """
    operation = _Receiving(channels)
    block(operation, timeout_s, ctx)
    return operation.source, operation.item


async def aselect(
    channels: Sequence[Channel[T]], timeout_s: float | None = None, ctx: Context | None = None
) -> tuple[Channel[T], T]:
    """`select` for an asyncio task."""
    operation = _Receiving(channels)
    await ablock(operation, timeout_s, ctx)
    return operation.source, operation.item


class _Sending(Generic[T]):
    def __init__(self, channel: Channel[T], item: T) -> None:
        self._channel = channel
        self._item = item

    def attempt(self, waiter: Waiter | None, front: bool) -> bool:
        return self._channel._put(self._item, waiter, front)

    def leave(self, waiter: Waiter) -> None:
        self._channel._leave(self._channel._senders, waiter)


class _Receiving(Generic[T]):
    item: T
    source: Channel[T]

    def __init__(self, channels: Sequence[Channel[T]]) -> None:
        if not channels:
            raise ConfigError("expected at least one channel to select from, got none")
        self._channels = channels

    def attempt(self, waiter: Waiter | None, front: bool) -> bool:
        count = len(self._channels)
        first = self._channels[0]._turn
        drained = 0
        for step in range(count):
            index = (first + step) % count
            channel = self._channels[index]
            found = channel._take(waiter, front)
            if found:
                self._channels[0]._turn = index + 1
                self.item, self.source = found[0], channel
                return True
            drained += found is None
        if drained == count:
            raise ChannelClosed(_CLOSED)
        return False

    def leave(self, waiter: Waiter) -> None:
        for channel in self._channels:
            channel._leave(channel._receivers, waiter)


def _enrol(queue: OrderedDict[Waiter, None], waiter: Waiter, front: bool) -> None:
    if waiter not in queue:  # woken for another reason, it keeps its place
        queue[waiter] = None
        if front:
            queue.move_to_end(waiter, last=False)
