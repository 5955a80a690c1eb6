import collections
import os
import pickle
import signal
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core import shm
from headrace.core.ring import MpmcRing, SpscRing
from headrace.errors import (
    ChannelClosed,
    Conflict,
    DeadlineExceeded,
    IntegrityError,
    InvalidInput,
    LeaseError,
    NotFound,
)

KINDS = [SpscRing, MpmcRing]


@pytest.fixture(params=KINDS, ids=lambda kind: kind.__name__)
def kind(request):
    return request.param


def test_messages_of_every_length_come_out_in_order(kind):
    ring = kind.create(slots=4, slot_bytes=100)
    for lap in range(5):
        sent = [bytes([lap]) * length for length in (0, 1, 99, 100)]
        assert all(ring.try_push(message) for message in sent)
        assert len(ring) == 4
        assert not ring.try_push(b"full")
        assert [ring.pop(0) for _ in sent] == sent
        assert ring.try_pop() is None
    assert (ring.slots, ring.slot_bytes) == (4, 100)


def test_any_contiguous_buffer_is_a_message(kind):
    ring = kind.create(slots=4, slot_bytes=64)
    for message in (bytearray(b"abc"), memoryview(b"abc"), np.frombuffer(b"abc", np.uint8)):
        ring.push(message)
        assert ring.pop() == b"abc"
    for wrong in (np.zeros((4, 4), np.uint8)[:, ::2], "text", 5):
        with pytest.raises(InvalidInput, match="bytes-like"):
            ring.push(wrong)
        with pytest.raises(InvalidInput, match="bytes-like"):
            ring.push_many([b"ok", wrong])
    assert ring.try_pop() is None  # a bad batch sends nothing


def test_too_long_messages_are_refused_and_send_nothing(kind):
    ring = kind.create(slots=4, slot_bytes=8)
    with pytest.raises(InvalidInput, match="at most slot_bytes = 8 bytes, got 9"):
        ring.push(b"123456789")
    with pytest.raises(InvalidInput):
        ring.push_many([b"1", b"123456789"])
    assert len(ring) == 0


@pytest.mark.parametrize(("slots", "slot_bytes"), [(0, 8), (3, 8), (1, 8), (4, 0), (1 << 27, 8)])
def test_bad_geometry_is_refused(kind, slots, slot_bytes):
    with pytest.raises(InvalidInput, match="ring slot"):
        kind.create(slots=slots, slot_bytes=slot_bytes)


def test_waiting_ends_with_the_timeout_the_message_or_the_close(kind):
    ring = kind.create(slots=2, slot_bytes=8)
    with pytest.raises(DeadlineExceeded, match="still empty"):
        ring.pop(timeout_s=0.01)
    assert ring.push_many([b"a", b"b", b"c"], timeout_s=0.01) == 2
    with pytest.raises(DeadlineExceeded, match="still full"):
        ring.push(b"c", timeout_s=0.01)
    with pytest.raises(InvalidInput, match="nan"):
        ring.push(b"c", timeout_s=float("nan"))
    got = []
    popper = threading.Thread(target=lambda: got.extend(ring.pop(timeout_s=30) for _ in range(3)))
    popper.start()
    ring.push(b"c", timeout_s=30)
    popper.join()
    assert got == [b"a", b"b", b"c"]
    closer = threading.Timer(0.02, ring.close)
    closer.start()
    with pytest.raises(ChannelClosed):
        ring.pop()
    closer.join()


def test_a_signal_ends_the_waiting(kind):
    ring = kind.create(slots=2, slot_bytes=8)

    def interrupt(number, frame):
        raise InterruptedError

    def soon():
        timer = threading.Timer(0.02, os.kill, (os.getpid(), signal.SIGUSR1))
        timer.start()
        return timer

    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        timer = soon()
        with pytest.raises(InterruptedError):
            ring.pop()
        timer.join()
        ring.push_many([b"a", b"b"])
        timer = soon()
        with pytest.raises(InterruptedError):
            ring.push(b"c")
        timer.join()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert ring.pop_many(9) == [b"a", b"b"]


def test_a_closed_ring_drains_and_takes_nothing(kind):
    ring = kind.create(slots=4, slot_bytes=8)
    ring.push_many([b"a", b"b"])
    ring.close()
    ring.close()
    assert ring.closed
    for send in (ring.push, ring.try_push, lambda message: ring.push_many([message])):
        with pytest.raises(ChannelClosed):
            send(b"c")
    assert ring.pop_many(10) == [b"a", b"b"]
    for receive in (ring.pop, ring.try_pop, lambda: ring.pop_many(1), ring.peek):
        with pytest.raises(ChannelClosed):
            receive()


def test_slots_are_used_in_place(kind):
    ring = kind.create(slots=4, slot_bytes=4096)
    view = ring.reserve()
    assert len(view) == 4096
    assert not view.readonly
    array = np.frombuffer(view, np.float32)
    assert array.ctypes.data % 64 == 0
    array[:10] = np.arange(10)
    with pytest.raises(LeaseError, match="array"):
        ring.commit(40)
    with pytest.raises(LeaseError, match="not committed"):
        ring.reserve()
    del array
    with pytest.raises(InvalidInput):
        ring.commit(5000)
    ring.commit(40)
    read = np.frombuffer(ring.peek(), np.float32)
    assert read.tolist() == list(range(10))
    with pytest.raises(LeaseError, match="array"):
        ring.release()
    del read
    ring.release()


def test_reserve_commit_peek_release(kind):
    ring = kind.create(slots=2, slot_bytes=64)
    for turn in range(6):
        view = ring.reserve()
        view[:3] = bytes([turn] * 3)
        ring.commit(3)
        with pytest.raises(ValueError, match="released"):
            view[0] = 1
        message = ring.peek()
        assert bytes(message) == bytes([turn] * 3)
        assert message.readonly
        ring.release()
        with pytest.raises(ValueError, match="released"):
            message.tobytes()
    ring.reserve()
    ring.abandon()
    assert ring.try_pop() is None
    for call in (lambda: ring.commit(1), ring.abandon, ring.release):
        with pytest.raises(LeaseError):
            call()


def test_an_spsc_slot_in_use_is_not_used_twice():
    ring = SpscRing.create(slots=4, slot_bytes=8)
    ring.reserve()
    with pytest.raises(LeaseError, match="reserved"):
        ring.push(b"x")
    ring.commit(0)
    ring.push(b"y")
    ring.peek()
    with pytest.raises(LeaseError, match="peeked"):
        ring.pop()
    ring.release()
    assert ring.pop() == b"y"


def test_dropping_a_ring_gives_up_what_it_held():
    ring = MpmcRing.create(slots=2, slot_bytes=8)
    other = MpmcRing.attach(ring.name)
    other.reserve()
    ring.push(b"behind")
    with pytest.raises(DeadlineExceeded):
        ring.pop(timeout_s=0.01)
    del other
    assert ring.pop(timeout_s=30) == b"behind"


def test_views_outlive_the_ring():
    ring = SpscRing.create(slots=2, slot_bytes=64)
    view = ring.reserve()
    del ring
    view[:] = b"x" * 64
    assert bytes(view) == b"x" * 64


def test_rings_are_found_by_name(kind):
    ring = kind.create(slots=4, slot_bytes=64)
    other = pickle.loads(pickle.dumps(ring))
    assert (type(other), other.name, other.slots, other.slot_bytes) == (kind, ring.name, 4, 64)
    ring.push(b"hello")
    assert other.pop() == b"hello"
    with pytest.raises(Conflict):
        kind.create(ring.name)
    wrong = SpscRing if kind is MpmcRing else MpmcRing
    with pytest.raises(IntegrityError, match=wrong.__name__):
        wrong.attach(ring.name)
    with ring:
        pass
    assert other.closed
    with pytest.raises(NotFound):
        kind.attach(ring.name)


def test_memory_that_is_no_ring_is_refused(kind):
    segment = shm.create(None, 1 << 16)
    with pytest.raises(IntegrityError, match="no ring header"):
        kind.attach(segment.name)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_damaged_header_is_refused_or_harmless(data):
    """Whatever the shared bytes say, attaching either works within the mapping or raises; it never reaches outside."""
    kind = data.draw(st.sampled_from(KINDS))
    ring = kind.create(slots=4, slot_bytes=32)
    header = shm.attach(ring.name).array()
    at = data.draw(st.integers(0, 63))
    header[at] ^= data.draw(st.integers(1, 255))
    try:
        other = kind.attach(ring.name)
    except IntegrityError:
        return
    assert other.slots * other.slot_bytes <= len(header)


def test_a_damaged_length_is_refused(kind):
    ring = kind.create(slots=2, slot_bytes=32)
    ring.push(b"\x01" * 32)
    memory = shm.attach(ring.name).array()
    lengths = memory[: len(memory) // 4 * 4].view(np.uint32)
    for place in np.flatnonzero(lengths == 32)[1:]:  # the first is slot_bytes itself
        lengths[place] = 1 << 31
    with pytest.raises(IntegrityError, match="claims"):
        ring.pop()


def test_only_one_live_object_pushes_into_an_spsc_ring():
    ring = SpscRing.create(slots=4, slot_bytes=8)
    other = SpscRing.attach(ring.name)
    ring.push(b"1")
    with pytest.raises(Conflict, match="already the producer"):
        other.push(b"2")
    assert other.pop() == b"1"
    with pytest.raises(Conflict, match="already the consumer"):
        ring.pop()
    del ring


def test_threads_share_an_mpmc_ring():
    ring = MpmcRing.create(slots=8, slot_bytes=16)
    seen = collections.Counter()
    lock = threading.Lock()

    def produce(base):
        for number in range(base, base + 500):
            ring.push(number.to_bytes(4, "little"), timeout_s=30)

    def consume():
        own = []
        try:
            while True:
                own += (int.from_bytes(message, "little") for message in ring.pop_many(7, timeout_s=30))
        except ChannelClosed:
            with lock:
                seen.update(own)

    producers = [threading.Thread(target=produce, args=(base,)) for base in (0, 1000, 2000)]
    consumers = [threading.Thread(target=consume) for _ in range(3)]
    for thread in producers + consumers:
        thread.start()
    for thread in producers:
        thread.join()
    ring.close()
    for thread in consumers:
        thread.join()
    assert seen == collections.Counter([*range(500), *range(1000, 1500), *range(2000, 2500)])
