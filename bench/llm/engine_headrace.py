"""Headrace through its public engine."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from threading import Thread

from _load import main

from headrace.llm import Engine, SamplingParams


class Headrace:
    def __init__(self, args: argparse.Namespace) -> None:
        longest = max(args.prompt, args.stream_prompt) + args.gen + 16
        pages = max(args.streams) * (-(-longest // 16) + 1)
        self._engine = Engine.load(args.model, args.threads, max_context=longest, n_pages=pages, kv_type=args.kv_type)

    def run(self, prompts: Sequence[Sequence[int]], n_tokens: int) -> list[float]:
        params = SamplingParams(max_tokens=n_tokens, ignore_eos=True)
        answers = [self._engine.generate(list(prompt), params) for prompt in prompts]
        others = [Thread(target=list, args=(answer,)) for answer in answers[1:]]
        for other in others:
            other.start()
        times = []
        for chunk in answers[0]:
            times += [time.perf_counter()] * len(chunk.tokens)
        for other in others:
            other.join()
        return times


if __name__ == "__main__":
    main(Headrace)
