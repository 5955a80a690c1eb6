"""Untrusted environments: WebAssembly modules that step a whole batch in a sandbox."""

from headrace.rl.wasm.batch import WasmBatch
from headrace.rl.wasm.module import PARTICLES, WasmEnv

__all__ = ["PARTICLES", "WasmBatch", "WasmEnv"]
