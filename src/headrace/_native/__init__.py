"""The compiled extension, re-exported under one name so that the rest of the package never touches `_ext`."""

from headrace._native._ext import (
    BufferPool,
    Lease,
    MpmcRing,
    SharedSegment,
    SpscRing,
    ThreadPool,
    TokenSampler,
    best_isa,
    choose_isa,
    cpu_features,
    format_json_numbers,
    parse_json_numbers,
    sample_rows,
    supported_isas,
)

__all__ = [
    "BufferPool",
    "Lease",
    "MpmcRing",
    "SharedSegment",
    "SpscRing",
    "ThreadPool",
    "TokenSampler",
    "best_isa",
    "choose_isa",
    "cpu_features",
    "format_json_numbers",
    "parse_json_numbers",
    "sample_rows",
    "supported_isas",
]
