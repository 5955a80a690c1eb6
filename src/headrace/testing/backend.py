"""The contract of `Backend`, for implementers: a maker of unloaded backends in, `AssertionError` or nothing out.

Use it in a test: `check_backend(lambda: MyBackend(path), {"x": np.ones((3, 4), np.float32)})`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np

from headrace.errors import HeadraceError, InvalidInput, Unavailable
from headrace.serve.protocol import Backend, Tensors

__all__ = ["check_backend", "check_failed_load"]

MakeBackend = Callable[[], Backend]


def check_backend(make: MakeBackend, sample: Tensors) -> None:
    """Run the whole life cycle on `sample` (valid inputs of two or more rows), and break the rules a caller may."""
    _life_cycle(make, sample)
    _wrong_input(make, sample)
    _free_without_load(make)
    _two_at_once(make, sample)
    _threads(make, sample)


def check_failed_load(make: MakeBackend, mentions: str = "") -> None:
    """A backend whose files are bad: `load` raises an error of the Headrace tree, and `free` still works, twice."""
    backend = make()
    try:
        backend.load()
    except HeadraceError as error:
        _require(mentions in str(error), f"the load error must mention {mentions!r}: {error}")
    else:
        raise AssertionError("load of a bad model must raise LoadFailed")
    _refuses(backend, {}, Unavailable, "infer after a failed load")
    backend.free()
    backend.free()


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise AssertionError(message)


def _life_cycle(make: MakeBackend, sample: Tensors) -> None:
    backend = make()
    _require(isinstance(backend, Backend), f"{type(backend).__name__} lacks a member of the Backend protocol")
    backend.load()
    try:
        _require(isinstance(backend.thread_safe, bool), "thread_safe must be a bool")
        _require(bool(backend.inputs) and bool(backend.outputs), "inputs and outputs must be known after load")
        names = [spec.name for spec in backend.inputs]
        _require(sorted(names) == sorted(sample), f"the sample must feed {names}, feeds {sorted(sample)}")
        backend.warm()
        kept = {name: array.copy() for name, array in sample.items()}
        first, second = backend.infer(sample), backend.infer(sample)
        for name, array in sample.items():
            _require(np.array_equal(array, kept[name]), f"infer changed its input {name!r}")
        _require(set(first) == {spec.name for spec in backend.outputs}, f"infer returned {sorted(first)}")
        for spec in backend.outputs:
            array = first[spec.name]
            _require(isinstance(array, np.ndarray), f"output {spec.name!r} is {type(array).__name__}, not an array")
            _require(array.dtype == spec.dtype, f"output {spec.name!r} is {array.dtype}, declared {spec.dtype}")
            _require(not spec.shape or array.ndim == len(spec.shape), f"output {spec.name!r}: rank {array.ndim}")
            _require(array is not second[spec.name], f"output {spec.name!r}: two calls share one array")
        backend.drain()
    finally:
        backend.free()
    _refuses(backend, sample, Unavailable, "infer after free")
    backend.free()


def _wrong_input(make: MakeBackend, sample: Tensors) -> None:
    backend = make()
    backend.load()
    try:
        name = backend.inputs[0].name
        good = sample[name]
        wrong = np.zeros(good.shape, np.complex128)
        _refuses(backend, {}, InvalidInput, "an absent tensor", name)
        _refuses(backend, sample | {name: wrong}, InvalidInput, "a wrong dtype", name)
        if backend.inputs[0].shape:
            _refuses(backend, sample | {name: good[..., None]}, InvalidInput, "a wrong rank", name)
        backend.infer(sample)
    finally:
        backend.free()


def _refuses(backend: Backend, tensors: Tensors, error: type[HeadraceError], what: str, mentions: str = "") -> None:
    try:
        backend.infer(tensors)
    except error as raised:
        _require(mentions in str(raised), f"{what}: the message must name {mentions!r}, says: {raised}")
    else:
        raise AssertionError(f"{what} must raise {error.__name__}")


def _free_without_load(make: MakeBackend) -> None:
    backend = make()
    backend.free()


def _two_at_once(make: MakeBackend, sample: Tensors) -> None:
    """Two loaded instances do not touch each other: freeing one leaves the other working (hot reload needs this)."""
    old, new = make(), make()
    old.load()
    try:
        new.load()
        try:
            expected = old.infer(sample)
            old.free()
            answer = new.infer(sample)
            for name, array in expected.items():
                _require(array.shape == answer[name].shape, f"output {name!r} depends on another instance")
        finally:
            new.free()
    finally:
        old.free()


def _threads(make: MakeBackend, sample: Tensors) -> None:
    """A backend that says it is thread-safe gives the same answers from several threads."""
    backend = make()
    backend.load()
    try:
        if not backend.thread_safe:
            return
        expected = backend.infer(sample)
        problems: list[str] = []

        def work() -> None:
            for _ in range(20):
                try:
                    answer = backend.infer(sample)
                except Exception as error:
                    problems.append(repr(error))
                    return
                problems.extend(n for n, a in expected.items() if a.shape != answer[n].shape)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        _require(not problems, f"infer from several threads: {problems[:3]}")
    finally:
        backend.free()
