"""The `[llm]` table of a `headrace.toml`: a dictionary in, checked settings out. Strict: an unknown key is an error."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from headrace.errors import ConfigError, InvalidInput
from headrace.llm.params import SamplingParams
from headrace.serve.explain import explain

__all__ = ["LlmConfig", "llm_config"]

Count = Annotated[int, Meta(ge=1)]


class LlmConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a language model is run. What is left out is the engine's default: see `headrace.llm.engine.Engine.load`.

    Attributes:
        threads: Threads that compute.
        max_context: Most tokens of a prompt with its answer.
        kv_bytes: Room for keys and values of all answers.
        kv_type: How keys and values are kept.
        activations: How what matrices are multiplied with is rounded.
        weight_bits: Of matrices that the file holds as floats.
        max_batch: Answers that are computed at once.
        max_queue: Answers that wait; one more is refused with 429.
        step_tokens: Most tokens of one step.
        slack: How much longer a step may take for other requests' prompts, as a share of its time without them.
        policy: Which cached pages go first.
        chat_template: A Jinja template in place of the file's own.
        sampling: What `infer` and `/generate` use where the request states nothing.
        max_priority: The highest priority a client may ask for; above 0, clients can push each other out.
    """

    threads: Annotated[int, Meta(ge=1, le=1024)] | None = None
    max_context: Annotated[int, Meta(ge=2)] | None = None
    kv_bytes: Count | None = None
    kv_type: Literal["f16", "int8"] | None = None
    activations: Literal["int8", "int12"] | None = None
    weight_bits: Literal[4, 8] | None = None
    max_batch: Count | None = None
    max_queue: Count | None = None
    step_tokens: Count | None = None
    slack: Annotated[float, Meta(ge=0)] | None = None
    policy: Literal["score", "lru", "lfu"] | None = None
    chat_template: str | None = None
    sampling: SamplingParams = SamplingParams(max_tokens=256)
    max_priority: int = 0

    def engine_options(self) -> dict[str, Any]:
        """What was stated, as arguments of `Engine.load`."""
        names = (name for name in self.__struct_fields__ if name not in ("sampling", "max_priority"))
        return {name: value for name in names if (value := getattr(self, name)) is not None}


def llm_config(table: Mapping[str, Any]) -> LlmConfig:
    """Check the table. Raises `ConfigError` naming the key."""
    try:
        config = msgspec.convert(table, LlmConfig, str_keys=True)
    except msgspec.ValidationError as error:
        raise ConfigError(explain(error, LlmConfig).replace("`$", "`llm")) from None
    try:
        config.sampling.check(1 << 31)
    except InvalidInput as error:
        raise ConfigError(f"llm.sampling.{error}") from None
    return config
