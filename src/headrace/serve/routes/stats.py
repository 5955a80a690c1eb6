"""A model's statistics in the form of the Open Inference Protocol's statistics extension."""

from __future__ import annotations

from typing import Any

from headrace.serve.model import Model

__all__ = ["model_stats"]


def model_stats(model: Model) -> dict[str, Any]:
    """Counts, and times in nanoseconds, since the model was loaded."""
    series = model.series
    run_counts, run_s = series.run_s.snapshot()
    queue_counts, queue_s = series.queue_s.snapshot()
    request_counts, request_s = series.request_s.snapshot()
    _, rows = series.batch_rows.snapshot()
    requests, runs = sum(request_counts), sum(run_counts)
    return {
        "name": model.name,
        "version": model.version,
        "last_inference": int(series.last_run_s * 1e3),
        "inference_count": int(rows),
        "execution_count": runs,
        "inference_stats": {
            "success": _entry(requests, request_s),
            "fail": _entry(series.failed_count, series.failed_s),
            "queue": _entry(sum(queue_counts), queue_s),
            "compute_input": _entry(0, 0.0),
            "compute_infer": _entry(runs, run_s),
            "compute_output": _entry(0, 0.0),
        },
        "batch_stats": [],
    }


def _entry(count: int, seconds: float) -> dict[str, int]:
    return {"count": count, "ns": int(seconds * 1e9)}
