"""The language-model engine: prompts in from any thread, answers out as they are written, many at once.

`Engine.load` opens a model file; `generate` returns at once and the answer comes out of what it returns. One thread of
the engine's own runs the model (`headrace.llm.loop`).
"""

from __future__ import annotations

import asyncio
import os
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.core.context import Context
from headrace.core.telemetry import Tracer
from headrace.errors import InvalidInput, Overloaded, Unavailable
from headrace.llm.chat import Chat
from headrace.llm.execution import PAGE_TOKENS, Executor
from headrace.llm.generation import Generation
from headrace.llm.grammar import GrammarFactory
from headrace.llm.kernels import Activations, KvType, NativeExecutor, Progress, WeightBits
from headrace.llm.kv import KvCache, make_policy
from headrace.llm.loader import load_model
from headrace.llm.loop import Loop
from headrace.llm.metrics import EngineMetrics, LlmMetrics
from headrace.llm.params import SamplingParams
from headrace.llm.probe import Probe, hidden_rows, logit_rows, unit_rows
from headrace.llm.prompt import Prompt, Prompts
from headrace.llm.sampler import Sampler
from headrace.llm.scheduler import BatchBuilder, Scheduler
from headrace.llm.sequence import Request
from headrace.llm.settings import EngineSettings, check_number, page_bytes, page_count
from headrace.llm.tokenizer import Tokenizer, load_tokenizer
from headrace.llm.writer import Writer

__all__ = ["Engine"]

GREEDY = SamplingParams()

LOGIT_PORTION = 64
"""Rows of logits computed at a time: they are as wide as the vocabulary."""


class Engine:
    """Serves one model. Thread-safe; a context manager that closes it.

    Args:
        executor: Runs the model; the engine's from now on, closed with it.
        tokenizer: None takes and gives token ids only.
        chat: How the model writes conversations; None takes no messages.
        settings: Sizes and policies; `max_context` is cut to what the executor's pages hold.
        name: Of the model, in metrics.
        metrics, tracer: Where it tells of itself.

    Attributes:
        settings: As they are in use.
        n_pages, page_bytes: Of keys and values.
    """

    def __init__(
        self,
        executor: Executor,
        *,
        tokenizer: Tokenizer | None = None,
        chat: Chat | None = None,
        settings: EngineSettings,
        name: str = "",
        metrics: LlmMetrics | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        step_tokens = min(settings.step_tokens, executor.max_tokens)
        max_context = min(settings.max_context, executor.n_pages * PAGE_TOKENS)
        self.settings = settings = replace(settings, step_tokens=step_tokens, max_context=max_context)
        self.tokenizer, self.chat = tokenizer, chat
        self.name = name
        self.n_pages, self.page_bytes = executor.n_pages, executor.page_bytes
        self._executor = executor
        self._vocab_size, self._width = executor.vocab_size, executor.width
        self._prompts = Prompts(tokenizer, chat, executor.vocab_size, max_context)
        self._grammars: GrammarFactory | None = None
        self._end_ids = tokenizer.end_ids if tokenizer is not None else frozenset()
        self._kv = KvCache(executor.n_pages, make_policy(settings.policy), prompts_differ=executor.prompts_differ)
        numbers = EngineMetrics(metrics, name, tracer)
        scheduler = Scheduler(self._kv, settings, executor.copy_page, numbers.admitted)
        numbers.watch(scheduler)
        self._loop = Loop(executor, scheduler, BatchBuilder(settings.max_batch, step_tokens, max_context), numbers)
        self._closing = Lock()
        self._pid = os.getpid()
        self._loop.start()
        # Neither the thread nor the interpreter's exit keeps an engine alive that nobody holds any more.
        self._finaliser = weakref.finalize(self, _end, self._loop, executor, self._pid)

    @classmethod
    def load(
        cls,
        path: str | Path,
        threads: int | None = None,
        *,
        max_context: int | None = None,
        kv_bytes: int | None = None,
        n_pages: int | None = None,
        kv_type: KvType = "f16",
        activations: Activations = "int12",
        weight_bits: WeightBits = 8,
        isa: str = "",
        chat_template: str | None = None,
        name: str = "",
        metrics: LlmMetrics | None = None,
        tracer: Tracer | None = None,
        progress: Progress | None = None,
        **settings: Any,
    ) -> Engine:
        """Load a model file and start serving it.

        Args:
            path: A GGUF file, or a folder with `config.json` and safetensors.
            threads: That share each step; None: as many as there are usable CPUs.
            max_context: Most tokens of a prompt with its answer; None: what the model was made for.
            kv_bytes, n_pages: Room for keys and values, in bytes or in pages of 16 tokens; None: enough for
                `max_batch` contexts, within 1 GiB and a quarter of the memory. Memory is used as pages are.
            kv_type: How they are kept, "f16" or "int8".
            activations: How what matrices are multiplied with is rounded, "int8", which is as far from the exact model
                as other engines are, or "int12" (`docs/perplexity.md`).
            weight_bits: Of matrices that the file holds as floats, quantised as they are packed: 8 or 4.
            isa: Instruction set of the kernels, e.g. "avx2"; "": `$HEADRACE_ISA`, else the best there is.
            chat_template: In place of the file's own.
            name: In metrics; "": the file's.
            progress: Told of (matrices packed, matrices in all) while weights are packed for the first time.
            settings: The other fields of `EngineSettings`.

        Raises `LoadFailed` naming the file and what is wrong with it, `ConfigError` naming a setting.
        """
        for key, value in (("threads", threads), ("n_pages", n_pages), ("kv_bytes", kv_bytes)):
            if value is not None:
                check_number(key, value, 1, 1024 if key == "threads" else 1 << 48)
        checkpoint, config, trace = load_model(path, max_context)
        try:
            chosen = EngineSettings(max_context=config.context_length, **settings)
            tokenizer = load_tokenizer(checkpoint.metadata)
            chat = Chat(checkpoint.metadata, tokenizer, chat_template)
            pages = n_pages or page_count(page_bytes(trace, kv_type), chosen.max_context, chosen.max_batch, kv_bytes)
            executor = NativeExecutor(
                trace,
                checkpoint,
                threads=threads,
                n_pages=pages,
                max_tokens=chosen.step_tokens,
                kv_type=kv_type,
                activations=activations,
                weight_bits=weight_bits,
                isa=isa,
                progress=progress,
            )
        finally:
            checkpoint.close()
        return cls(
            executor,
            tokenizer=tokenizer,
            chat=chat,
            settings=chosen,
            name=name or Path(path).stem,
            metrics=metrics,
            tracer=tracer,
        )

    def generate(
        self,
        prompt: Prompt,
        params: SamplingParams = GREEDY,
        *,
        ctx: Context | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        truncate: bool = False,
    ) -> Generation:
        """Start answering a prompt; returns at once.

        Args:
            prompt: A text, token ids, or chat messages (`{"role": …, "content": …}`), with `tools` they may call.
            params: How to choose tokens and when to stop; greedy by default.
            ctx: Deadline, priority, tenant and cancellation.
            truncate: Let a prompt that is too long lose its beginning (`Generation.truncated_tokens` says how much).

        Raises `InvalidInput` for a prompt or parameters that cannot be, or that do not fit the context, with the
        numbers; `Overloaded` when too many wait; `Unavailable` when the engine is closed.
        """
        self._check_open()
        if not isinstance(params, SamplingParams):
            raise InvalidInput(f"params: expected SamplingParams, got {type(params).__name__}")
        ctx = ctx if ctx is not None else Context()
        ctx.check()
        params.check(self._vocab_size)
        self._check_room(params.n)  # before a long text is read in vain
        now_s = time.perf_counter()
        known = self._prompts.tokens(prompt, tools, truncate=truncate)
        ctx.check()
        tokens, limit, cut = self._prompts.fit(known, params.max_tokens, truncate)
        writers = self._writers(tokens, params, limit)
        request = Request(tokens, self._kv.names(tokens), writers, ctx, self._loop.cancelled, now_s)
        self._loop.submit(request)
        return Generation(request, cut, self)

    @property
    def width(self) -> int:
        """Numbers of an embedding."""
        return self._width

    def tokens(self, text: str | Sequence[int]) -> list[int]:
        """The token ids of a text (or of its ids, checked) that is to be read as a whole. Raises `InvalidInput`."""
        return self._prompts.whole(text)

    def logits(self, token_ids: Sequence[int]) -> npt.NDArray[np.float32]:
        """float32[n, vocab]: what the model expects after each token of a text. Waits for it."""
        tokens = self._prompts.whole(token_ids)
        probe = self._submit(Probe([tokens], logit_rows, self._vocab_size, LOGIT_PORTION, Context()))
        return probe.result.result()[0].astype(np.float32, copy=False)

    def embed(self, texts: Sequence[str | Sequence[int]], *, ctx: Context | None = None) -> npt.NDArray[np.float32]:
        """float32[n, width]: for each text (or its token ids) the mean of the final hidden states of its tokens, scaled
        to length 1. Waits for it, no longer than `ctx` lives. Raises what `generate` does."""
        return unit_rows(self._width, self._embedding(texts, ctx).result.result())

    async def aembed(
        self, texts: Sequence[str | Sequence[int]], *, ctx: Context | None = None
    ) -> npt.NDArray[np.float32]:
        """`embed` for an event loop; when its task is cancelled, so is the work."""
        return unit_rows(self._width, await asyncio.wrap_future(self._embedding(texts, ctx).result))

    def _embedding(self, texts: Sequence[str | Sequence[int]], ctx: Context | None) -> Probe:
        if isinstance(texts, str):
            raise InvalidInput("texts: expected a list of texts, got a text")
        tokens = [self._prompts.whole(text) for text in texts]
        portion = self.settings.step_tokens
        return self._submit(Probe(tokens, hidden_rows, self._width, portion, ctx or Context(), mean=True))

    def close(self, drain_s: float = 0.0) -> None:
        """Accept nothing more, let what runs go on for `drain_s` seconds, end the rest with `Unavailable`, and free the
        model; idempotent."""
        with self._closing:
            if self._pid == os.getpid() and self._finaliser.detach():
                self._loop.stop(drain_s)
                self._executor.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()

    def _writers(self, tokens: list[int], params: SamplingParams, limit: int) -> list[Writer]:
        """One for each answer."""
        stops = frozenset(params.stop_token_ids) | (frozenset() if params.ignore_eos else self._end_ids)
        matcher = self._grammar().matcher(params.grammar) if params.grammar is not None else None
        writers = []
        for index in range(params.n):
            own = matcher.copy() if matcher is not None and index else matcher
            sampler = Sampler(params, self._vocab_size, tokens, index=index, matcher=own)
            writers.append(Writer(index, tokens, params, sampler, self.tokenizer, stops, limit))
        return writers

    def _grammar(self) -> GrammarFactory:
        """Made when the first grammar is asked for."""
        with self._closing:
            if self._grammars is None:
                if self.tokenizer is None:
                    raise InvalidInput("grammar: this model has no tokenizer, so its tokens are no text")
                self._grammars = GrammarFactory.of(self.tokenizer, self._vocab_size)
            return self._grammars

    def _submit(self, probe: Probe) -> Probe:
        self._check_open()
        self._check_room(1)
        self._loop.probe(probe)
        return probe

    def check_answers(self, n: int) -> None:
        """Raise `InvalidInput` unless so many answers may be wanted at once."""
        most = self.settings.max_queue + self.settings.max_batch
        if n > most:
            raise InvalidInput(f"{n} answers at once: expected at most {most}, max_queue and max_batch together")

    def _check_room(self, answers: int) -> None:
        self.check_answers(answers)
        queued = self._loop.queued
        if queued >= self.settings.max_queue:
            raise Overloaded(f"{queued} answers are waiting already; at most {self.settings.max_queue} may")

    def _check_open(self) -> None:
        if self._pid != os.getpid():
            raise Unavailable(
                f"the engine runs in process {self._pid}, not in this one, which was forked from it; load it here"
            )
        if self._loop.error is not None:
            raise self._loop.error.with_traceback(None)


def _end(loop: Loop, executor: Executor, pid: int) -> None:
    """Nobody holds the engine any more, or the interpreter exits."""
    if pid == os.getpid():
        loop.stop(0.0)
        executor.close()
