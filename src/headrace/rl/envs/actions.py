"""Actions as a user gives them, in; as compiled environments take them, out; and rewards looked at on their way back.

What is wrong is said of the environment it belongs to.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from headrace.errors import InvalidInput
from headrace.rl.spec import Box, Discrete, EnvSpec

__all__ = ["bad_number", "check_actions", "check_rewards"]


def check_actions(spec: EnvSpec, actions: ArrayLike, n: int, *, values: bool = True) -> NDArray[Any]:
    """Actions of `n` environments, contiguous and of the dtype of the space, flattened to `spec.actions_shape(n)`.

    With `values` every number is looked at too. Raises `InvalidInput` for a wrong shape or dtype, for whole numbers
    outside a discrete space, and for floats outside the bounds of a box, or NaN.
    """
    space = spec.action
    try:
        given = np.asarray(actions)
    except ValueError as error:
        raise InvalidInput(f"{spec.id}: actions: {error}") from error
    if given.shape != (n, *space.shape):
        raise InvalidInput(f"{spec.id}: actions: expected the shape {[n, *space.shape]}, got {list(given.shape)}")
    if given.dtype.kind not in ("iu" if space.dtype.kind == "i" else "fiu"):
        kind = "whole numbers" if space.dtype.kind == "i" else "floats"
        raise InvalidInput(f"{spec.id}: actions: expected {kind}, got {given.dtype}")
    rows = given.reshape(spec.actions_shape(n))
    if values:
        _check_values(spec, rows)
    return np.ascontiguousarray(rows, space.dtype)


def _check_values(spec: EnvSpec, rows: NDArray[Any]) -> None:
    space = spec.action
    if isinstance(space, Box):
        low: Any = space.low.reshape(-1)
        high: Any = space.high.reshape(-1)
        good = (rows >= low) & (rows <= high)  # false for NaN
    else:
        low, high = 0, np.asarray(space.n if isinstance(space, Discrete) else space.nvec) - 1
        if isinstance(space, Discrete) and rows.min() >= 0 and rows.max() < space.n:
            return
        good = (rows >= low) & (rows <= high)
    if good.all():
        return
    where = np.argwhere(~good)[0]
    one = f"[{where[1]}]" if len(where) > 1 else ""
    bounds = [np.broadcast_to(b, rows.shape[1:])[tuple(where[1:])] for b in (low, high)]
    raise InvalidInput(
        f"{spec.id}: action{one} of environment {where[0]}: expected {bounds[0]:g} … {bounds[1]:g}, "
        f"got {rows[tuple(where)]:g}"
    )


def check_rewards(spec: EnvSpec, rewards: NDArray[np.float32], actions: NDArray[Any]) -> None:
    """Raise `InvalidInput` naming the first environment whose reward is NaN or infinite, and the action it took."""
    if np.isfinite(rewards).all():
        return
    number = int(np.flatnonzero(~np.isfinite(rewards))[0])
    raise InvalidInput(bad_number(spec.id, number, None, actions[number], "reward", float(rewards[number])))


def bad_number(env: str, number: int, step: int | None, action: Any, what: str, value: float) -> str:
    """The sentence about a number that is none: which environment (of which batch row), at which step, after what."""
    when = "" if step is None else f" at step {step}"
    return f"{env}: environment {number}{when} gave the {what} {value} after the action {np.asarray(action).tolist()}"
