import asyncio
import gc
import os
import time

import pytest
from prometheus_client.parser import text_string_to_metric_families

from headrace.core.telemetry import LoopLag, ProcessMetrics, Registry, render


def scrape(registry):
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(render(registry)[0].decode())
        for sample in family.samples
    }


@pytest.fixture
def registry():
    registry = Registry()
    metrics = ProcessMetrics(registry)
    yield registry
    metrics.close()
    metrics.close()
    assert metrics._on_gc not in gc.callbacks


def test_readings_of_this_process_are_plausible(registry):
    found = scrape(registry)
    assert 1e6 < found[("process_resident_memory_bytes",)] < 1e12
    assert found[("process_cpu_seconds_total",)] == pytest.approx(time.process_time(), abs=5)
    assert 0 <= time.time() - found[("process_start_time_seconds",)] < 1e6


def test_open_descriptors_are_counted(registry):
    before = scrape(registry)[("process_open_fds",)]
    pipe = os.pipe()
    assert scrape(registry)[("process_open_fds",)] == before + 2
    for descriptor in pipe:
        os.close(descriptor)
    assert scrape(registry)[("process_open_fds",)] == before


def test_garbage_collections_are_timed_by_generation(registry):
    key = ("headrace_gc_pause_seconds_count", "2")
    before = scrape(registry)[key]
    gc.collect()
    gc.collect()
    assert scrape(registry)[key] >= before + 2


def test_a_disabled_registry_leaves_the_collector_alone():
    before = list(gc.callbacks)
    metrics = ProcessMetrics(Registry(enabled=False))
    assert gc.callbacks == before
    metrics.close()


async def test_loop_lag_sees_a_callback_that_blocks():
    registry = Registry()
    lag = LoopLag(registry, interval_s=0.005)
    task = asyncio.create_task(lag.run("test"))
    await asyncio.sleep(0)
    time.sleep(0.08)  # noqa: ASYNC251 - blocking the loop is the point
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    found = scrape(registry)
    assert found[("headrace_event_loop_lag_seconds_sum", "test")] >= 0.07
