"""n-step returns: single steps of many environments flow in, n-step transitions flow into a replay memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace import _native
from headrace.errors import InvalidInput
from headrace.rl.buffers.replay import ReplayBuffer

__all__ = ["NStep"]

_FIRST, _REWARD, _NEXT, _DISCOUNT = range(4)  # NStepRole of the native side
_TAKEN = ("terminated", "truncated", "active")


class NStep(_native.ReplayNStep):
    """Assembles rows of `buffer` from the steps of `streams` environments, each a stream of its own.

    What a field gets depends on its name. `reward` (float32): R, the sum of gamma^i r over the k steps of the chain.
    `discount` (float32): gamma^k, or 0 where the episode terminated. `next_…`: the array given under that name at the
    last step. All others: the array given under their name at the first step. The target is then always
    reward + discount * V(next_obs). k is n, or less where the episode ended, terminated or truncated; a chain never
    reaches into the next episode. Source: Sutton & Barto 2018, section 7.1.

    `push(terminated, truncated, active=None, **step)` takes one step of all streams: bool[streams] flags and, for every
    field but `discount`, an array [streams, *shape]. `next_obs` is the observation after the action; where an episode
    ended, `final_obs` (optional, [streams, *shape]; in general `final_` for each `next_`) is used instead, so arrays of
    an environment that resets itself can be given as they are. Streams that are not `active` are left out: those in
    which a step was a reset and no action was taken. Returns how many rows were pushed. Raises `InvalidInput`, before
    anything has changed, for a reward that is not finite.

    `discard(stream)` forgets the open chains of a stream whose environment was replaced. One thread at a time.
    """

    def __init__(self, buffer: ReplayBuffer, streams: int, n: int, gamma: float) -> None:
        roles = [_role(field.name) for field in buffer.fields]
        for name, role in (("reward", _REWARD), ("discount", _DISCOUNT)):
            field = next((field for field, its in zip(buffer.fields, roles, strict=True) if its == role), None)
            if field is None or field.shape != () or field.dtype != np.float32:
                raise InvalidInput(f"n-step: expected the buffer to have a field {name!r}, float32, of single numbers")
        if taken := [field.name for field in buffer.fields if field.name in _TAKEN]:
            raise InvalidInput(f"n-step: the field {taken[0]!r} has the name of a flag; `discount` tells what it would")
        finals = [f"final_{field.name[5:]}" if field.name.startswith("next_") else "" for field in buffer.fields]
        if clash := {field.name for field in buffer.fields} & set(finals):
            raise InvalidInput(f"n-step: the field {clash.pop()!r} has the name of a last observation")
        if streams < 1 or n < 1:
            raise InvalidInput(f"n-step: expected at least 1 stream and 1 step, got {streams} and {n}")
        super().__init__(buffer, roles, finals, streams, n, gamma)
        self.buffer, self.gamma = buffer, gamma

    def _blank(self) -> dict[str, NDArray[Any]]:
        chains = self.streams * self.n
        return {
            "images": np.zeros(chains * self._image_bytes, np.uint8),
            "returns": np.zeros(chains),
            "starts": np.zeros(self.streams, np.int64),
            "counts": np.zeros(self.streams, np.int64),
        }

    def state(self) -> dict[str, NDArray[Any]]:
        """The open chains, for a checkpoint: named arrays that `restore` takes."""
        state = self._blank()
        self._save(**state)
        return state

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Go on from the `state()` of an assembler of the same shape. Raises `InvalidInput`, with nothing changed."""
        wanted = self._blank()
        if set(state) != set(wanted):
            raise InvalidInput(f"n-step state: expected {sorted(wanted)}, got {sorted(state)}")
        arrays = {name: np.array(state[name]) for name in wanted}
        for name, array in arrays.items():
            if array.dtype != wanted[name].dtype or array.shape != wanted[name].shape:
                raise InvalidInput(
                    f"n-step state: expected {name} to be {wanted[name].dtype}{list(wanted[name].shape)}, got "
                    f"{array.dtype}{list(array.shape)}"
                )
        self._restore(**arrays)


def _role(name: str) -> int:
    if name == "reward":
        return _REWARD
    if name == "discount":
        return _DISCOUNT
    return _NEXT if name.startswith("next_") else _FIRST
