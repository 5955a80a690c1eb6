"""Optional dependencies: imported where they are used, and their absence is an error that names the remedy."""

from __future__ import annotations

import importlib
from typing import Any

from headrace.errors import MissingExtra

__all__ = ["require"]


def require(module: str, extra: str) -> Any:
    """Import `module` and return it; raise `MissingExtra` naming `headrace[extra]` when it is not installed."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is not None and module.split(".")[0] == error.name.split(".")[0]:
            raise MissingExtra(module, extra) from error
        raise
