"""Observations of any space as rows of float32: arrays of the leaves in, one matrix out, as Gymnasium's `flatten`.

Numbers stay as they are; a Discrete becomes one column for each value it may have, 1 in the one it has.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.rl.policy import Floats
from headrace.rl.spec import Box, EnvSpec, from_gymnasium
from headrace.rl.workers.drivers import Spaces
from headrace.rl.workers.layout import Leaf, Rows, leaves

__all__ = ["env_spec", "flat_rows", "flat_size"]


def flat_size(space: Any) -> int:
    """Columns of a flattened row."""
    return sum(_width(leaf) for leaf in leaves(space))


def flat_rows(rows: Rows, chosen: NDArray[np.intp] | slice) -> Floats:
    """float32[m, flat_size] of the chosen rows; a copy."""
    parts = [_columns(leaf, array[chosen]) for leaf, array in zip(rows.leaves, rows.arrays, strict=True)]
    return parts[0].astype(np.float32, copy=True) if len(parts) == 1 else np.concatenate(parts, 1, dtype=np.float32)


def env_spec(spaces: Spaces) -> EnvSpec:
    """What a policy has to know, observations flattened. Raises `InvalidInput` for actions no policy here gives."""
    space = spaces.observation
    plain = leaves(space)[0].kind == "Box" and leaves(space)[0].space is space
    observation = Box(space.low.ravel(), space.high.ravel()) if plain else Box(-math.inf, math.inf, (flat_size(space),))
    return EnvSpec(spaces.id, observation, from_gymnasium(spaces.action), spaces.max_steps, spaces.reward_threshold)


def _width(leaf: Leaf) -> int:
    if leaf.kind == "Discrete":
        return int(leaf.space.n)
    if leaf.kind == "MultiDiscrete":
        return int(leaf.space.nvec.sum())
    return math.prod(leaf.shape)


def _columns(leaf: Leaf, values: NDArray[Any]) -> NDArray[Any]:
    rows = values.reshape(len(values), -1)
    if leaf.kind not in ("Discrete", "MultiDiscrete"):
        return rows
    sizes = np.atleast_1d(leaf.space.n if leaf.kind == "Discrete" else leaf.space.nvec.ravel())
    first = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    hot = np.zeros((len(rows), int(sizes.sum())), np.float32)
    np.put_along_axis(hot, rows - np.ravel(leaf.space.start) + first, 1.0, axis=1)
    return hot
