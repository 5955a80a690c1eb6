"""From what an environment is made of to machine code: numba types it, LLVM compiles it, an object file comes out.

Importing this module imports numba.
"""
# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import types
from typing import Any

import numba
import numpy as np
from numba.core.errors import NumbaError, UnsupportedBytecodeError

from headrace.errors import InvalidInput
from headrace.rl.envs import intrinsics
from headrace.rl.envs.definition import Definition
from headrace.rl.envs.diagnose import refusal
from headrace.rl.envs.loops import loops_source, passes_actions_by_value
from headrace.rl.envs.machine import to_object
from headrace.rl.envs.random import key_stream
from headrace.rl.envs.walk import Namespace, Part, StateType, Walk
from headrace.rl.spec import Discrete

__all__ = ["build"]

_nb = numba.types
# division as in C: no branch to raise from; no reference counts: memory is the caller's
_OPTIONS: dict[str, Any] = {"error_model": "numpy", "_nrt": False}


def build(definition: Definition, walked: Walk) -> bytes:
    """An object file with `reset_shard`, `restart_shard` and `step_shard`.

    Raises `InvalidInput` naming the user's file and line where something cannot be compiled.
    """
    translator = _Translator(definition)
    user = {name: translator.function(getattr(walked, name)) for name in ("reset", "step", "observe")}
    arrays = {f.name: f for f in definition.fields if f.is_array}
    scope = {
        **intrinsics.namespace(),
        **{f"array_s_{f.name}": intrinsics.array_at(f.dtype, f.shape) for f in arrays.values()},
        "array_observation": intrinsics.array_at(np.dtype(np.float32), (definition.spec.obs_size,)),
        "array_action": intrinsics.array_at(definition.spec.action.dtype, (definition.spec.action_size,)),
        "key_stream": _inlined(key_stream),
        "State": translator.state,
        "PARAMS": definition.params,
        **user,
    }
    _type_user_functions(definition, walked, user)
    source = loops_source(definition, speculate=not arrays and not walked.loops)
    exec(compile(source, f"<loops of {definition.spec.id}>", "exec"), scope)
    for name in ("begin", "one_by_one"):
        scope[name] = numba.njit(**_OPTIONS)(scope[name])
    modules = {}
    for name, signature in _shard_signatures(definition).items():
        function = numba.cfunc(signature, **_OPTIONS)(scope[name])
        modules[name] = (function.inspect_llvm(), function.native_name)
    try:
        return to_object(modules)
    except InvalidInput as error:
        raise refusal(definition, walked, "step", error) from error


def _inlined(function: Any) -> Any:
    return numba.njit(forceinline=True, **_OPTIONS)(function)


def _shard_signatures(definition: Definition) -> dict[str, Any]:
    word, seed, flags = _nb.int64, _nb.uint64, _nb.CPointer(_nb.uint8)
    floats = _nb.CPointer(_nb.float32)
    actions = _nb.CPointer(_nb.int32) if definition.spec.action.dtype.kind == "i" else floats
    begin = (_nb.voidptr, word, seed, word, word)
    return {
        "reset_shard": _nb.void(*begin, floats),
        "restart_shard": _nb.void(*begin, flags, floats),
        "step_shard": _nb.void(*begin, actions, floats, floats, floats, flags, flags, _nb.int32),
    }


class _Translator:
    """Makes functions that numba can type: what their names stand for is put in place of what Python would find."""

    def __init__(self, definition: Definition) -> None:
        self.definition = definition
        self.state = self._state_constructor()
        self._done: dict[int, Any] = {}

    def _state_constructor(self) -> Any:
        """`State(…)` as compiled code calls it: every number becomes what its field was declared as, so that `0` where
        a float belongs is no other type of state."""
        kinds = {"f": "float64", "i": "int64", "b": "boolean"}
        fields = self.definition.fields
        values = (f.name if f.is_array else f"_{kinds[f.dtype.kind]}({f.name})" for f in fields)
        scope: dict[str, Any] = {"_Tuple": self.definition.state_type}
        scope |= {f"_{kind}": getattr(_nb, kind) for kind in kinds.values()}  # no field begins with an underscore
        exec(f"def State({', '.join(f.name for f in fields)}):\n    return _Tuple({', '.join(values)})\n", scope)
        return _inlined(scope["State"])

    def value(self, value: Any) -> Any:
        if isinstance(value, Part):
            return self.function(value)
        if isinstance(value, StateType):
            return self.state
        if isinstance(value, Namespace):
            module = types.ModuleType(value.name)
            vars(module).update({name: self.value(member) for name, member in value.names.items()})
            return module
        return value

    def function(self, part: Part) -> Any:
        known = self._done.get(id(part))
        if known is not None:
            return known
        original = part.function
        free = original.__code__.co_freevars
        cells = {name: types.CellType() for name in free}
        scope = dict(original.__globals__)
        closure = tuple(cells[name] for name in free)
        twin = types.FunctionType(original.__code__, scope, original.__name__, original.__defaults__, closure)
        twin.__qualname__, twin.__kwdefaults__ = original.__qualname__, original.__kwdefaults__
        self._done[id(part)] = dispatcher = _inlined(twin)
        for name, value in part.names.items():
            if name in cells:
                cells[name].cell_contents = self.value(value)
            else:
                scope[name] = self.value(value)
        return dispatcher


def _type_user_functions(definition: Definition, walked: Walk, user: dict[str, Any]) -> None:
    """Type the three functions one by one, so that what cannot be compiled is said of the user's own lines."""
    state, params = numba.typeof(definition.new_state()), numba.typeof(definition.params)
    stream = _nb.CPointer(_nb.uint64)
    arguments = {
        "reset": ((state,) if definition.reset_takes_state else ()) + (stream, params),
        "step": (state, _action_type(definition), stream, params),
        "observe": (state, params, _nb.Array(_nb.float32, 1, "C")),
    }
    returned = {name: _typed(definition, walked, name, user[name], types) for name, types in arguments.items()}
    for name, found, expected in (
        ("reset", returned["reset"], "a State"),
        ("step", returned["step"], "(State, reward, terminated)"),
    ):
        parts = (found,) if name == "reset" else tuple(getattr(found, "types", ()))
        numbers = all(isinstance(kind, (_nb.Number, _nb.Boolean)) for kind in parts[1:])
        if len(parts) != (1 if name == "reset" else 3) or parts[0] != state or not numbers:
            raise InvalidInput(f"{definition.env.__qualname__}.{name}: must return {expected}; it returns {found}")


def _action_type(definition: Definition) -> Any:
    space = definition.spec.action
    number = _nb.int64 if space.dtype.kind == "i" else _nb.float64
    if isinstance(space, Discrete):
        return number
    if passes_actions_by_value(definition):
        return _nb.UniTuple(number, space.size)
    return _nb.Array(_nb.int32 if space.dtype.kind == "i" else _nb.float32, 1, "C")


def _typed(definition: Definition, walked: Walk, name: str, dispatcher: Any, arguments: tuple[Any, ...]) -> Any:
    """The return type of a user's function."""
    try:
        dispatcher.compile(arguments)
    except (NumbaError, UnsupportedBytecodeError, NotImplementedError) as error:
        raise refusal(definition, walked, name, error) from error
    return dispatcher.overloads[arguments].signature.return_type
