"""The W3C `traceparent` header: an untrusted header in, a checked one (or "") out.

Version 00 of https://www.w3.org/TR/trace-context/: `00-<trace id, 32 hex>-<span id, 16 hex>-<flags, 2 hex>`; of the
flags only bit 0, "sampled", has a meaning. Headers of later versions are read as far as version 00 goes.
"""

from __future__ import annotations

import re

__all__ = ["format_traceparent", "parse_traceparent", "sampled"]

_SHAPE = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")


def parse_traceparent(header: str) -> str:
    """The header as version 00 with flags 00 or 01, or "" when it is missing or malformed. Never raises."""
    match = _SHAPE.fullmatch(header.strip(" \t"))
    if match is None:
        return ""
    version, trace_id, span_id, flags, rest = match.groups()
    if version == "ff" or (version == "00" and rest is not None):
        return ""
    if int(trace_id, 16) == 0 or int(span_id, 16) == 0:
        return ""
    return f"00-{trace_id}-{span_id}-0{int(flags, 16) & 1}"


def format_traceparent(trace_id: int, span_id: int) -> str:
    """The header that names a sampled span as the parent of what comes next."""
    return f"00-{trace_id:032x}-{span_id:016x}-01"


def sampled(traceparent: str) -> bool:
    """Whether spans below this (checked) parent are recorded; False for ""."""
    return traceparent[-1:] == "1"
