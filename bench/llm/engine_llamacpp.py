"""llama.cpp through the low-level calls of llama-cpp-python: no sampling at all, which flatters it a little."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence

import llama_cpp as lib
from _load import main


class LlamaCpp:
    def __init__(self, args: argparse.Namespace) -> None:
        lib.llama_backend_init()
        self._model = lib.llama_model_load_from_file(args.model.encode(), lib.llama_model_default_params())
        params = lib.llama_context_default_params()
        most = max(args.streams)
        longest = max(args.prompt, args.stream_prompt) + 2 * args.gen + 16
        params.n_ctx = max(longest, most * (args.stream_prompt + 2 * args.gen + 16))
        params.n_batch = params.n_ubatch = 512
        params.n_seq_max = most
        params.kv_unified = True
        params.n_threads = params.n_threads_batch = args.threads
        self._context = lib.llama_init_from_model(self._model, params)
        self._batch = lib.llama_batch_init(512, 0, 1)

    def run(self, prompts: Sequence[Sequence[int]], n_tokens: int) -> list[float]:
        lib.llama_memory_clear(lib.llama_get_memory(self._context), True)
        for s, prompt in enumerate(prompts):
            for at in range(0, len(prompt), 512):
                part = prompt[at : at + 512]
                self._decode([(token, at + i, s, at + i == len(prompt) - 1) for i, token in enumerate(part)])
        times = [time.perf_counter()]
        for i in range(1, n_tokens):
            self._decode([(1000 + i, len(prompt) + i - 1, s, True) for s, prompt in enumerate(prompts)])
            times.append(time.perf_counter())
        return times

    def _decode(self, rows: Sequence[tuple[int, int, int, bool]]) -> None:
        batch = self._batch
        batch.n_tokens = len(rows)
        for i, (token, position, sequence, wanted) in enumerate(rows):
            batch.token[i], batch.pos[i] = token, position
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, sequence
            batch.logits[i] = wanted
        if lib.llama_decode(self._context, batch) != 0:
            raise SystemExit("llama_decode failed")
        lib.llama_synchronize(self._context)


if __name__ == "__main__":
    main(LlamaCpp)
