"""What a request used, over all its prompts and answers: last chunks in, counts for the client out."""

from __future__ import annotations

from headrace.llm.params import Chunk, Usage

__all__ = ["Tally"]


class Tally:
    """Counts each prompt once and all of its answers."""

    def __init__(self) -> None:
        self._prompts: dict[int, Usage] = {}
        self._completion_tokens = 0

    def add(self, chunk: Chunk, prompt: int = 0) -> None:
        """Note a chunk of an answer to prompt number `prompt`; the last one has the counts."""
        if chunk.usage is not None:
            self._prompts[prompt] = chunk.usage
            self._completion_tokens += chunk.usage.completion_tokens

    @property
    def usage(self) -> Usage:
        """What has been used by the answers that ended."""
        used = self._prompts.values()
        return Usage(
            sum(one.prompt_tokens for one in used), sum(one.cached_tokens for one in used), self._completion_tokens
        )
