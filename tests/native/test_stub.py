"""The type stub of the compiled extension says what the extension has."""

import ast
from pathlib import Path

from headrace import _native
from headrace._native import _ext

STUB = Path(_native.__file__).with_name("_ext.pyi")


def own(names):
    return {name for name in names if not (name.startswith("__") and name.endswith("__"))}


def test_the_stub_matches_the_extension():
    body = ast.parse(STUB.read_text()).body
    functions = {node.name for node in body if isinstance(node, ast.FunctionDef)}
    classes = {
        node.name: {item.name for item in node.body if isinstance(item, ast.FunctionDef)}
        for node in body
        if isinstance(node, ast.ClassDef)
    }
    assert functions | set(classes) == own(vars(_ext))
    for name, members in classes.items():
        assert own(members) == own(vars(getattr(_ext, name))), name


def test_all_of_the_extension_is_re_exported():
    assert set(_native.__all__) == own(vars(_ext))
