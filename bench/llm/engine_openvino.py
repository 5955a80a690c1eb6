"""OpenVINO GenAI's continuous batching, prefix caching off."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence

import numpy as np
import openvino as ov
import openvino_genai as genai
from _load import main


class OpenVino:
    def __init__(self, args: argparse.Namespace) -> None:
        scheduler = genai.SchedulerConfig()
        scheduler.enable_prefix_caching = False
        scheduler.max_num_seqs = max(args.streams)
        scheduler.max_num_batched_tokens = 512
        scheduler.cache_size = 2
        self._pipeline = genai.LLMPipeline(
            args.model, "CPU", scheduler_config=scheduler, INFERENCE_NUM_THREADS=args.threads
        )

    def run(self, prompts: Sequence[Sequence[int]], n_tokens: int) -> list[float]:
        ids = np.asarray(prompts, np.int64)
        config = genai.GenerationConfig()
        config.max_new_tokens, config.ignore_eos, config.do_sample = n_tokens, True, False
        began = time.perf_counter()
        inputs = genai.TokenizedInputs(ov.Tensor(ids), ov.Tensor(np.ones_like(ids)))
        metrics = self._pipeline.generate(inputs, config).perf_metrics
        first_s = began + metrics.get_ttft().mean / 1e3
        stamps_ms = metrics.raw_metrics.m_new_token_times  # of the first answer; whatever their origin
        return [first_s + (stamp - stamps_ms[0]) / 1e3 for stamp in stamps_ms]


if __name__ == "__main__":
    main(OpenVino)
