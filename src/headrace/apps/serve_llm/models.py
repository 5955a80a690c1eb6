"""The language models among what a repository serves: a name in, the loaded model with its engine out.

Requests of all text routes pass through here: who asks and how long they are willing to wait goes into their context,
and a request that meets a model just being replaced goes to its successor.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, TypeVar

from headrace.apps.serve_llm.backend import LlmBackend
from headrace.apps.serve_llm.errors import BadRequest, UnknownModel
from headrace.core.context import Context
from headrace.errors import NotFound, Unauthenticated, Unavailable
from headrace.serve.codec.message import Request
from headrace.serve.model import Model
from headrace.serve.pipeline import Pipeline
from headrace.serve.repository import Repository
from headrace.serve.routes.body import timeout_of

if TYPE_CHECKING:
    from headrace.llm.engine import Engine

__all__ = ["LARGE_BODY", "TENANT_HEADER", "LanguageModel", "LanguageModels", "check_key"]

T = TypeVar("T")

TENANT_HEADER = b"x-tenant-id"

LARGE_BODY = 8 * 1024
"""From here on templates and tokenizers work on a thread: it takes longer than the hop."""


class LanguageModel:
    """One version of a served language model."""

    def __init__(self, model: Model, backend: LlmBackend) -> None:
        self.name = model.name
        self.model = model
        self.backend = backend


class LanguageModels:
    """Finds models and begins work on them."""

    def __init__(self, repository: Repository) -> None:
        self._repository = repository

    def all(self) -> list[LanguageModel]:
        """Those that are ready, by name."""
        found = [_language_model(model) for model in self._repository.models()]
        return [model for model in found if model is not None]

    def get(self, name: str) -> LanguageModel | None:
        """The language model of this name, or None when what has this name is something else, or nothing.

        Raises `Unavailable` while it is loading, or when it failed to load.
        """
        try:
            return _language_model(self._repository.get(name))
        except NotFound:
            return None

    def find(self, name: str) -> LanguageModel:
        """The language model of this name. Raises `UnknownModel` saying which there are, `Unavailable`."""
        found = self.get(name)
        if found is None:
            names = ", ".join(repr(model.name) for model in self.all()) or "none"
            raise UnknownModel(f"no language model {name!r} is served; there are: {names}")
        return found

    def only_one(self) -> LanguageModel | None:
        """The language model, where nothing else turns text into text; None where there is no language model at all.

        Raises `NotFound` with the names there are when there are several.
        """
        found = self.all()
        names = [model.name for model in found]
        names += [one.name for one in self._repository.pipelines() if one.config.consumes == "text"]
        if found and len(names) > 1:
            raise NotFound(f"`model` must name a language model or a text pipeline; there are: {', '.join(names)}")
        return found[0] if found else None

    @asynccontextmanager
    async def begin(
        self, request: Request, model: LanguageModel, work: Callable[[Engine], T], *, long: bool = False
    ) -> AsyncIterator[T]:
        """`work` on the model's engine, on a thread when it takes `long` or there is much to read; the engine stays
        until the block ends.

        Where the model has been closed just now, the work goes to its successor.
        """
        while True:
            with model.backend.working():
                try:
                    engine = model.backend.engine
                    on_thread = long or len(request.body) >= LARGE_BODY
                    begun = await asyncio.to_thread(work, engine) if on_thread else work(engine)
                except Unavailable:
                    successor = self.get(model.name)
                    if successor is None or successor.backend is model.backend:
                        raise
                    model = successor
                    continue
                yield begun
                return

    def under(self, request: Request, model: LanguageModel, user: str | None, priority: int | None) -> Context:
        """The request's context with its deadline, tenant and priority."""
        ctx = request.ctx
        assert ctx is not None
        ctx.limit(timeout_of(request, model.model.config.timeout_s))
        ctx.tenant = request.header(TENANT_HEADER)[:128] or (user or "")[:128]
        ctx.priority = priority or 0
        if ctx.priority > model.backend.max_priority:
            most = model.backend.max_priority
            raise BadRequest("priority", f"this model takes none above {most} (`llm.max_priority`), got {priority}")
        return ctx


def check_key(request: Request, key: str) -> None:
    """Raise `Unauthenticated` (401) unless the request carries the key, where there is one."""
    if not key:
        return
    scheme, _, given = request.headers.get(b"authorization", b"").partition(b" ")
    if scheme.lower() != b"bearer" or not hmac.compare_digest(given.strip(), key.encode()):
        raise Unauthenticated("this server needs an API key: Authorization: Bearer KEY")


def _language_model(found: Model | Pipeline) -> LanguageModel | None:
    if isinstance(found, Model) and isinstance(found.backend, LlmBackend):
        return LanguageModel(found, found.backend)
    return None
