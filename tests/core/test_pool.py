import collections
import ctypes
import gc
import itertools
import threading
import time

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headrace.core.pool import TensorPool
from headrace.errors import InvalidInput, LeaseError, Overloaded


def test_a_lease_is_memory_of_any_shape_without_copies():
    pool = TensorPool()
    with pool.lease(4096, alignment=512) as lease:
        floats = lease.array((4, 8), np.float32)
        floats[:] = 1.5
        same = lease.array(32, "<f4")
        assert same.ctypes.data == lease.pointer == floats.ctypes.data
        assert lease.pointer % 512 == 0
        assert (same == 1.5).all()
        assert lease.views == 2
        assert lease.array((0, 5)).shape == (0, 5)
        assert np.from_dlpack(lease).ctypes.data == lease.pointer
        assert np.from_dlpack(lease).nbytes == 4096
    assert lease.released


@pytest.mark.parametrize("shape", [(33, 32), (-1,), 2**40])
def test_arrays_must_fit(shape):
    with TensorPool().lease(4096) as lease, pytest.raises(InvalidInput, match="lease:"):
        lease.array(shape, np.float32)


def test_objects_cannot_live_in_leased_memory():
    with TensorPool().lease(64) as lease, pytest.raises(InvalidInput, match="objects"):
        lease.array(1, object)


def test_a_lease_ends_once():
    lease = TensorPool().lease(64)
    lease.release()
    for use in (lease.release, lambda: lease.array(1), lambda: lease.pointer, lease.__dlpack__):
        with pytest.raises(LeaseError, match="after it was released"):
            use()


def test_memory_comes_back_only_when_the_last_view_is_gone():
    pool = TensorPool()
    lease = pool.lease(1 << 12)
    kept = lease.array(1 << 12)[100:200]
    address = lease.pointer
    lease.release()
    assert pool.stats().live == 1
    others = [pool.lease(1 << 12) for _ in range(4)]
    assert address not in [other.pointer for other in others]
    kept[:] = 3
    assert kept.sum() == 300
    del kept
    assert pool.stats().live == 4
    assert pool.lease(1 << 12).pointer == address


def test_a_dropped_lease_comes_back_too():
    pool = TensorPool()
    pool.lease(64)
    gc.collect()
    assert pool.stats().live == 0
    array = pool.empty((3, 4), np.float64)
    assert array.shape == (3, 4)
    assert pool.stats().live == 1
    del array
    assert pool.stats().live == 0


def test_memory_outlives_the_pool():
    array = TensorPool().empty(1 << 22)
    array[:] = 1
    assert array.sum() == 1 << 22


def test_large_blocks_are_huge_pages_and_trim_gives_them_back():
    pool = TensorPool()
    with pool.lease((2 << 20) + 1, alignment=4096) as lease:
        assert lease.pointer % (2 << 20) == 0
        assert pool.stats().huge_blocks == 1
    assert pool.stats().cached_bytes == 4 << 20
    pool.trim()
    assert pool.stats().cached_bytes == pool.stats().huge_blocks == 0


def test_debug_refuses_to_release_under_a_living_view():
    pool = TensorPool(debug=True)
    lease = pool.lease(64)
    view = lease.array(64)
    with pytest.raises(LeaseError, match=r"1 array\(s\)"):
        lease.release()
    view[0] = 1  # the lease is still ours
    del view
    lease.release()


def test_the_block_s_own_error_is_not_hidden_by_a_living_view():
    pool = TensorPool(debug=True)
    kept = []

    def fail():
        with pool.lease(64) as lease:
            kept.extend([lease, lease.array(64)])
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert kept[0].released


@pytest.mark.parametrize("offset", [-1, 100])
def test_debug_finds_writes_beside_the_buffer(offset):
    lease = TensorPool(debug=True).lease(100)
    ctypes.memset(lease.pointer + offset, 1, 1)
    with pytest.raises(LeaseError, match="beside"):
        lease.release()


def test_debug_finds_writes_after_the_return_and_poisons_what_is_free():
    pool = TensorPool(debug=True)
    lease = pool.lease(100)
    address = lease.pointer
    ctypes.memset(address, 0, 100)
    lease.release()
    assert ctypes.string_at(address, 100) == b"\xdb" * 100
    ctypes.memset(address + 50, 1, 1)
    with pytest.raises(LeaseError, match="after it had been given back"):
        pool.lease(100)
    with pool.lease(100):
        assert pool.stats().live == 1


@pytest.mark.parametrize(("nbytes", "alignment"), [(0, 64), (-1, 64), (8, 0), (8, 32), (8, 65), (8, 8192), (2000, 64)])
def test_bad_requests_say_why(nbytes, alignment):
    with pytest.raises(InvalidInput, match="pool:"):
        TensorPool(limit_bytes=1024).lease(nbytes, alignment=alignment)


def test_bad_limits_say_why():
    with pytest.raises(InvalidInput, match="limit_bytes"):
        TensorPool(limit_bytes=0)


def test_a_full_pool_refuses_or_waits():
    pool = TensorPool(limit_bytes=8192)
    held = pool.lease(8192)
    with pytest.raises(Overloaded, match="8192 of 8192"):
        pool.lease(512)
    with pytest.raises(Overloaded):
        pool.lease(512, timeout_s=0.01)
    giver = threading.Timer(0.02, held.release)
    giver.start()
    with pool.lease(512, timeout_s=None) as lease:
        assert lease.nbytes == 512
    giver.join()


def test_threads_never_get_the_same_memory():
    pool = TensorPool(limit_bytes=1 << 16)
    wrong = []

    def use(mark):
        for turn in range(300):
            with pool.lease(1 + turn * 37 % 9000, timeout_s=30) as lease:
                array = lease.array(lease.nbytes)
                array[:] = mark
                if turn % 16 == 0:
                    time.sleep(0)
                if not (array == mark).all():
                    wrong.append(mark)
                del array

    threads = [threading.Thread(target=use, args=(mark,)) for mark in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert pool.stats().live == 0
    assert pool.stats().leases == 1200
    assert pool.stats().reused > 0


class PoolModel(RuleBasedStateMachine):
    """Live memory never overlaps, holds what was written to it, and stays inside the limit."""

    @initialize(debug=st.booleans())
    def make(self, debug):
        self.limit = 1 << 16
        self.pool = TensorPool(limit_bytes=self.limit, debug=debug)
        self.held = collections.deque()
        self.arrays = []
        self.mark = 0

    @rule(nbytes=st.integers(1, 20_000), alignment=st.sampled_from([64, 512, 4096]))
    def lease(self, nbytes, alignment):
        try:
            lease = self.pool.lease(nbytes, alignment=alignment)
        except Overloaded:
            assert self.held or self.arrays
            return
        assert lease.pointer % alignment == 0
        self.mark = (self.mark + 1) % 251
        lease.array(nbytes)[:] = self.mark
        self.held.append((lease, self.mark))

    @rule()
    @precondition(lambda self: len(self.held) > 0)
    def release(self):
        lease, mark = self.held.popleft()
        assert (lease.array(lease.nbytes) == mark).all()
        lease.release()
        with pytest.raises(LeaseError):
            lease.release()

    @rule()
    @precondition(lambda self: len(self.held) > 0 and not self.pool.debug)
    def release_under_a_view(self):
        lease, mark = self.held.popleft()
        self.arrays.append((lease.array(lease.nbytes), mark))
        lease.release()

    @rule()
    @precondition(lambda self: len(self.arrays) > 0)
    def drop_a_view(self):
        array, mark = self.arrays.pop()
        assert (array == mark).all()

    @rule()
    def trim(self):
        self.pool.trim()

    @invariant()
    def nothing_overlaps(self):
        if not hasattr(self, "pool"):
            return
        spans = [(lease.pointer, lease.nbytes) for lease, _ in self.held]
        spans += [(array.ctypes.data, array.nbytes) for array, _ in self.arrays]
        spans.sort()
        for (start, length), (following, _) in itertools.pairwise(spans):
            assert start + length <= following
        stats = self.pool.stats()
        assert stats.live == len(spans)
        assert stats.leased_bytes + stats.cached_bytes <= self.limit
        assert stats.leased_bytes >= sum(length for _, length in spans)
        assert stats.peak_bytes >= stats.leased_bytes


TestPoolModel = PoolModel.TestCase
TestPoolModel.settings = settings(max_examples=40, deadline=None)
