"""Stages by name: a `StageConfig` in, a checked and constructed `Stage` out.

`OPS` maps short names to "module:Class", imported on first use, so that a pipeline pays only for what it uses. An op
"package.module:attribute" is user code: a module beside the pipeline's `headrace.toml`, else an installed package.
The attribute is a class, made with the stage's options, or a function `(payload, ctx, *, options…) -> payload`.
"""

from __future__ import annotations

import difflib
import functools
import importlib
import inspect
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import msgspec

from headrace.core.context import Context
from headrace.errors import ConfigError, HeadraceError
from headrace.serve.config import StageConfig
from headrace.serve.explain import explain
from headrace.serve.protocol import Payload, Stage
from headrace.serve.usercode import UserCode, split_entry

__all__ = ["OPS", "Function", "StageFactory"]

OPS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "audio.decode": "headrace.serve.preprocess.audio:DecodeAudio",
        "audio.frame": "headrace.serve.preprocess.frames:Frame",
        "audio.resample": "headrace.serve.preprocess.audio:Resample",
        "boxes.find": "headrace.serve.postprocess.boxes:FindBoxes",
        "classify.top": "headrace.serve.postprocess.classify:TopClasses",
        "ctc.greedy": "headrace.serve.postprocess.ctc:GreedyCtc",
        "image.crop": "headrace.serve.preprocess.image:CentreCrop",
        "image.decode": "headrace.serve.preprocess.image_decode:Decode",
        "image.layout": "headrace.serve.preprocess.image:Layout",
        "image.normalise": "headrace.serve.preprocess.image:Normalise",
        "image.resize": "headrace.serve.preprocess.image:Resize",
        "infer": "headrace.serve.infer:Infer",
        "ocr.lines": "headrace.serve.postprocess.ocr:Lines",
        "ocr.orient": "headrace.serve.postprocess.ocr:Orient",
        "ocr.page": "headrace.serve.preprocess.ocr:Page",
        "ocr.strips": "headrace.serve.preprocess.ocr:Strips",
        "vad.probabilities": "headrace.serve.postprocess.vad:SpeechProbabilities",
        "vad.segments": "headrace.serve.postprocess.vad:SpeechSegments",
        "validate.confidence": "headrace.serve.postprocess.validate:Confidence",
        "validate.finite": "headrace.serve.postprocess.validate:Finite",
        "validate.range": "headrace.serve.postprocess.validate:Range",
        "validate.schema": "headrace.serve.postprocess.validate:Schema",
    }
)


class Function:
    """A plain function or coroutine function `(payload, ctx) -> payload` as a stage."""

    def __init__(self, function: Callable[[Payload, Context], Any]) -> None:
        self.process = function


class StageFactory:
    """Builds the stages of one pipeline; user modules in `directory` are loaded once and shared by its stages.

    `close` forgets the user's modules; call it when the stages are gone.
    """

    def __init__(self, directory: Path | None) -> None:
        self._code = None if directory is None else UserCode(directory)

    def create(self, config: StageConfig, name: str = "") -> Stage:
        """The stage of one `[[stage]]` table.

        Raises `ConfigError` naming the stage, the option, what was expected and what came; `MissingExtra` where an
        optional dependency is absent.
        """
        where = f"stage {name or config.name or config.op!r}"
        target = self._find(config.op, where)
        if inspect.isclass(target):
            if not callable(getattr(target, "process", None)):  # looked for first: making any odd object may do harm
                raise ConfigError(f"{where}: {target.__qualname__} has no method `process`")
            options = _check_options(target, config.options, where)
            try:
                stage = target(**options)
            except HeadraceError as error:
                if isinstance(error, ConfigError):
                    raise ConfigError(f"{where}: {error}") from error
                raise
            except Exception as error:
                raise ConfigError(f"{where}: {type(error).__name__}: {error}") from error
            return typing.cast(Stage, stage)
        if not inspect.isfunction(target):
            kind = type(target).__name__
            raise ConfigError(f"{where}: {config.op!r} is a {kind}; expected a class or a Python function")
        options = _check_options(target, config.options, where, keyword_only=True)
        return Function(functools.partial(target, **options) if options else target)

    def close(self) -> None:
        if self._code is not None:
            self._code.close()

    def _find(self, op: str, where: str) -> Any:
        if ":" not in op:
            if op not in OPS:
                raise ConfigError(f'{where}: no op {op!r}; expected "module:Class" or one of {", ".join(sorted(OPS))}')
            return _import(OPS[op])
        try:
            module, _ = split_entry(op)
            if self._code is not None and self._code.has(module):
                return self._code.load(op)
            return _import(op)
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}") from error
        except HeadraceError:
            raise
        except (Exception, SystemExit) as error:
            said = f"{where}: {op!r}: {type(error).__name__}: {error}"
            if isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}."):
                raise ConfigError(said + self._absent(module)) from None
            raise ConfigError(said) from error

    def _absent(self, module: str) -> str:
        """Where a module was looked for, and the one beside the pipeline that may have been meant."""
        if self._code is None:
            return ""
        near = difflib.get_close_matches(module.split(".")[0], self._code.modules(), 1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        return f", neither in {self._code.directory} nor installed{hint}"


def _import(entry: str) -> Any:
    module, attribute = split_entry(entry)
    value: Any = importlib.import_module(module)
    for part in attribute.split("."):
        value = getattr(value, part)
    return value


def _check_options(
    target: Callable[..., Any], options: Mapping[str, Any], where: str, *, keyword_only: bool = False
) -> dict[str, Any]:
    """Options checked against the signature of `target`, converted to the types it declares where TOML has no such type
    (a list becomes a tuple, a string an enum member)."""
    parameters = inspect.signature(target).parameters.values()
    known = {
        parameter.name: parameter
        for parameter in parameters
        if parameter.kind is parameter.KEYWORD_ONLY
        or (parameter.kind is parameter.POSITIONAL_OR_KEYWORD and not keyword_only)
    }
    rest = next((parameter.name for parameter in parameters if parameter.kind is parameter.VAR_KEYWORD), "")
    for key in options:
        if key not in known and not rest:
            raise ConfigError(f"{where}: unknown option {key!r}; expected {', '.join(map(repr, known)) or 'none'}")
    for key, parameter in known.items():
        if parameter.default is parameter.empty and key not in options:
            raise ConfigError(f"{where}: option {key!r} is missing")
    hints = _hints(target)
    return {
        key: _convert(value, hints.get(key if key in known else rest, Any), key, where)
        for key, value in options.items()
    }


def _hints(target: Callable[..., Any]) -> dict[str, Any]:
    """Type hints of a constructor or function; empty where they cannot be evaluated (names only for type checkers)."""
    try:
        return typing.get_type_hints(target.__init__ if inspect.isclass(target) else target)
    except (NameError, TypeError, AttributeError):
        return {}


def _convert(value: Any, hint: Any, key: str, where: str) -> Any:
    try:
        return msgspec.convert(value, hint)
    except msgspec.ValidationError as error:
        said = explain(error, hint).replace("`$", f"`{key}").replace("`", "")
        raise ConfigError(f"{where}: option {key!r}: {said[:1].lower()}{said[1:]}; got {value!r}") from None
    except TypeError:  # a type msgspec does not know: the constructor judges it
        return value
