"""Templates of strangers: their source flows in, out comes a function from variables to text.

Jinja's immutable sandbox keeps a template from Python; `headrace.llm.bounds` keeps it within steps, time and sizes.
Every loop and macro gets a step of its own in the parsed template, where nothing in its source can undo it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, NoReturn

from headrace.core.extras import require
from headrace.errors import InvalidInput, LoadFailed, StageFailed
from headrace.llm.bounds import Bounds, OutOfBounds, check_size

__all__ = ["compile_template"]

MAX_SOURCE = 1 << 18

_FILTERS = (
    *("abs", "batch", "bool", "capitalize", "count", "d", "default", "dictsort", "e", "escape", "first", "float"),
    *("groupby", "indent", "int", "items", "join", "last", "length", "list", "lower", "map", "max", "min", "reject"),
    *("rejectattr", "replace", "reverse", "round", "safe", "select", "selectattr", "slice", "sort", "string", "sum"),
    *("title", "trim", "truncate", "unique", "upper", "wordcount"),
)
_OPERATORS = frozenset({"+", "*", "%", "**"})


class _Refused(Exception):
    """The template itself refused the messages."""


def compile_template(source: str, where: str) -> Callable[[Mapping[str, Any]], str]:
    """Compile a template; the function may be called from several threads.

    Calling it raises `InvalidInput` with the template's own words if it refuses what it was given or lacks something,
    and `StageFailed` if it goes out of bounds. Raises `LoadFailed` naming `where` for a source that is no template,
    `MissingExtra` without Jinja.
    """
    jinja = require("jinja2", "llm")
    if len(source) > MAX_SOURCE:
        raise LoadFailed(f"{where}: the template has {len(source)} characters; expected at most {MAX_SOURCE}")
    bounds = Bounds()
    environment = _environment(bounds)
    try:
        tree = environment.parse(source)
        _look_after(tree)
        template = jinja.Template.from_code(environment, environment.compile(tree), environment.globals)
    except jinja.TemplateSyntaxError as error:
        raise LoadFailed(f"{where}: not a template: line {error.lineno}: {error.message}") from None
    except (jinja.TemplateError, SyntaxError, RecursionError, MemoryError, ValueError) as error:
        raise LoadFailed(f"{where}: not a template: {error}") from None

    def render(variables: Mapping[str, Any]) -> str:
        try:
            with bounds.running():
                return _gather(template.generate(**variables))
        except OutOfBounds as error:
            raise StageFailed("chat template", str(error)) from None
        except MemoryError:
            raise StageFailed("chat template", "needs more memory than there is") from None
        except RecursionError:
            raise StageFailed("chat template", "calls itself too deeply") from None
        except _Refused as error:
            raise InvalidInput(f"the chat template refuses the messages: {error}") from None
        except Exception as error:  # it met something it was not written for
            raise InvalidInput(f"the chat template fails on the messages: {error}") from None

    return render


def _environment(bounds: Bounds) -> Any:
    """A sandbox that knows what chat templates use; its operators, calls and filters ask `bounds` first."""
    from jinja2.nodes import EvalContext
    from jinja2.runtime import Context
    from jinja2.sandbox import ImmutableSandboxedEnvironment
    from jinja2.utils import Namespace

    class Names(Namespace):
        __repr__ = object.__repr__  # what is in it would not be counted

    class Sandbox(ImmutableSandboxedEnvironment):
        intercepted_binops = _OPERATORS
        tick, joined, made = staticmethod(bounds.tick), staticmethod(bounds.joined), staticmethod(bounds.made)
        shown, wrote = staticmethod(bounds.shown), staticmethod(bounds.wrote)

        def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
            bounds.operator(operator, left, right)
            return bounds.made(super().call_binop(context, operator, left, right))

        def call(self, context: Context, function: Any, *args: Any, **kwargs: Any) -> Any:
            if getattr(function, "__self__", None) is bounds:  # put there by `_look_after`
                return function(*args)
            args = bounds.method(function, args, kwargs)
            return bounds.made(super().call(context, function, *args, **kwargs))

    environment = Sandbox(trim_blocks=True, lstrip_blocks=True, optimized=False, extensions=["jinja2.ext.loopcontrols"])
    known, passed = environment.filters, (Context, EvalContext, Sandbox)
    environment.filters = {name: bounds.filter(name, known[name], passed) for name in _FILTERS if name in known}
    environment.filters["tojson"] = bounds.filter("tojson", _tojson, passed)
    environment.globals.pop("lipsum")
    environment.globals["namespace"] = Names
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = lambda pattern: datetime.now().astimezone().strftime(bounds.pattern(pattern))
    return environment


def _look_after(node: Any) -> None:
    """Put calls of the bounds into the parsed template: each turn of a loop and each macro takes a step, `~` is theirs,
    and they see what is written out and what is made or compared with no operator, filter or call."""
    from jinja2 import nodes

    def call(name: str, args: list[Any], place: Any) -> Any:
        at = {"lineno": place.lineno, "environment": place.environment}
        return nodes.Call(nodes.EnvironmentAttribute(name, **at), args, [], None, None, **at)

    def changed(value: Any) -> Any:
        if isinstance(value, list):
            return [changed(item) for item in value]
        if not isinstance(value, nodes.Node):
            return value
        _look_after(value)
        if isinstance(value, nodes.Concat):
            return call("joined", value.nodes, value)
        is_slice = isinstance(value, nodes.Getitem) and isinstance(value.arg, nodes.Slice)
        is_tuple = isinstance(value, nodes.Tuple) and value.ctx == "load"
        makes = is_slice or is_tuple or isinstance(value, nodes.List | nodes.Dict | nodes.Compare | nodes.Test)
        return call("made", [value], value) if makes else value

    for field, value in list(node.iter_fields()):
        setattr(node, field, changed(value))
    if isinstance(node, nodes.Output):
        size = sum(len(part.data) for part in node.nodes if isinstance(part, nodes.TemplateData))
        parts = [part if isinstance(part, nodes.TemplateData) else call("shown", [part], part) for part in node.nodes]
        node.nodes = [*parts, call("wrote", [nodes.Const(size)], node)]
    if isinstance(node, nodes.For | nodes.Macro | nodes.CallBlock):
        step = nodes.ExprStmt(call("tick", [], node), lineno=node.lineno, environment=node.environment)
        node.body.insert(0, step)


def _gather(pieces: Iterable[str]) -> str:
    kept, size = [], 0
    for piece in pieces:
        size += len(piece)
        check_size(size)
        kept.append(piece)
    return "".join(kept)


def _refuse(message: str) -> NoReturn:
    raise _Refused(str(message)[:1000])


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as it is, with no character escaped for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
