"""An environment that nobody needs to trust: a WebAssembly module in, batches that run it within limits out.

The module imports nothing, so it reaches nothing but its own memory, and exports

    memory
    __heap_base                          a global: from here on memory is the host's to lay out
    state_bytes(n) -> i32                of n environments
    reset(state, n, seed, first, last, obs)
    step(state, n, seed, first, last, actions, obs, final_obs, reward, terminated, truncated, autoreset)

with pointers and counts as i32, the seed as i64, and the arrays of `headrace/rl/env.hpp`, the C face of compiled
environments. `particles.c` beside this file is one; `tools/build_wasm.py` compiles it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.core.extras import require
from headrace.errors import InvalidInput, LoadFailed
from headrace.rl.spec import EnvSpec

if TYPE_CHECKING:
    from headrace.rl.wasm.batch import WasmBatch

__all__ = ["PARTICLES", "WasmEnv"]

PARTICLES = Path(__file__).with_name("particles.wasm")
"""The module of `headrace/Particles-v0`."""

_EXPORTS = {
    "state_bytes": (["i32"], ["i32"]),
    "reset": (["i32", "i32", "i64", "i32", "i32", "i32"], []),
    "step": (["i32", "i32", "i64"] + ["i32"] * 9, []),
}


class WasmEnv:
    """A checked and compiled module.

    Args:
        path: The module, binary or text.
        spec: What its environments take and give; the module cannot be asked.
        fuel: WebAssembly instructions, about, that one call may take for each environment; more is an error. A reset
            may take as many.
        memory_bytes: Most memory of a batch.

    Raises `LoadFailed` for a file that is no such module, naming the export at fault.
    """

    def __init__(
        self, path: str | Path, spec: EnvSpec, *, fuel: int = 100_000_000, memory_bytes: int = 1 << 30
    ) -> None:
        if fuel < 1 or memory_bytes < 1 << 16:
            raise InvalidInput(f"fuel and memory_bytes: expected at least 1 and 65536, got {fuel} and {memory_bytes}")
        wasmtime: Any = require("wasmtime", "rl")
        self.path, self.spec, self.fuel, self.memory_bytes = str(path), spec, fuel, memory_bytes
        config = wasmtime.Config()
        config.consume_fuel = True
        self.engine = wasmtime.Engine(config)
        try:
            self.module = wasmtime.Module.from_file(self.engine, self.path)
        except (wasmtime.WasmtimeError, OSError) as error:
            raise LoadFailed(f"{self.path}: no WebAssembly module: {_first_line(error)}") from error
        self._check()

    def batch(self, n: int, seed: int = 0, *, autoreset: int = 1) -> WasmBatch:
        """`n` environments in an instance of their own (see `WasmBatch`)."""
        from headrace.rl.wasm.batch import WasmBatch

        return WasmBatch(self, n, seed, autoreset)

    def _check(self) -> None:
        imports = [f"{wanted.module}.{wanted.name}" for wanted in self.module.imports]
        if imports:
            raise LoadFailed(f"{self.path}: expected a module that imports nothing, it wants {', '.join(imports)}")
        found = {export.name: export.type for export in self.module.exports}
        for name in ("memory", "__heap_base", *_EXPORTS):
            if name not in found:
                raise LoadFailed(f"{self.path}: exports no {name!r}; it has {', '.join(sorted(found)) or 'nothing'}")
        for name, (params, results) in _EXPORTS.items():
            kind = found[name]
            got = tuple([str(t) for t in getattr(kind, side, ())] for side in ("params", "results"))
            if got != (params, results):
                raise LoadFailed(f"{self.path}: {name}: expected {params} -> {results}, got {got[0]} -> {got[1]}")


def _first_line(error: BaseException) -> str:
    return str(error).strip().split("\n")[0]
