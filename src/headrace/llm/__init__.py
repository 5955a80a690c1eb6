"""The language-model plane: a quantised checkpoint in, tokens out, many requests at once on a few cores."""

from headrace.llm.engine import Engine
from headrace.llm.generation import Generation
from headrace.llm.params import Chunk, Grammar, SamplingParams

__all__ = ["Chunk", "Engine", "Generation", "Grammar", "SamplingParams"]
