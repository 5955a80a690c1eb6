"""A batch of sandboxed environments: actions in, observations, rewards and flags out, by one call into the module.

All arrays lie in the module's own memory and are read and written there. Fuel and memory are limited; a module that
runs out of either, or touches memory that is not its own, ends its batch with an error and harms nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from headrace.core.extras import require
from headrace.errors import InvalidInput, StageFailed, Unavailable

if TYPE_CHECKING:
    from headrace.rl.wasm.module import WasmEnv

__all__ = ["WasmBatch"]

_PAGE_BYTES = 1 << 16
_LINE_BYTES = 64


class WasmBatch:
    """`n` environments. Not thread-safe. Views are good until the next call.

    Args:
        autoreset: 0 leaves an ended environment ended, 1 begins its next episode in the same step, 2 in the next one.

    Raises `StageFailed` naming the module and the call that failed; after that the batch is of no more use and raises
    `Unavailable`.
    """

    def __init__(self, env: WasmEnv, n: int, seed: int, autoreset: int) -> None:
        if n < 1 or autoreset not in (0, 1, 2):
            raise InvalidInput(f"n and autoreset: expected at least 1 and one of 0, 1, 2, got {n} and {autoreset}")
        self._wasmtime: Any = require("wasmtime", "rl")
        self._env, self._n, self._seed, self._autoreset = env, n, seed, autoreset
        self._failed = False
        self._store = self._wasmtime.Store(env.engine)
        self._store.set_limits(memory_size=env.memory_bytes)
        self._store.set_fuel(env.fuel)
        self._exports = self._wasmtime.Instance(self._store, env.module, []).exports(self._store)
        self._memory = self._exports["memory"]
        self._offsets: dict[str, int] = {}
        self._arrays: dict[str, tuple[tuple[int, ...], np.dtype[Any]]] = {}
        self._lay_out()

    def reset(self) -> NDArray[np.float32]:
        """Begin episode 0 of all; float32[n, obs_size]."""
        self._call("reset", *self._head(), self._offsets["obs"])
        return self["obs"]

    def step(
        self, actions: ArrayLike
    ) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.uint8], NDArray[np.uint8]]:
        """(observations, rewards, terminated, truncated) of all; `self["final_obs"]` has last observations.

        `actions`: as the space says, int32[n] or [n, k] or float32[n, k]. Raises `InvalidInput` for others.
        """
        own = self["actions"]
        given = np.asarray(actions)
        if given.shape != own.shape or not np.can_cast(given.dtype, own.dtype, "same_kind"):
            raise InvalidInput(
                f"{self._env.spec.id}: actions: expected {own.dtype}{list(own.shape)}, "
                f"got {given.dtype}{list(given.shape)}"
            )
        own[...] = given
        names = ("actions", "obs", "final_obs", "reward", "terminated", "truncated")
        self._call("step", *self._head(), *(self._offsets[name] for name in names), self._autoreset)
        return self["obs"], self["reward"], self["terminated"], self["truncated"]

    def __getitem__(self, name: str) -> NDArray[Any]:
        """An array of the batch by its name in `step`, in the module's memory."""
        shape, dtype = self._arrays[name]
        memory = np.ctypeslib.as_array(self._memory.data_ptr(self._store), (self._memory.data_len(self._store),))
        offset = self._offsets[name]
        return memory[offset : offset + int(np.prod(shape)) * dtype.itemsize].view(dtype).reshape(shape)

    def _lay_out(self) -> None:
        n, spec = self._n, self._env.spec
        action = spec.action
        width = () if action.size == 1 and action.dtype.kind == "i" else (action.size,)
        floats, flags = np.dtype(np.float32), np.dtype(np.uint8)
        self._arrays = {
            "actions": ((n, *width), np.dtype(action.dtype)),
            "obs": ((n, spec.obs_size), floats),
            "final_obs": ((n, spec.obs_size), floats),
            "reward": ((n,), floats),
            "terminated": ((n,), flags),
            "truncated": ((n,), flags),
        }
        size = self._call("state_bytes", n)
        at = self._exports["__heap_base"].value(self._store)
        wanted = {"state": size} | {k: int(np.prod(shape)) * kind.itemsize for k, (shape, kind) in self._arrays.items()}
        for name, n_bytes in wanted.items():
            at = -(-at // _LINE_BYTES) * _LINE_BYTES
            self._offsets[name] = at
            at += n_bytes
        missing = at - self._memory.data_len(self._store)
        if size < 1 or at > self._env.memory_bytes:
            raise StageFailed(
                self._env.path, f"{n} environments take {at} bytes, of which {self._env.memory_bytes} are allowed"
            )
        if missing > 0:
            self._memory.grow(self._store, -(-missing // _PAGE_BYTES))

    def _head(self) -> tuple[int, ...]:
        return self._offsets["state"], self._n, self._seed, 0, self._n

    def _call(self, name: str, *args: int) -> Any:
        if self._failed:
            raise Unavailable(f"{self._env.path}: this batch has failed before; make a new one")
        self._store.set_fuel(self._env.fuel * self._n)
        try:
            return self._exports[name](self._store, *args)
        except (self._wasmtime.Trap, self._wasmtime.WasmtimeError) as error:
            self._failed = True
            why = str(error).strip().split("\n")
            raise StageFailed(self._env.path, f"{name} of {self._n} environments: {why[-1].strip()}") from error
