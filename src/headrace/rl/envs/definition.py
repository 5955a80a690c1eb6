"""What a user writes: an environment as plain Python over declared fields. What comes out: its checked description.

`reset`, `step` and `observe` are pure functions of scalars. The same three run uncompiled (`plain`), as the oracle of
what the compiler makes of them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, get_args, get_origin, get_type_hints

import numpy as np
from numpy.typing import NDArray

from headrace.errors import InvalidInput
from headrace.rl.spec import ActionSpace, Box, Discrete, EnvSpec, MultiDiscrete

__all__ = ["Array", "Definition", "Env", "Field", "describe"]


@dataclass(frozen=True)
class Array:
    """The shape and NumPy dtype of an array field: `grid: Annotated[NDArray[np.int8], Array((8, 8), "int8")]`."""

    shape: tuple[int, ...]
    dtype: str


class Env:
    """Base of environment definitions. A subclass sets these facts and adds, as static methods on plain numbers:

    * `class State(NamedTuple)`: what changes. Fields are `float` (float64), `int` (int64), `bool`, or `Array`s.
    * `class Params(NamedTuple)`: what does not; numbers with defaults. Optional.
    * `reset(rng, params) -> State`; with `Array` fields `reset(state, rng, params)`, which fills them in place.
    * `step(state, action, rng, params) -> (State, reward, terminated)`. `action` is an int for `Discrete`, else indexed
      `action[j]`. Array fields may be changed in place.
    * `observe(state, params, out)`: writes all `observation.size` numbers of `out`.

    * `draw(state, params) -> Canvas`: a picture. Optional, and never compiled.
    * `is_legal(state, action, params) -> bool`: for games with `players` above 1, and never compiled but by `step`.

    `rng` is for `uniform(rng, low, high)` and its like in `headrace.rl.envs.random`.
    """

    id: ClassVar[str]
    observation: ClassVar[Box]
    action: ClassVar[ActionSpace]
    max_steps: ClassVar[int] = 0
    reward_threshold: ClassVar[float | None] = None
    players: ClassVar[int] = 1


@dataclass(frozen=True)
class Field:
    """A field of the state: `shape` () for a number."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...] = ()

    @property
    def is_array(self) -> bool:
        return self.shape != ()


@dataclass(frozen=True)
class Definition:
    """An environment class that has been looked through, with the parameters it runs with."""

    env: type[Env]
    spec: EnvSpec
    fields: tuple[Field, ...]
    params: tuple[Any, ...]
    state_type: type
    reset: Callable[..., Any]
    step: Callable[..., Any]
    observe: Callable[..., Any]

    @property
    def reset_takes_state(self) -> bool:
        return len(inspect.signature(self.reset).parameters) == 3

    def state_at(self, views: Mapping[str, NDArray[Any]], number: int) -> Any:
        """The state of one environment of a batch, from `layout.views`: numbers are copies, arrays are views."""
        values = ((f, views[f.name][number]) for f in self.fields)
        return self.state_type(*(value if f.is_array else value.item() for f, value in values))

    def new_state(self) -> Any:
        """A state of zeros, with arrays of its own."""
        return self.state_type(
            *(np.zeros(f.shape, f.dtype) if f.is_array else f.dtype.type(0).item() for f in self.fields)
        )


def describe(
    env: type[Env], params: Mapping[str, Any] | tuple[Any, ...] | None = None, max_steps: int | None = None
) -> Definition:
    """Look through an environment class. `params`: an instance of its `Params`, or a mapping of what to change in it;
    `max_steps`: in place of the one of the class.

    Raises `InvalidInput` that names the class and what is missing or wrong.
    """
    if not (isinstance(env, type) and issubclass(env, Env)):
        raise InvalidInput(f"an environment is a class derived from headrace.rl.envs.Env, got {env!r}")
    name = env.__qualname__
    for fact, kinds in (("id", str), ("observation", Box), ("action", (Box, Discrete, MultiDiscrete))):
        if not isinstance(getattr(env, fact, None), kinds):
            raise InvalidInput(f"{name}.{fact}: expected {_names(kinds)}, got {getattr(env, fact, 'nothing')!r}")
    max_steps = env.max_steps if max_steps is None else max_steps
    if isinstance(max_steps, bool) or not isinstance(max_steps, int) or not 0 <= max_steps < 2**31:
        raise InvalidInput(f"{name}.max_steps: expected a whole number of at least 0, got {max_steps!r}")
    spec = EnvSpec(env.id, env.observation, env.action, max_steps, env.reward_threshold, env.players)
    state_type: Any = getattr(env, "State", None)
    fields = _fields(name, state_type)
    reset = _function(env, "reset", (2, 3), "(rng, params) or (state, rng, params)")
    definition = Definition(
        env=env,
        spec=spec,
        fields=fields,
        params=_params(env, params),
        state_type=state_type,
        reset=reset,
        step=_function(env, "step", (4,), "(state, action, rng, params)"),
        observe=_function(env, "observe", (3,), "(state, params, out)"),
    )
    if any(f.is_array for f in fields) and not definition.reset_takes_state:
        raise InvalidInput(
            f"{name}.reset: with array fields in the state it must be reset(state, rng, params), and fill them in place"
        )
    return definition


def _names(kinds: Any) -> str:
    return " or ".join(k.__name__ for k in kinds) if isinstance(kinds, tuple) else str(kinds.__name__)


def _function(env: type[Env], name: str, counts: tuple[int, ...], expected: str) -> Callable[..., Any]:
    found = inspect.getattr_static(env, name, None)
    if not isinstance(found, staticmethod):
        raise InvalidInput(f"{env.__qualname__}.{name}: expected a @staticmethod {name}{expected}, got {found!r}")
    function: Callable[..., Any] = found.__func__
    if len(inspect.signature(function).parameters) not in counts:
        raise InvalidInput(
            f"{env.__qualname__}.{name}: expected {name}{expected}, got {name}{inspect.signature(function)}"
        )
    return function


def _is_named_tuple(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, tuple) and hasattr(kind, "_fields")


def _fields(name: str, state_type: Any) -> tuple[Field, ...]:
    if not _is_named_tuple(state_type) or not state_type._fields:
        raise InvalidInput(f"{name}.State: expected a NamedTuple with at least one field, got {state_type!r}")
    hints = get_type_hints(state_type, include_extras=True)
    return tuple(_field(name, field, hints[field]) for field in state_type._fields)


def _field(name: str, field: str, hint: Any) -> Field:
    if hint in (float, int, bool):
        return Field(field, np.dtype({float: np.float64, int: np.int64, bool: np.bool_}[hint]))
    arrays = [a for a in get_args(hint)[1:] if isinstance(a, Array)] if get_origin(hint) is Annotated else []
    if len(arrays) != 1:
        raise InvalidInput(
            f"{name}.State.{field}: expected float, int, bool or Annotated[NDArray, Array(shape, dtype)], got {hint!r}"
        )
    shape = tuple(int(n) for n in arrays[0].shape)
    try:
        dtype = np.dtype(arrays[0].dtype)
    except TypeError as error:
        raise InvalidInput(f"{name}.State.{field}: {error}") from error
    if not shape or min(shape) < 1 or dtype.kind not in "biuf" or dtype.itemsize > 8:
        raise InvalidInput(f"{name}.State.{field}: expected lengths >= 1 and a plain number, got {arrays[0]}")
    return Field(field, dtype, shape)


def _params(env: type[Env], given: Mapping[str, Any] | tuple[Any, ...] | None) -> tuple[Any, ...]:
    name, kind = f"{env.__qualname__}.Params", getattr(env, "Params", None)
    if kind is None:
        if given:
            raise InvalidInput(f"{env.__qualname__} has no parameters, got {given!r}")
        return ()
    if not _is_named_tuple(kind):
        raise InvalidInput(f"{name}: expected a NamedTuple, got {kind!r}")
    if isinstance(given, tuple) and not isinstance(given, kind):
        raise InvalidInput(f"{name}: expected {kind.__qualname__} or a mapping, got {given!r}")
    changes: Mapping[str, Any] = given if isinstance(given, Mapping) else {}
    unknown = sorted(set(changes) - set(kind._fields))
    if unknown:
        raise InvalidInput(f"{name}: has no {', '.join(unknown)}; it has {', '.join(kind._fields)}")
    try:
        params: tuple[Any, ...] = given if isinstance(given, tuple) else kind(**changes)
    except TypeError as error:
        raise InvalidInput(f"{name}: {error}") from error
    hints = get_type_hints(kind)
    checked: tuple[Any, ...] = kind(
        *(_number(f"{name}.{f}", hints[f], value) for f, value in zip(kind._fields, params, strict=True))
    )
    return checked


def _number(where: str, hint: Any, value: Any) -> float | int | bool:
    """A parameter as the type it was declared with: an int may stand for a float, nothing else for anything."""
    if isinstance(value, (np.generic, np.ndarray)) and np.ndim(value) == 0:
        value = value.item()
    if hint is float and isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    if hint in (int, bool) and type(value) is hint:
        return int(value) if hint is int else bool(value)
    raise InvalidInput(f"{where}: expected {getattr(hint, '__name__', hint)} (float, int or bool), got {value!r}")
