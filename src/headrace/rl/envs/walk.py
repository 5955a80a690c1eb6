"""What an environment is made of: its functions and everything they reach, as a tree and as one digest.

Nothing here imports numba: a compiled environment is found in the cache by the digest alone.
"""

from __future__ import annotations

import dis
import hashlib
import math
import types
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from headrace.errors import InvalidInput
from headrace.rl.envs import maths
from headrace.rl.envs.definition import Definition

__all__ = ["Namespace", "Part", "StateType", "Walk", "walk"]

_REPLACED = {
    math.sin: maths.sin,
    np.sin: maths.sin,
    math.cos: maths.cos,
    np.cos: maths.cos,
    np.clip: maths.clip,
}
_LIBRARIES = ("numpy", "numba")
_OURS = ("headrace.rl.envs.random", "headrace.rl.envs.maths")


@dataclass
class Part:
    """A function of the environment and what its names stand for: numbers, modules, other `Part`s by name."""

    function: types.FunctionType
    names: dict[str, Any] = field(default_factory=dict)


@dataclass
class Namespace:
    """What a function reaches by `name.attribute`: the environment's class, a module of helpers, `math`."""

    name: str
    names: dict[str, Any] = field(default_factory=dict)


@dataclass
class StateType:
    """Stands for the `State` of the environment; `ParamsType` needs none, being no more than its values."""


@dataclass
class Walk:
    """Everything an environment reaches, from its three functions on."""

    reset: Part
    step: Part
    observe: Part
    digest: str
    loops: bool
    """Whether `step` or `observe` loop: what loops may not end when run on a state that no episode reaches."""
    files: frozenset[str]
    """Source files of the user's functions."""


class _Walker:
    def __init__(self, definition: Definition) -> None:
        self.definition = definition
        self.parts: dict[types.FunctionType, Part] = {}
        self.hash = hashlib.sha256()
        self.loops = False
        self.files: set[str] = set()

    def note(self, *facts: object) -> None:
        self.hash.update(repr(facts).encode())

    def part(self, function: types.FunctionType) -> Part:
        known = self.parts.get(function)
        if known is not None:
            self.note("seen", list(self.parts).index(function))
            return known
        part = self.parts[function] = Part(function)
        if function.__module__ not in _OURS:
            self.refuse_raising(function)
            self.files.add(function.__code__.co_filename)
            self.loops = self.loops or any("BACKWARD" in i.opname for i in dis.get_instructions(function.__code__))
        self.code(function.__code__)
        self.note(function.__defaults__, function.__kwdefaults__)
        attributes = _names(function.__code__)
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        reached = {name: cell.cell_contents for name, cell in cells}
        reached |= {n: function.__globals__[n] for n in sorted(attributes) if n in function.__globals__}
        for name, value in reached.items():
            part.names[name] = self.value(name, value, attributes)
        return part

    def refuse_raising(self, function: types.FunctionType) -> None:
        for instruction in dis.get_instructions(function.__code__):
            if instruction.opname == "RAISE_VARARGS":
                line = instruction.positions.lineno if instruction.positions else function.__code__.co_firstlineno
                raise InvalidInput(
                    f"{function.__code__.co_filename}:{line}: {function.__qualname__} cannot be compiled: it raises or "
                    "asserts, and nobody could catch that inside the loop; end the episode instead"
                )

    def code(self, code: types.CodeType) -> None:
        self.note(code.co_code, code.co_names, code.co_varnames, code.co_freevars)
        for constant in code.co_consts[1:]:  # the first is the docstring, or None
            if isinstance(constant, types.CodeType):
                self.code(constant)
            else:
                self.note(constant)
        self.note(code.co_consts[:1] if not isinstance(code.co_consts[0], str) else "docstring")

    def value(self, name: str, value: Any, attributes: set[str]) -> Any:
        """What stands for `value` in compiled code."""
        if isinstance(value, Hashable):
            value = _REPLACED.get(value, value)
        value = getattr(value, "py_func", value)  # what numba has been asked to compile is compiled our way
        if isinstance(value, types.FunctionType) and _package(value.__module__) not in _LIBRARIES:
            self.note("function", name)
            return self.part(value)
        if value is self.definition.state_type:
            self.note("state", name)
            return StateType()
        if isinstance(value, types.ModuleType) and _package(value.__name__) != "numba":
            return self.namespace(value.__name__, vars(value), attributes)
        if isinstance(value, type) and value in self.definition.env.__mro__:
            merged = {n: getattr(value, n) for n in dir(value)}
            return self.namespace(value.__qualname__, merged, attributes)
        if isinstance(value, np.ndarray):
            self.note(name, value.dtype.str, value.shape, value.tobytes())
        elif callable(value):  # its text may hold an address
            self.note(name, getattr(value, "__module__", ""), getattr(value, "__qualname__", repr(value)))
        else:
            self.note(name, value)
        return value

    def namespace(self, name: str, members: dict[str, Any], attributes: set[str]) -> Namespace:
        space = Namespace(name)
        self.note("namespace", name)
        for attribute in sorted(attributes):
            if attribute in members:
                space.names[attribute] = self.value(attribute, members[attribute], attributes)
        return space


def _package(module: str | None) -> str:
    return (module or "").split(".")[0]


def _names(code: types.CodeType) -> set[str]:
    """Names of globals and attributes in a function and those inside it."""
    inner = [_names(c) for c in code.co_consts if isinstance(c, types.CodeType)]
    return set(code.co_names).union(*inner)


def walk(definition: Definition) -> Walk:
    """Look through the functions of `definition`. Raises `InvalidInput` for what is not plain Python."""
    walker = _Walker(definition)
    walker.note(definition.spec, definition.fields, definition.params)
    parts = {}
    loops = False
    for name in ("step", "observe", "reset"):
        function = getattr(definition, name)
        if not isinstance(function, types.FunctionType):
            raise InvalidInput(f"{definition.env.__qualname__}.{name}: expected a plain function, got {function!r}")
        parts[name] = walker.part(function)
        loops = walker.loops if name != "reset" else loops
    return Walk(**parts, digest=walker.hash.hexdigest(), loops=loops, files=frozenset(walker.files))
