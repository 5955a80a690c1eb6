"""The language-model plane: a quantised checkpoint in, tokens out, many requests at once on a few cores."""

from headrace.llm.engine import Engine
from headrace.llm.params import SamplingParams

__all__ = ["Engine", "SamplingParams"]
