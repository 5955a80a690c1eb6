"""What `replay.py` measures of one replay memory: a process that pushes and one that samples, at the same time.

python bench/rl/peers_replay.py headrace|cpprb|torchrl uniform|prioritised PUSH_ROWS SAMPLE_ROWS SECONDS

Rows are those of CartPole, the memory holds a million. Prints rows pushed and rows sampled a second as a JSON line.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

CAPACITY = 1_000_000
Call = Callable[[], object]


def rows(n: int) -> dict[str, np.ndarray]:
    dice = np.random.default_rng(0)
    return {
        "obs": dice.normal(size=(n, 4)).astype(np.float32),
        "action": dice.integers(0, 2, n).astype(np.int32),
        "reward": np.ones(n, np.float32),
        "next_obs": dice.normal(size=(n, 4)).astype(np.float32),
        "terminated": np.zeros(n, np.uint8),
    }


def headrace(prioritised: bool) -> tuple[Any, Callable[[Any, int], Call], Callable[[Any, int], Call]]:
    from headrace.rl.buffers import Field, PrioritisedReplay, ReplayBuffer

    fields = [Field(name, array.shape[1:], array.dtype) for name, array in rows(1).items()]
    buffer = PrioritisedReplay(fields, CAPACITY) if prioritised else ReplayBuffer(fields, CAPACITY)

    def pusher(_: Any, n: int) -> Call:
        mine, made = ReplayBuffer.attach(buffer.name), rows(n)
        return lambda: mine.push(**made)

    def sampler(_: Any, n: int) -> Call:
        batch, errors = buffer.new_batch(n), np.ones(n, np.float32)
        if not isinstance(buffer, PrioritisedReplay):
            return lambda: buffer.sample(out=batch)
        return lambda: buffer.update_priorities(buffer.sample(out=batch), errors)

    return buffer, pusher, sampler


def cpprb(prioritised: bool) -> tuple[Any, Callable[[Any, int], Call], Callable[[Any, int], Call]]:
    from cpprb import MPPrioritizedReplayBuffer, MPReplayBuffer

    spaces = {name: {"shape": array.shape[1:] or 1, "dtype": array.dtype} for name, array in rows(1).items()}
    kind = MPPrioritizedReplayBuffer if prioritised else MPReplayBuffer
    buffer = kind(CAPACITY, spaces, ctx=multiprocessing.get_context("fork"))

    def pusher(shared: Any, n: int) -> Call:
        made = rows(n)
        return lambda: shared.add(**made)

    def sampler(shared: Any, n: int) -> Call:
        errors = np.ones(n, np.float32)
        if not prioritised:
            return lambda: shared.sample(n)
        return lambda: shared.update_priorities(shared.sample(n, beta=0.4)["indexes"], errors)

    return buffer, pusher, sampler


def torchrl(prioritised: bool) -> tuple[Any, Callable[[Any, int], Call], Callable[[Any, int], Call]]:
    import torch
    from tensordict import TensorDict
    from torchrl.data import LazyMemmapStorage, PrioritizedSampler, TensorDictReplayBuffer

    torch.set_num_threads(1)
    sampler_ = {"sampler": PrioritizedSampler(CAPACITY, 0.6, 0.4)} if prioritised else {}
    buffer = TensorDictReplayBuffer(storage=LazyMemmapStorage(CAPACITY), shared=True, **sampler_)

    def tensors(n: int) -> Any:
        return TensorDict({name: torch.from_numpy(array) for name, array in rows(n).items()}, [n])

    buffer.extend(tensors(256))  # makes the storage, so that both processes have it

    def pusher(shared: Any, n: int) -> Call:
        made = tensors(n)
        return lambda: shared.extend(made)

    def sampler(shared: Any, n: int) -> Call:
        return lambda: shared.sample(n)

    return buffer, pusher, sampler


def sit_on(which: int) -> None:
    cpus = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cpus[which % len(cpus)]})


def rate(call: Call, n: int, start_s: float, seconds: float) -> float:
    while time.monotonic() < start_s:
        call()  # warms up
    calls, began_s = 0, time.perf_counter()
    while (now_s := time.perf_counter()) < began_s + seconds:
        for _ in range(10):
            call()
        calls += 10
    return calls * n / (now_s - began_s)


def main() -> None:
    name, kind, push_rows, sample_rows, seconds = sys.argv[1:6]
    shared, pusher, sampler = {"headrace": headrace, "cpprb": cpprb, "torchrl": torchrl}[name](kind == "prioritised")
    fill = pusher(shared, 1000)
    for _ in range(20):
        fill()
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    start_s = time.monotonic() + 1.0

    def produce() -> None:
        sit_on(1)
        theirs.send(rate(pusher(shared, int(push_rows)), int(push_rows), start_s, float(seconds)))

    child = context.Process(target=produce)
    child.start()
    sit_on(0)
    sampled_s = rate(sampler(shared, int(sample_rows)), int(sample_rows), start_s, float(seconds))
    pushed_s = ours.recv()
    child.join()
    print(json.dumps({"pushed_s": pushed_s, "sampled_s": sampled_s}))


if __name__ == "__main__":
    main()
