"""`POST /v1/embeddings`: texts in, one vector of unit length for each out."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from headrace.apps.serve_llm.completions import Prompt, prompts_of
from headrace.apps.serve_llm.errors import BadRequest
from headrace.apps.serve_llm.models import LARGE_BODY, LanguageModels
from headrace.apps.serve_llm.schema import EmbeddingRequest, read
from headrace.errors import InvalidInput
from headrace.serve.codec.message import Request
from headrace.serve.routes.body import json_response
from headrace.serve.watch import Watch

if TYPE_CHECKING:
    from headrace.llm.engine import Engine

__all__ = ["EmbeddingHandler"]


class EmbeddingHandler:
    """Answers requests for embeddings."""

    def __init__(self, models: LanguageModels, max_body_bytes: int) -> None:
        self._models = models
        self._max_body_bytes = max_body_bytes

    async def __call__(self, request: Request, params: dict[str, str]) -> None:
        asked = read(request, EmbeddingRequest, self._max_body_bytes)
        model = self._models.find(asked.model)
        prompts = prompts_of(asked.input, "input")
        ctx = self._models.under(request, model, asked.user, None)
        with model.backend.working(), Watch(ctx):
            engine = model.backend.engine
            if asked.dimensions not in (None, engine.width):
                raise BadRequest("dimensions", f"expected {engine.width}, the model's own, got {asked.dimensions}")
            on_thread = len(request.body) >= LARGE_BODY
            ids = await asyncio.to_thread(_tokens, engine, prompts) if on_thread else _tokens(engine, prompts)
            vectors = await engine.aembed(ids, ctx=ctx)
        encode = _base64 if asked.encoding_format == "base64" else _floats
        request.respond(
            json_response(
                {
                    "object": "list",
                    "data": [
                        {"object": "embedding", "index": index, "embedding": encode(vector)}
                        for index, vector in enumerate(vectors)
                    ],
                    "model": model.name,
                    "usage": dict.fromkeys(("prompt_tokens", "total_tokens"), sum(map(len, ids))),
                }
            )
        )


def _tokens(engine: Engine, prompts: Sequence[Prompt]) -> list[Sequence[int]]:
    """The token ids of each prompt."""
    try:
        return [engine.tokens(prompt) for prompt in prompts]
    except InvalidInput as error:
        raise BadRequest("input", str(error).removeprefix("prompt: ").removeprefix("text: ")) from None


def _base64(vector: Any) -> str:
    return base64.b64encode(np.ascontiguousarray(vector, "<f4").tobytes()).decode()


def _floats(vector: Any) -> Any:
    return vector.tolist()
