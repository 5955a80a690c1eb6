"""Helpers of the channel tests: threads that must end, and looks at who is asleep."""

import threading
import time

import pytest


@pytest.fixture
def run_threads():
    """Run every function in a thread of its own to the end; the first error of any is raised in the caller."""

    def run(*functions):
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
            assert errors or not thread.is_alive(), "a thread hangs"
        if errors:
            raise errors[0]

    return run


@pytest.fixture
def wait_until():
    """Wait until a condition holds that other threads bring about."""

    def wait(condition):
        limit = time.monotonic() + 10
        while not condition():
            assert time.monotonic() < limit, "it never happened"
            time.sleep(0.001)

    return wait


@pytest.fixture
def assert_idle():
    """Nobody sleeps at these channels any more."""

    def check(*channels):
        for channel in channels:
            assert not channel._senders
            assert not channel._receivers

    return check
