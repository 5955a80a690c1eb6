"""Recipes: named sets of models shipped with Headrace. In flows a name, out come pinned sources and `headrace.toml`s.

recipes/<name>/recipe.toml      [[model]] name, source (or list of parts), file, config; then [[pipeline]] name, config
recipes/<name>/<config>         the text installed as models/<model>/headrace.toml
"""

from __future__ import annotations

import difflib
import tomllib
from pathlib import Path

import msgspec

from headrace.errors import ConfigError, NotFound
from headrace.store.names import check_model, check_path

__all__ = ["ModelRecipe", "PipelineRecipe", "Recipe", "load_recipe", "recipe_names"]

_SHIPPED = Path(__file__).parent / "recipes"


class ModelRecipe(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One model. `source` may be a list: parts to be joined. `file`, if given, is what its single file is named."""

    name: str
    source: str | list[str]
    config: str
    file: str = ""

    @property
    def uri(self) -> str:
        return self.source if isinstance(self.source, str) else " + ".join(self.source)


class PipelineRecipe(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One pipeline: it has a `headrace.toml` and no version folder."""

    name: str
    config: str


class Recipe(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole `recipe.toml`."""

    description: str
    model: list[ModelRecipe] = []
    pipeline: list[PipelineRecipe] = []


def recipe_names(folder: Path = _SHIPPED) -> list[str]:
    """The recipes there are, sorted."""
    return sorted(path.parent.name for path in folder.glob("*/recipe.toml"))


def load_recipe(name: str, folder: Path = _SHIPPED) -> tuple[Recipe, dict[str, bytes]]:
    """A recipe and the content of each configuration it names; raises `NotFound`, or `ConfigError` naming the file."""
    known = recipe_names(folder)
    if name not in known:
        close = difflib.get_close_matches(name, known, 1)
        meant = f"did you mean {close[0]}? " if close else ""
        raise NotFound(f"no recipe {name!r}, and no such file; {meant}recipes: {', '.join(known)}")
    path = folder / name / "recipe.toml"
    try:
        recipe = msgspec.convert(tomllib.loads(path.read_text("utf-8")), Recipe)
        configs = {}
        named = [(part.name, part.config) for part in recipe.model] + [(p.name, p.config) for p in recipe.pipeline]
        for model, config in named:
            check_model(model)
            configs[config] = (path.parent / check_path(config, str(path))).read_bytes()
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, msgspec.ValidationError, OSError) as error:
        raise ConfigError(f"{path}: {error}") from error
    return recipe, configs
