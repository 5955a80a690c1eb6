"""An environment in, two C functions out: batch loops over struct-of-arrays state that run without the GIL.

The first time an environment is compiled (numba, seconds); after that its machine code comes from the cache, found by
the digest of its functions, parameters, the compiler's own source, the versions and the processor.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.core.extras import require
from headrace.rl.envs import layout
from headrace.rl.envs.cache import ObjectCache
from headrace.rl.envs.definition import Definition, Env, describe
from headrace.rl.envs.machine import Loaded, host
from headrace.rl.envs.plain import rehearse
from headrace.rl.envs.walk import walk
from headrace.rl.spec import EnvSpec

__all__ = ["SHARD_FUNCTIONS", "CompiledEnv", "compile"]

SHARD_FUNCTIONS = ("reset_shard", "restart_shard", "step_shard")

_COMPILER = ("build", "intrinsics", "layout", "loops", "machine", "maths", "random", "walk")


class CompiledEnv:
    """Machine code of an environment. Addresses are good for as long as this object lives.

    `reset_address` and `step_address` are of the C types `EnvReset` and `EnvStep` in `headrace/rl/env.hpp`.
    `restart_address` begins the next episode of chosen environments:
    `void (*)(void* state, int64 n, uint64 seed, int64 first, int64 last, const uint8* mask, float* obs)`.
    """

    def __init__(self, definition: Definition, digest: str, loaded: Loaded) -> None:
        self.definition = definition
        self.digest = digest
        self._loaded = loaded
        self.reset_address, self.restart_address, self.step_address = (loaded.addresses[f] for f in SHARD_FUNCTIONS)

    @property
    def spec(self) -> EnvSpec:
        return self.definition.spec

    def state_bytes(self, n: int) -> int:
        """Size of the state of `n` environments; the block must begin on a 64-byte line."""
        return layout.state_bytes(self.definition, n)

    def new_state(self, n: int) -> NDArray[np.uint8]:
        """A zeroed block for `n` environments, to be reset before use."""
        return layout.new_block(self.state_bytes(n))

    def views(self, block: NDArray[np.uint8], n: int) -> dict[str, NDArray[Any]]:
        """The fields of a block by name, without a copy (see `headrace.rl.envs.layout.views`)."""
        return layout.views(self.definition, block, n)


def compile(
    env: type[Env],
    params: Mapping[str, Any] | tuple[Any, ...] | None = None,
    *,
    max_steps: int | None = None,
    cache: ObjectCache | None = None,
) -> CompiledEnv:
    """Compile an environment class, or find it in the cache.

    Args:
        env: The definition.
        params: An instance of its `Params`, or a mapping of what to change in the defaults.
        max_steps: In place of the one of the class; 0 never truncates.
        cache: Where machine code is kept; by default `rl-envs` in Headrace's cache folder.

    Raises `InvalidInput` that names the user's file and line where something cannot be compiled, and `MissingExtra`
    without numba.
    """
    definition = describe(env, params, max_steps)
    walked = walk(definition)
    digest = hashlib.sha256(f"{walked.digest} {_compiler()} {host()}".encode()).hexdigest()
    cache = cache if cache is not None else ObjectCache()
    code = cache.find(digest)
    if code is None:
        require("numba", "rl")
        from headrace.rl.envs.build import build

        rehearse(definition)
        code = build(definition, walked)
        cache.keep(digest, code)
    return CompiledEnv(definition, digest, Loaded(code, SHARD_FUNCTIONS))


def _compiler() -> str:
    """What the machine code depends on beside the environment: the compiler's own source and the versions under it."""
    sources = hashlib.sha256()
    for name in _COMPILER:
        sources.update(Path(__file__).with_name(f"{name}.py").read_bytes())
    versions = [sys.version.split()[0], np.__version__, *(_version(p) for p in ("numba", "llvmlite"))]
    return f"{sources.hexdigest()} {' '.join(versions)}"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"
