"""Headrace through its public engine."""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Sequence

from _load import main

from headrace.llm import Engine, SamplingParams
from headrace.llm.generation import Generation


class Headrace:
    def __init__(self, args: argparse.Namespace) -> None:
        longest = max(args.prompt, args.stream_prompt) + 2 * args.gen + 16
        pages = max(args.streams) * (-(-longest // 16) + 1)
        self._engine = Engine.load(
            args.model,
            args.threads,
            max_context=longest,
            n_pages=pages,
            kv_type=args.kv_type,
            activations=args.activations,
        )

    def run(self, prompts: Sequence[Sequence[int]], n_tokens: int) -> list[float]:
        return asyncio.run(self._run(prompts, SamplingParams(max_tokens=n_tokens, ignore_eos=True)))

    async def _run(self, prompts: Sequence[Sequence[int]], params: SamplingParams) -> list[float]:
        answers = [self._engine.generate(list(prompt), params) for prompt in prompts]
        times: list[list[float]] = [[] for _ in answers]

        async def read(answer: Generation, seen: list[float]) -> None:
            async for chunk in answer:
                seen += [time.perf_counter()] * len(chunk.tokens)

        await asyncio.gather(*map(read, answers, times))
        return times[0]


if __name__ == "__main__":
    main(Headrace)
