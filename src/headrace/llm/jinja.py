"""Templates of strangers, run within bounds: their source flows in, out comes a function from variables to text.

A checkpoint is an untrusted file, and so is the template in it. Jinja's sandbox keeps it from reaching Python; this
module also bounds its steps, its time and the size of every value it makes. Only `headrace.llm.chat` imports it, and
only when a template is needed.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import Template, TemplateError, TemplateRuntimeError, TemplateSyntaxError, nodes
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from headrace.errors import InvalidInput, LoadFailed, StageFailed

__all__ = ["compile_template"]

MAX_SOURCE = 1 << 20
MAX_STEPS = 500_000
MAX_SECONDS = 5.0
MAX_SIZE = 1 << 24
"""Characters of a text, items of a list."""
MAX_NUMBER = 10_000
"""For widths, counts and precisions."""

_FILTERS = (
    *("abs", "batch", "bool", "capitalize", "count", "d", "default", "dictsort", "e", "escape", "first", "float"),
    *("groupby", "indent", "int", "items", "join", "last", "length", "list", "lower", "map", "max", "min", "reject"),
    *("rejectattr", "replace", "reverse", "round", "safe", "select", "selectattr", "slice", "sort", "string", "sum"),
    *("title", "trim", "truncate", "unique", "upper", "wordcount"),
)
_WIDE = re.compile(r"\d{4}|\*|\{[^{}]*\{")
"""In a format: a width of four digits, or one that an argument gives."""


class _Limit(Exception):
    """The template went out of bounds."""


class _Refused(TemplateRuntimeError):
    """The template itself refused the messages."""


def compile_template(source: str, where: str) -> Callable[[Mapping[str, Any]], str]:
    """Compile a template; the function may be called from several threads.

    Calling it raises `InvalidInput` with the template's own words if it refuses what it was given or lacks something,
    and `StageFailed` if it goes out of bounds. Raises `LoadFailed` naming `where` for a source that is no template.
    """
    if len(source) > MAX_SOURCE:
        raise LoadFailed(f"{where}: the template has {len(source)} characters; expected at most {MAX_SOURCE}")
    environment = _Sandbox()
    try:
        tree = environment.parse(source)
        code = environment.compile(_Counting().visit(tree))
        template = Template.from_code(environment, code, environment.globals)
    except TemplateSyntaxError as error:
        raise LoadFailed(f"{where}: not a template: line {error.lineno}: {error.message}") from None
    except (TemplateError, SyntaxError, RecursionError, MemoryError, ValueError) as error:
        raise LoadFailed(f"{where}: not a template: {error}") from None

    def render(variables: Mapping[str, Any]) -> str:
        environment.begin()
        try:
            return _gather(template.generate(**variables))
        except _Limit as error:
            raise StageFailed("chat template", str(error)) from None
        except _Refused as error:
            raise InvalidInput(f"the chat template refuses the messages: {error}") from None
        except RecursionError:
            raise StageFailed("chat template", "calls itself too deeply") from None
        except Exception as error:  # it met something it was not written for
            raise InvalidInput(f"the chat template fails on the messages: {error}") from None

    return render


class _Sandbox(ImmutableSandboxedEnvironment):
    """Knows what chat templates use, and counts."""

    intercepted_binops = frozenset({"+", "*", "%", "**"})

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, optimized=False, extensions=["jinja2.ext.loopcontrols"])
        self.filters = {name: self._bounded(name) for name in _FILTERS if name in self.filters}
        self.filters["tojson"] = _tojson
        self.globals.pop("lipsum")
        self.globals["raise_exception"] = _refuse
        self.globals["strftime_now"] = _strftime_now
        self._meter = threading.local()

    def begin(self) -> None:
        self._meter.steps, self._meter.until_s = 0, time.monotonic() + MAX_SECONDS

    def tick(self) -> str:
        """One step of a loop, macro, operator or call."""
        meter = self._meter
        meter.steps += 1
        if meter.steps > MAX_STEPS or time.monotonic() > meter.until_s:
            raise _Limit(f"takes more than {MAX_STEPS} steps or {MAX_SECONDS:g} s")
        return ""

    def joined(self, *parts: Any) -> str:
        """What `~` does."""
        self.tick()
        texts = [str(part) for part in parts]
        return "".join(texts) if _fits(sum(map(len, texts))) else ""

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        self.tick()
        if operator == "%" and isinstance(left, str):
            _check_format(left)
        elif operator == "**":
            _number(left, right)
        elif operator == "*":
            _fits(_factor(left) * _factor(right))
        elif operator == "+":
            _fits(_size(left) + _size(right))
        return super().call_binop(context, operator, left, right)

    def call(self, context: Context, function: Any, *args: Any, **kwargs: Any) -> Any:
        self.tick()
        method = getattr(function, "__wrapped__", function)  # the sandbox wraps `format`
        owner = getattr(method, "__self__", None)
        if isinstance(owner, str):
            _check_method(owner, method.__name__, args, kwargs)
        return super().call(context, function, *args, **kwargs)

    def _bounded(self, name: str) -> Callable[..., Any]:
        """A filter that checks what it is given and what it makes."""
        function = self.filters[name]
        passed = (Context, nodes.EvalContext, _Sandbox)  # by Jinja, where the filter asks for them

        def call(*args: Any, **kwargs: Any) -> Any:
            self.tick()
            given = [value for value in (*args, *kwargs.values()) if not isinstance(value, passed)]
            if name not in ("d", "default"):
                _number(*given[1:])
            if name in ("indent", "join", "replace"):
                each = _factor if name == "indent" else _size
                _fits((_size(given[0]) + 1) * max([16, *map(each, given[1:])]))
            made = function(*args, **kwargs)
            _fits(_size(made))
            return made

        call.__dict__.update(getattr(function, "__dict__", {}))  # how Jinja knows what else to pass
        return call


class _Counting(NodeTransformer):
    """Makes every turn of a loop and every macro count, and `~` check its size; nothing in a template can undo it."""

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802
        return self._with_tick(node)

    def visit_Macro(self, node: nodes.Macro) -> nodes.Node:  # noqa: N802
        return self._with_tick(node)

    def visit_CallBlock(self, node: nodes.CallBlock) -> nodes.Node:  # noqa: N802
        return self._with_tick(node)

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _call(node, "joined", node.nodes)

    def _with_tick(self, node: nodes.For | nodes.Macro | nodes.CallBlock) -> nodes.Node:
        self.generic_visit(node)
        tick = nodes.ExprStmt(_call(node, "tick", []), lineno=node.lineno, environment=node.environment)
        node.body.insert(0, tick)
        return node


def _call(node: nodes.Node, name: str, args: list[nodes.Expr]) -> nodes.Call:
    place = {"lineno": node.lineno, "environment": node.environment}
    return nodes.Call(nodes.EnvironmentAttribute(name, **place), args, [], None, None, **place)


def _gather(pieces: Iterable[str]) -> str:
    kept, size = [], 0
    for piece in pieces:
        size += len(piece)
        _fits(size)
        kept.append(piece)
    return "".join(kept)


def _size(value: Any) -> int:
    return len(value) if isinstance(value, str | list | tuple | dict) else 1


def _factor(value: Any) -> int:
    return abs(value) if isinstance(value, int) else _size(value)


def _fits(size: int) -> bool:
    if size > MAX_SIZE:
        raise _Limit(f"makes a value of more than {MAX_SIZE} characters or items")
    return True


def _number(*values: Any) -> None:
    for value in values:
        if isinstance(value, int | float) and abs(value) > MAX_NUMBER:
            raise _Limit(f"uses {value:g} as a width or count; expected at most {MAX_NUMBER}")


def _check_format(text: str) -> None:
    if _WIDE.search(text):
        raise _Limit(f"formats with {text[:40]!r}, which may be too wide")


def _check_method(text: str, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    given = [*args, *kwargs.values()]
    if name in ("format", "format_map"):
        _check_format(text)
    elif name in ("center", "ljust", "rjust", "zfill", "expandtabs"):
        _number(*given)
        _fits((len(text) + 1) * max([8, *(value for value in given if isinstance(value, int))]))
    elif name == "replace" and len(args) > 1 and isinstance(args[0], str) and isinstance(args[1], str):
        _fits(len(text) + text.count(args[0]) * len(args[1]))
    elif name == "join" and args and isinstance(args[0], list | tuple):
        _fits(sum(len(text) + _size(item) for item in args[0]))


def _refuse(message: str) -> NoReturn:
    raise _Refused(str(message)[:1000])


def _strftime_now(pattern: str) -> str:
    if len(pattern) > 100 or _WIDE.search(pattern):
        raise _Limit("asks for the time in a pattern that is too long")
    return datetime.now().astimezone().strftime(pattern)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as it is, with no character escaped for HTML."""
    _number(indent)
    text = json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    _fits(len(text))
    return text
