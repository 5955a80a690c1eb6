"""How good a model's numbers are: in flow executors and a text's tokens, out come perplexity and divergence.

Perplexity says how well the text is predicted; divergence how far an executor is from the reference on every token.
A text is read in windows that start afresh, and every token of a window but the first is predicted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from importlib import resources
from typing import TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from headrace.errors import InvalidInput
from headrace.llm.batches import one_sequence
from headrace.llm.execution import PAGE_TOKENS, Executor

__all__ = ["Divergence", "Perplexity", "Window", "divergence", "perplexity", "sample_text", "windows"]

Window: TypeAlias = npt.NDArray[np.int32]
Progress: TypeAlias = Callable[[int], None]
"""Told how many tokens are done since the last call."""

STEP_TOKENS = 128
"""Tokens a step: the logits of a large vocabulary are a megabyte each."""


class Perplexity(msgspec.Struct, frozen=True):
    """exp of the mean surprise in nats; `error` is one standard error of the perplexity over `tokens` predictions."""

    perplexity: float
    error: float
    tokens: int


class Divergence(msgspec.Struct, frozen=True):
    """KL(reference || executor) in nats over `tokens` predictions, and how often both find the same token likeliest.

    `perplexity` is the executor's, `reference_perplexity` the reference's on the same tokens.
    """

    mean_kl: float
    p99_kl: float
    max_kl: float
    same_top1: float
    perplexity: float
    reference_perplexity: float
    tokens: int


def sample_text() -> str:
    """The text used where none is given: prose, dialogue, code, tables and lists in many languages and scripts."""
    return (resources.files("headrace.llm") / "data" / "varied.txt").read_text("utf-8")


def windows(tokens: Sequence[int], length: int, bos: int | None = None) -> list[Window]:
    """Cut a text's tokens into windows of up to `length`, each headed by `bos` where the model wants one.

    A last window too short to predict anything is left out. Raises `InvalidInput` where none is left.
    """
    head = [] if bos is None else [bos]
    body = length - len(head)
    if body < 1:
        raise InvalidInput(f"window length: expected at least {len(head) + 1} tokens, got {length}")
    cut = [np.array([*head, *tokens[at : at + body]], np.int32) for at in range(0, len(tokens), body)]
    cut = [window for window in cut if len(window) > 1]
    if not cut:
        raise InvalidInput(f"text: expected at least {2 - len(head)} tokens, got {len(tokens)}")
    return cut


def perplexity(
    executor: Executor, texts: Sequence[Window], *, generated: bool = False, progress: Progress | None = None
) -> Perplexity:
    """Predict `texts` (from `windows`), computed as prompts are or as generated tokens are."""
    surprise, step = [], min(STEP_TOKENS, executor.max_tokens)
    for window in texts:
        for targets, logits in _predictions(executor, window, step, generated):
            surprise.append(_nll(logits, _log_sum(logits), targets))
            if progress:
                progress(len(targets))
    values = np.concatenate(surprise)
    value = math.exp(values.mean())
    return Perplexity(value, value * float(values.std()) / math.sqrt(len(values)), len(values))


def divergence(
    executor: Executor,
    reference: Executor,
    texts: Sequence[Window],
    *,
    generated: bool = False,
    progress: Progress | None = None,
) -> Divergence:
    """Hold `executor` against `reference` on `texts` (from `windows`), computed as prompts or generated tokens are."""
    if executor.vocab_size != reference.vocab_size:
        raise InvalidInput(f"vocabulary: expected {reference.vocab_size} as the reference, got {executor.vocab_size}")
    step = min(STEP_TOKENS, executor.max_tokens, reference.max_tokens)
    kls, same, own_nll, reference_nll = [], [], [], []
    for window in texts:
        pairs = zip(
            _predictions(executor, window, step, generated),
            _predictions(reference, window, step, generated),
            strict=True,
        )
        for (targets, own), (_, truth) in pairs:
            own_sum, truth_sum = _log_sum(own), _log_sum(truth)
            own_nll.append(_nll(own, own_sum, targets))
            reference_nll.append(_nll(truth, truth_sum, targets))
            same.append(own.argmax(axis=1) == truth.argmax(axis=1))
            kls.append(_kl(truth, truth_sum, own, own_sum))
            if progress:
                progress(len(targets))
    kl = np.concatenate(kls)
    return Divergence(
        mean_kl=float(kl.mean()),
        p99_kl=float(np.quantile(kl, 0.99)),
        max_kl=float(kl.max()),
        same_top1=float(np.concatenate(same).mean()),
        perplexity=math.exp(np.concatenate(own_nll).mean()),
        reference_perplexity=math.exp(np.concatenate(reference_nll).mean()),
        tokens=len(kl),
    )


def _predictions(
    executor: Executor, window: Window, step: int, generated: bool
) -> Iterator[tuple[Window, npt.NDArray[np.float32]]]:
    """Go through a window, `step` tokens at a time; yields what came next and the logits before it, good until then."""
    pages = np.arange(-(-len(window) // PAGE_TOKENS), dtype=np.int32)
    if len(pages) > executor.n_pages:
        raise InvalidInput(
            f"window length: expected at most {executor.n_pages * PAGE_TOKENS} tokens, got {len(window)}"
        )
    for at in range(0, len(window) - 1, step):
        tokens = window[at : min(at + step, len(window) - 1)]
        output = executor.step(one_sequence(tokens, pages, position=at, generated=generated))
        yield window[at + 1 : at + 1 + len(tokens)], output.logits


def _log_sum(logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    """log(sum(exp(row))) for every row."""
    top = logits.max(axis=1)
    total = np.exp(logits - top[:, None]).sum(axis=1, dtype=np.float64)
    return np.asarray(top + np.log(total), np.float64)


def _nll(logits: npt.NDArray[np.float32], log_sum: npt.NDArray[np.float64], targets: Window) -> npt.NDArray[np.float64]:
    return np.asarray(log_sum - logits[np.arange(len(targets)), targets], np.float64)


def _kl(
    truth: npt.NDArray[np.float32],
    truth_sum: npt.NDArray[np.float64],
    own: npt.NDArray[np.float32],
    own_sum: npt.NDArray[np.float64],
) -> npt.NDArray[np.float64]:
    """sum(p * (log p - log q)) for every row; differences first, so that nearly equal logits lose no digits."""
    p = np.exp(truth - truth_sum[:, None].astype(np.float32))
    gap = np.einsum("rv,rv->r", p, truth - own, dtype=np.float64)
    kl: npt.NDArray[np.float64] = gap - (truth_sum - own_sum) * p.sum(axis=1, dtype=np.float64)
    return np.maximum(kl, 0.0)
