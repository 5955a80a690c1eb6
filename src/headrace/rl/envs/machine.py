"""Machine code in and out of bytes: LLVM IR becomes an object file, an object file becomes addresses to call.

Only llvmlite is needed, so that an environment found in the cache starts without numba.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from headrace.core.extras import require
from headrace.errors import InvalidInput

__all__ = ["Loaded", "host", "to_object"]

_FORBIDDEN = re.compile(r"Py|numba_|NRT_")


def _llvm() -> Any:
    llvm = require("llvmlite.binding", "rl")
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm


def host() -> str:
    """The processor that machine code is made for; an object runs on no other."""
    llvm = _llvm()
    return f"{llvm.get_default_triple()} {llvm.get_host_cpu_name()} {llvm.get_host_cpu_features().flatten()}"


def _target_machine(llvm: Any) -> Any:
    return llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten(), opt=3, jit=True
    )


def to_object(modules: Mapping[str, tuple[str, str]]) -> bytes:
    """One object file that exports the keys of `modules`: name -> (LLVM IR, the function in it).

    Everything else becomes internal, so that the optimiser may see that nothing is ever raised. Raises `InvalidInput`
    when the code still asks the Python interpreter for something.
    """
    llvm = _llvm()
    whole = None
    for name, (text, symbol) in modules.items():
        module = llvm.parse_assembly(text)
        for function in module.functions:
            if function.name == symbol:
                function.name = name
            elif not function.is_declaration:
                function.linkage = "internal"
        for variable in module.global_variables:
            if variable.name.startswith("_ZN08NumbaEnv"):
                variable.linkage = "internal"
        if whole is None:
            whole = module
        else:
            whole.link_in(module)
    assert whole is not None
    target = _target_machine(llvm)
    options = llvm.create_pipeline_tuning_options(speed_level=3)
    passes = llvm.create_pass_builder(target, options)
    passes.getModulePassManager().run(whole, passes)
    asked = sorted(f.name for f in whole.functions if f.is_declaration and _FORBIDDEN.match(f.name))
    if asked:
        raise InvalidInput(f"the machine code calls {asked[0]}")
    compiled: bytes = target.emit_object(whole)
    return compiled


class Loaded:
    """An object file placed in memory. `addresses` are good for as long as this object lives."""

    def __init__(self, compiled: bytes, names: tuple[str, ...]) -> None:
        llvm = _llvm()
        self._engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), _target_machine(llvm))
        self._engine.add_object_file(llvm.ObjectFileRef.from_data(compiled))
        self._engine.finalize_object()
        self.addresses = {name: int(self._engine.get_function_address(name)) for name in names}
