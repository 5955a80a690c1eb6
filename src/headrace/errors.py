"""Every error Headrace raises on purpose, as one tree; each class carries the HTTP and gRPC status it maps to.

HeadraceError                 500 INTERNAL
├─ InvalidInput               400 INVALID_ARGUMENT     the request is wrong; says what, where, what was expected
│  ├─ PayloadTooLarge         413 RESOURCE_EXHAUSTED
│  └─ UnsupportedMedia        415 INVALID_ARGUMENT
├─ Unauthenticated            401 UNAUTHENTICATED
├─ PermissionDenied           403 PERMISSION_DENIED
├─ NotFound                   404 NOT_FOUND
├─ Conflict                   409 FAILED_PRECONDITION
├─ RejectedResult             422 FAILED_PRECONDITION  the model answered, but validation refused the answer
├─ Overloaded                 429 RESOURCE_EXHAUSTED   carries retry_after_s
├─ Cancelled                  499 CANCELLED            the client went away or the caller gave up
├─ Unavailable                503 UNAVAILABLE          draining, not loaded yet, or a peer is down
├─ DeadlineExceeded           504 DEADLINE_EXCEEDED
├─ StageFailed                500 INTERNAL             a stage raised something unexpected; names the stage
├─ ConfigError                500 FAILED_PRECONDITION  a setting is wrong; names the file and key
├─ LoadFailed                 500 FAILED_PRECONDITION  a model could not be loaded; names model and cause
├─ IntegrityError             500 DATA_LOSS            bytes do not match their digest
├─ MissingExtra               501 UNIMPLEMENTED        an optional dependency is absent; names the extra
├─ ChannelClosed              500 UNAVAILABLE
└─ LeaseError                 500 INTERNAL             a pooled buffer was returned twice or used after return
"""

from __future__ import annotations

from typing import Any, ClassVar

__all__ = [
    "Cancelled",
    "ChannelClosed",
    "ConfigError",
    "Conflict",
    "DeadlineExceeded",
    "HeadraceError",
    "IntegrityError",
    "InvalidInput",
    "LeaseError",
    "LoadFailed",
    "MissingExtra",
    "NotFound",
    "Overloaded",
    "PayloadTooLarge",
    "PermissionDenied",
    "RejectedResult",
    "StageFailed",
    "Unauthenticated",
    "Unavailable",
    "UnsupportedMedia",
]


class HeadraceError(Exception):
    """Root of the tree. `str(error)` is safe to show to a client."""

    http_status: ClassVar[int] = 500
    grpc_status: ClassVar[str] = "INTERNAL"

    def __str__(self) -> str:
        """The message, always encodable: a text from outside may hold lone surrogates."""
        text = super().__str__()
        return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode("utf-8")

    def __reduce__(self) -> tuple[Any, ...]:
        """Errors cross process boundaries whatever their constructors take."""
        return _revive, (type(self), self.args, self.__dict__.copy())


def _revive(kind: type[HeadraceError], args: tuple[Any, ...], state: dict[str, Any]) -> HeadraceError:
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(state)
    return error


class InvalidInput(HeadraceError):
    http_status, grpc_status = 400, "INVALID_ARGUMENT"


class PayloadTooLarge(InvalidInput):
    http_status, grpc_status = 413, "RESOURCE_EXHAUSTED"


class UnsupportedMedia(InvalidInput):
    http_status, grpc_status = 415, "INVALID_ARGUMENT"


class Unauthenticated(HeadraceError):
    http_status, grpc_status = 401, "UNAUTHENTICATED"


class PermissionDenied(HeadraceError):
    http_status, grpc_status = 403, "PERMISSION_DENIED"


class NotFound(HeadraceError):
    http_status, grpc_status = 404, "NOT_FOUND"


class Conflict(HeadraceError):
    http_status, grpc_status = 409, "FAILED_PRECONDITION"


class RejectedResult(HeadraceError):
    http_status, grpc_status = 422, "FAILED_PRECONDITION"


class Overloaded(HeadraceError):
    """The server is full. `retry_after_s` (seconds) is a hint for the client's next try."""

    http_status, grpc_status = 429, "RESOURCE_EXHAUSTED"

    def __init__(self, message: str, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class Cancelled(HeadraceError):
    http_status, grpc_status = 499, "CANCELLED"


class Unavailable(HeadraceError):
    http_status, grpc_status = 503, "UNAVAILABLE"


class DeadlineExceeded(HeadraceError):
    http_status, grpc_status = 504, "DEADLINE_EXCEEDED"


class StageFailed(HeadraceError):
    """A stage raised an error of its own; `stage` names it and `__cause__` is the original error."""

    def __init__(self, stage: str, message: str) -> None:
        super().__init__(f"stage {stage!r}: {message}")
        self.stage = stage


class ConfigError(HeadraceError):
    http_status, grpc_status = 500, "FAILED_PRECONDITION"


class LoadFailed(HeadraceError):
    http_status, grpc_status = 500, "FAILED_PRECONDITION"


class IntegrityError(HeadraceError):
    http_status, grpc_status = 500, "DATA_LOSS"


class MissingExtra(HeadraceError):
    """An optional dependency is absent. `extra` is the name to give to `pip install 'headrace[extra]'`."""

    http_status, grpc_status = 501, "UNIMPLEMENTED"

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f"{package} is not installed; run: pip install 'headrace[{extra}]'")
        self.extra = extra


class ChannelClosed(HeadraceError):
    http_status, grpc_status = 500, "UNAVAILABLE"


class LeaseError(HeadraceError):
    pass
