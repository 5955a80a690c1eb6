from hypothesis import given
from hypothesis import strategies as st

from headrace.serve.scheduler.policy import INLINE_LIMIT_S, batch_wait_s, next_run_s, runs_inline

rows = st.integers(0, 100)
waits = st.floats(0, 1)
counts = st.integers(0, 4)


@given(rows, waits, counts, st.integers(1, 4), st.integers(1, 64), st.floats(0, 1))
def test_an_idle_model_never_makes_anyone_wait(queued, waited, running, instances, max_batch, window):
    wait = batch_wait_s(queued, waited, running, instances, max_batch, window)
    if queued == 0 or running >= instances:
        assert wait is None
    elif running == 0 or queued >= max_batch or waited >= window:
        assert wait == 0
    else:
        assert wait == window - waited


def test_the_place_of_a_run_has_hysteresis():
    between = INLINE_LIMIT_S * 0.75
    assert runs_inline("auto", between, inline_now=True)
    assert not runs_inline("auto", between, inline_now=False)
    assert runs_inline("inline", 10.0, inline_now=False)
    assert not runs_inline("thread", 0.0, inline_now=True)


def test_one_hiccup_changes_nothing_two_slow_runs_do():
    run_s = next_run_s(20e-6, 5e-3, last_s=20e-6)
    assert run_s < 21e-6
    assert next_run_s(run_s, 4e-3, last_s=5e-3) == 4e-3


@given(st.lists(st.floats(1e-6, 1.0), min_size=1, max_size=50))
def test_the_estimate_stays_within_what_was_measured(runs):
    estimate = last = runs[0]
    for took in runs:
        estimate, last = next_run_s(estimate, took, last), took
        assert min(runs) <= estimate * (1 + 1e-9)
        assert estimate <= max(runs) * (1 + 1e-9)


def test_the_estimate_comes_down_again():
    estimate = 1.0
    for _ in range(100):
        estimate = next_run_s(estimate, 20e-6, 20e-6)
    assert estimate < 100e-6
