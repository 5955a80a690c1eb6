import os
import threading

import pytest

from headrace.core.workers import Workers
from headrace.errors import InvalidInput


def test_every_index_is_run_once():
    workers = Workers(3)
    assert len(workers) == 3
    seen = []
    workers.parallel_for(5, 105, 7, lambda begin, end: seen.extend(range(begin, end)))
    assert sorted(seen) == list(range(5, 105))
    workers.parallel_for(5, 5, 1, lambda begin, end: seen.append(None))
    assert len(seen) == 100


def test_the_first_exception_comes_out_and_the_pool_goes_on():
    workers = Workers(2)

    def fail(begin, end):
        raise KeyError(begin)

    with pytest.raises(KeyError):
        workers.parallel_for(0, 10, 1, fail)
    assert len(workers.trace(100)) == 100


def test_nested_and_concurrent_loops_finish():
    workers = Workers(3)
    lock = threading.Lock()
    count = 0

    def inner(begin, end):
        nonlocal count
        with lock:
            count += end - begin

    def outer():
        workers.parallel_for(0, 4, 1, lambda begin, end: workers.parallel_for(0, 10, 3, inner))

    threads = [threading.Thread(target=outer) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert count == 3 * 4 * 10


def test_loops_run_where_they_may():
    allowed = os.sched_getaffinity(0)
    workers = Workers(2, [min(allowed)])
    assert set(workers.trace(1000)) <= allowed
    assert 1 <= len(Workers()) <= len(allowed)


@pytest.mark.parametrize(("threads", "cpus"), [(0, []), (-1, []), (5000, []), (2, [10**6]), (2, [-1])])
def test_bad_arguments_say_why(threads, cpus):
    with pytest.raises(InvalidInput):
        Workers(threads, cpus)
