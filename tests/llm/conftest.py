"""Real models for tests of the language-model plane: pulled once, kept in the checkout between runs."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.errors import Unavailable
from headrace.store.pull import pull_recipe
from headrace.store.versions import ModelStore


@pytest.fixture(scope="session")
def real_model(checkout: Path) -> Callable[[str], Path]:
    """The GGUF file of recipe "smollm2" or "gemma3-270m"; only a missing network is a reason to skip."""

    def find(name: str) -> Path:
        store = ModelStore(checkout / ".cache" / "models")
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("HEADRACE_CACHE", os.environ.get("HEADRACE_CACHE", str(checkout / ".cache" / "headrace")))
            try:
                pull_recipe(store, name)
            except Unavailable as error:
                pytest.skip(f"the model cannot be pulled: {error}")
        return next(store.resolve(name).glob("*.gguf"))

    return find
