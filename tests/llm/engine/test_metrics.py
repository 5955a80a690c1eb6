"""What an engine tells of itself: every count is the one a reader of its chunks would make."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from headrace.core.context import Context
from headrace.core.telemetry import Registry, Tracer, TraceSettings, render
from headrace.errors import Cancelled
from headrace.llm.engine import Engine
from headrace.llm.metrics import LlmMetrics
from headrace.llm.params import SamplingParams

MakeEngine = Callable[..., Engine]


def _read(registry: Registry) -> dict[str, float]:
    """Sample name with labels -> value."""
    lines = [line for line in render(registry)[0].decode().splitlines() if not line.startswith("#")]
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if line}


def test_tokens_answers_and_pages_are_counted(make_engine: MakeEngine) -> None:
    registry = Registry()
    engine = make_engine(n_pages=40, metrics=LlmMetrics(registry), gated=True)
    first = engine.generate([1] * 40, SamplingParams(max_tokens=10))
    engine.gate.wait()
    gone = engine.generate([2] * 10, SamplingParams(max_tokens=50))
    engine.gate.step(2)
    now = _read(registry)
    assert now['headrace_llm_running_answers{model="digest"}'] == 2
    assert now['headrace_llm_kv_held_pages{model="digest"}'] == 4
    gone.cancel()
    engine.gate.open()
    n_gone = len(gone.collect()[0].tokens)
    first.collect()
    again = engine.generate([1] * 40, SamplingParams(max_tokens=5, n=2)).collect()
    assert again[0].usage is not None
    assert again[0].usage.cached_tokens == 32
    engine.generate([3], SamplingParams(max_tokens=1)).collect()
    seen = _read(registry)
    label = '{model="digest"}'
    assert seen[f"headrace_llm_prompt_tokens_total{label}"] == 40 + 10 + 40 + 1
    assert seen[f"headrace_llm_cached_tokens_total{label}"] == 32
    assert seen[f"headrace_llm_generated_tokens_total{label}"] == 10 + n_gone + 2 * 5 + 1
    assert seen['headrace_llm_answers_total{model="digest",reason="length"}'] == 4
    assert seen['headrace_llm_answers_total{model="digest",reason="cancelled"}'] == 1
    assert seen[f"headrace_llm_ttft_seconds_count{label}"] == 4
    assert seen[f"headrace_llm_queue_seconds_count{label}"] == 4
    assert seen[f"headrace_llm_itl_seconds_count{label}"] == 9 + (n_gone - 1) + 2 * 4
    assert seen[f"headrace_llm_kv_pages{label}"] == 40
    assert seen[f"headrace_llm_step_tokens_sum{label}"] >= 40 + 10 + 8 + 1
    engine.close()
    left = _read(registry)
    assert f"headrace_llm_kv_pages{label}" not in left, "the gauges of a closed engine are gone"
    assert left[f"headrace_llm_prompt_tokens_total{label}"] == 91, "its counts are not"


def test_preemptions_and_evictions_are_counted(make_engine: MakeEngine) -> None:
    registry = Registry()
    engine = make_engine(n_pages=12, max_context=192, metrics=LlmMetrics(registry))
    for generation in [engine.generate([i] * 20, SamplingParams(max_tokens=100)) for i in range(6)]:
        generation.collect()
    engine.generate([9], SamplingParams(max_tokens=1)).collect()
    seen = _read(registry)
    assert seen['headrace_llm_preemptions_total{model="digest"}'] == engine._loop._scheduler.preemptions > 0
    assert seen['headrace_llm_kv_evicted_pages_total{model="digest"}'] == engine._kv.pool.evicted > 0


def test_a_reload_keeps_its_gauges_when_the_old_engine_closes(make_engine: MakeEngine) -> None:
    registry = Registry()
    metrics = LlmMetrics(registry)
    old, new = make_engine(n_pages=40, metrics=metrics), make_engine(n_pages=50, metrics=metrics)
    old.close()
    assert _read(registry)['headrace_llm_kv_pages{model="digest"}'] == 50
    new.close()
    assert 'headrace_llm_kv_pages{model="digest"}' not in _read(registry)


@pytest.mark.parametrize("fails", [False, True])
def test_a_traced_request_has_a_span_for_each_part_of_its_life(make_engine: MakeEngine, fails: bool) -> None:
    exporter = InMemorySpanExporter()
    tracer = Tracer(TraceSettings(sample_ratio=1.0), exporter=exporter)
    engine = make_engine(tracer=tracer, gated=True)
    ctx: Any = Context()
    with tracer.root("http", ctx):
        generation = engine.generate([1] * 20, SamplingParams(max_tokens=5), ctx=ctx)
        engine.gate.wait()
        engine.gate.step(2)
        if fails:
            ctx.cancel()
        engine.gate.open()
        if fails:
            with pytest.raises(Cancelled):
                generation.collect()
        else:
            generation.collect()
        engine.generate([1], SamplingParams(max_tokens=1)).collect()
    spans = {span.name: span for span in exporter.get_finished_spans()}
    assert set(spans) == {"http", "queue", "prefill", "decode"}
    assert spans["prefill"].attributes == {"tokens": 20, "cached_tokens": 0}
    root = spans["http"].context.span_id
    assert all(spans[name].parent.span_id == root for name in ("queue", "prefill", "decode"))
    assert spans["decode"].status.is_ok is not fails
    tracer.close()
