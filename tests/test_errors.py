"""The error tree: what the docstring of `headrace.errors` draws is what the classes are."""

import inspect
import pickle
import re
from http import HTTPStatus

import pytest

from headrace import errors
from headrace.errors import HeadraceError

# https://grpc.github.io/grpc/core/md_doc_statuscodes.html, without OK
GRPC_STATUSES = {
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
}

# 499 is not registered, but is what proxies write when the client went away.
HTTP_ERRORS = {status.value for status in HTTPStatus if status >= 400} | {499}

CLASSES = [cls for _, cls in inspect.getmembers(errors, inspect.isclass) if cls.__module__ == errors.__name__]


def drawn_tree():
    """(name, parent, HTTP status, gRPC status) of every line of the tree in the docstring."""
    path, lines = [], []
    for line in errors.__doc__.splitlines():
        match = re.match(r"((?:[│├└]─? *| {3})*)(\w+) +(\d{3}) ([A-Z_]+)(?: |$)", line)
        if match:
            prefix, name, http, grpc = match.groups()
            depth = len(prefix) // 3
            del path[depth:]
            lines.append((name, path[-1] if path else None, int(http), grpc))
            path.append(name)
    return lines


def test_the_drawing_is_the_code():
    code = {
        (cls.__name__, cls.__base__.__name__ if cls is not HeadraceError else None, cls.http_status, cls.grpc_status)
        for cls in CLASSES
    }
    assert sorted(drawn_tree(), key=str) == sorted(code, key=str)


def test_every_class_is_exported_and_nothing_else():
    assert sorted(errors.__all__) == sorted(cls.__name__ for cls in CLASSES)
    assert errors.__all__ == sorted(errors.__all__)


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_each_class_is_in_the_tree_with_valid_statuses(cls):
    assert issubclass(cls, HeadraceError)
    assert cls.http_status in HTTP_ERRORS
    assert cls.grpc_status in GRPC_STATUSES


def test_errors_carry_what_a_client_needs():
    assert errors.Overloaded("full", retry_after_s=2.5).retry_after_s == 2.5
    failed = errors.StageFailed("decode", "bad bytes")
    assert (failed.stage, str(failed)) == ("decode", "stage 'decode': bad bytes")
    missing = errors.MissingExtra("torch", "torch")
    assert missing.extra == "torch"
    assert "pip install 'headrace[torch]'" in str(missing)


@pytest.mark.parametrize("name", errors.__all__)
def test_every_error_crosses_a_process_boundary(name):
    kind = getattr(errors, name)
    made = {"StageFailed": ("decode", "no"), "MissingExtra": ("cv2", "vision"), "Overloaded": ("full", 7.0)}
    error = kind(*made.get(name, ("why",)))
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), vars(copy)) == (kind, str(error), vars(error))
