"""Models and pipelines of a repository run in this process, by the same calls as `serve.client.Client`.

Only what is asked for is loaded: a model at its first use, a pipeline with the models that it needs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headrace.core.context import Context
from headrace.errors import InvalidInput, NotFound
from headrace.serve.model import Model
from headrace.serve.pipeline import Pipeline
from headrace.serve.protocol import Array, Payload, Tensors, TensorSpec
from headrace.serve.repository import Repository
from headrace.serve.versions import names_in

__all__ = ["Local"]


class Local:
    """A repository without a server. Blocking; use it in a `with` block, from one thread without an event loop.

    Raises `NotFound` when `root` is no folder, `ConfigError` when it is that of one model; its methods raise what
    loading or running raises.
    """

    def __init__(self, root: Path, *, timeout_s: float = 60.0) -> None:
        names_in(root)  # before anything is opened that would have to be closed
        self._root = root
        self._timeout_s = timeout_s
        self._runner = asyncio.Runner()
        self._repository: Repository | None = None

    def __enter__(self) -> Local:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._repository is not None:
            self._runner.run(self._repository.close())
        self._runner.close()

    def names(self) -> list[str]:
        """Names of the models and pipelines in the repository, sorted."""
        return names_in(self._root)

    def specs(self, model: str) -> tuple[TensorSpec, ...]:
        """The inputs of a model; raises `InvalidInput` if it is a pipeline."""
        return self._runner.run(self._model(model)).inputs

    def infer(self, model: str, tensors: Mapping[str, Array]) -> Tensors:
        """Run a model on named arrays of n rows (axis 0); returns its outputs."""
        return self._runner.run(self._infer(model, dict(tensors)))

    def pipeline(self, name: str, data: bytes, media_type: str = "application/octet-stream") -> Any:
        """Send `data` through a pipeline; returns its JSON-able answer."""
        return self._runner.run(self._pipeline(name, data, media_type.partition(";")[0].strip().lower()))

    async def _load(self, name: str) -> Model | Pipeline:
        if name not in self.names():
            raise NotFound(f"no model or pipeline {name!r} in {self._root}")
        if self._repository is None:
            self._repository = Repository(self._root)
        if name not in {entry["name"] for entry in self._repository.index() if entry["state"] == "READY"}:
            await self._repository.load(name)
        return self._repository.get(name)

    async def _model(self, name: str) -> Model:
        found = await self._load(name)
        if not isinstance(found, Model):
            raise InvalidInput(f"{name!r} is a pipeline; it takes a file, not tensors")
        return found

    async def _infer(self, name: str, tensors: Tensors) -> Tensors:
        return await (await self._model(name)).infer(tensors, Context(timeout_s=self._timeout_s))

    async def _pipeline(self, name: str, data: bytes, media_type: str) -> Any:
        found = await self._load(name)
        if not isinstance(found, Pipeline):
            raise InvalidInput(f"{name!r} is a model, not a pipeline; it takes tensors")
        payload = Payload(data=data, media_type=media_type)
        if found.config.consumes == "text":
            try:
                payload.text = data.decode("utf-8")
            except UnicodeDecodeError as error:
                raise InvalidInput(f"expected UTF-8 text: {error}") from error
        return (await found.run(payload, Context(timeout_s=self._timeout_s))).result
