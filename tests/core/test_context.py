import gc
import threading
import time
import weakref

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.context import Context
from headrace.errors import Cancelled, DeadlineExceeded, Unavailable


def test_a_context_has_an_id_and_no_end():
    ctx = Context()
    assert len(ctx.request_id) == 16
    assert ctx.request_id != Context().request_id
    assert (ctx.remaining_s(), ctx.error) == (None, None)
    ctx.check()


def test_the_deadline_ends_the_context_when_it_is_looked_at():
    ctx = Context("r1", timeout_s=0.0)
    heard = []
    ctx.on_cancel(heard.append)
    assert ctx.remaining_s() == 0
    with pytest.raises(DeadlineExceeded, match="r1"):
        ctx.check()
    assert heard == [ctx.error]


def test_the_first_cancel_wins_and_is_sticky():
    ctx = Context()
    first = Unavailable("draining")
    ctx.cancel(first)
    ctx.cancel()
    for _ in range(2):
        with pytest.raises(Unavailable) as caught:
            ctx.check()
        assert caught.value is first


def test_repeated_checks_do_not_grow_the_traceback():
    ctx = Context()
    ctx.cancel()
    depths = []
    for _ in range(3):
        with pytest.raises(Cancelled) as caught:
            ctx.check()
        depths.append(len(caught.traceback))
    assert len(set(depths)) == 1


def test_callbacks_run_once_in_order_and_may_be_undone():
    ctx = Context()
    heard = []
    ctx.on_cancel(lambda error: heard.append("a"))
    undo = ctx.on_cancel(lambda error: heard.append("b"))
    ctx.on_cancel(lambda error: heard.append("c"))
    undo()
    undo()
    ctx.cancel()
    ctx.cancel()
    assert heard == ["a", "c"]
    late = ctx.on_cancel(lambda error: heard.append(type(error)))
    late()
    assert heard == ["a", "c", Cancelled]


def test_the_same_callback_may_be_registered_twice_and_undone_once():
    ctx = Context()
    heard = []
    ctx.on_cancel(heard.append)
    ctx.on_cancel(heard.append)()
    ctx.cancel()
    assert len(heard) == 1


def test_a_callback_may_undo_one_that_has_not_run():
    ctx = Context()
    heard = []
    ctx.on_cancel(lambda error: undo())
    undo = ctx.on_cancel(heard.append)
    ctx.cancel()
    assert heard == []


def test_a_failing_callback_does_not_silence_the_others(caplog):
    ctx = Context("r2")
    heard = []
    ctx.on_cancel(lambda error: 1 / 0)
    ctx.on_cancel(heard.append)
    ctx.cancel()
    assert len(heard) == 1
    assert "r2" in caplog.text


def test_a_callback_may_use_its_context():
    ctx = Context()
    heard = []
    ctx.on_cancel(lambda error: ctx.on_cancel(heard.append))
    ctx.on_cancel(lambda error: ctx.cancel())
    ctx.cancel()
    assert len(heard) == 1


def test_no_callback_is_lost_or_repeated_in_a_race():
    """Several threads register while several others cancel: each registered callback is heard exactly once."""
    for _ in range(200):
        ctx = Context()
        heard: list[int] = []
        start = threading.Barrier(4)

        def register(base, ctx=ctx, heard=heard, start=start):
            start.wait()
            for i in range(20):
                ctx.on_cancel(lambda error, i=base + i: heard.append(i))

        def cancel(ctx=ctx, start=start):
            start.wait()
            ctx.cancel()

        threads = [threading.Thread(target=register, args=(base,)) for base in (0, 100)]
        threads += [threading.Thread(target=cancel) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(heard) == [*range(20), *range(100, 120)]


def test_racing_cancels_agree_on_one_error():
    for _ in range(200):
        ctx = Context()
        heard = []
        ctx.on_cancel(heard.append)
        errors = [Unavailable(str(i)) for i in range(3)]
        start = threading.Barrier(3)

        def cancel(error, ctx=ctx, start=start):
            start.wait()
            ctx.cancel(error)

        threads = [threading.Thread(target=cancel, args=(error,)) for error in errors]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert heard == [ctx.error]
        assert ctx.error in errors


@given(st.none() | st.floats(0, 100), st.none() | st.floats(0, 100))
def test_a_child_has_the_earlier_deadline(parent_s, child_s):
    before = time.monotonic()
    parent = Context("r", timeout_s=parent_s, priority=3, tenant="t", trace="x")
    child = parent.child(child_s)
    after = time.monotonic()
    limits = [limit for limit in (parent_s, child_s) if limit is not None]
    if limits:
        assert before + min(limits) <= child.deadline_s <= after + min(limits)
    else:
        assert child.deadline_s is None
    if parent.deadline_s is not None:
        assert child.deadline_s <= parent.deadline_s
    assert (child.request_id, child.priority, child.tenant, child.trace) == ("r", 3, "t", "x")


def test_a_child_ends_with_its_parent_but_not_the_other_way_round():
    parent = Context()
    first, second = parent.child(), parent.child(timeout_s=60)
    grandchild = second.child()
    first.cancel()
    assert parent.error is second.error is None
    parent.cancel(Unavailable("gone"))
    assert isinstance(first.error, Cancelled)
    assert second.error is grandchild.error is parent.error
    assert parent.child().error is parent.error


def test_a_long_lived_parent_forgets_finished_children():
    parent = Context()
    gc.disable()
    try:
        for _ in range(100):
            parent.child()
        kept = parent.child()
        assert len(parent._callbacks) == 1
        parent.cancel()
        assert isinstance(kept.error, Cancelled)
        watch = weakref.ref(parent)
        del parent, kept
        assert watch() is None
    finally:
        gc.enable()
