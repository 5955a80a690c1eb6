"""Pulling: in flows what a user asked for, out come verified versions in the repository, current and configured.

For each model, under its lock: fetch into a hidden folder, compare with the pin, rename into place, switch `current`,
and only then write `headrace.toml`; so a model that a server can see always has a complete current version.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from headrace.errors import ConfigError, Conflict, IntegrityError, InvalidInput
from headrace.store.config import check_file, named_file
from headrace.store.edit import Edit, Fetched
from headrace.store.manifest import FileEntry, Manifest, content_pin
from headrace.store.names import CONFIG, check_model, check_path, check_version, safe_path
from headrace.store.progress import Progress, Silent
from headrace.store.recipe import ModelRecipe, load_recipe
from headrace.store.sources import open_source, split_pin
from headrace.store.verify import verify
from headrace.store.versions import ModelStore

__all__ = ["Pulled", "pull_model", "pull_recipe"]

_BACKENDS = {".gguf": "llm", ".onnx": "onnx"}


class Pulled(msgspec.Struct, frozen=True):
    """What a pull did to one model or pipeline; a pipeline has no version, digest, size or source.

    `config`: whether `headrace.toml` was written, was there with the same content, was there with other content and
    was kept, or could not be guessed ("absent").
    """

    name: str
    kind: Literal["model", "pipeline"]
    status: Literal["installed", "unchanged", "repaired", "configured"]
    version: str
    is_current: bool
    digest: str
    size_bytes: int
    source: str
    config: Literal["written", "unchanged", "kept", "absent"]


def pull_model(
    repository: ModelStore,
    uri: str,
    *,
    name: str = "",
    version: str = "",
    file: str = "",
    config: bytes = b"",
    switch: bool = True,
    force_config: bool = False,
    progress: Progress | None = None,
) -> Pulled:
    """Pull one model from a source URI, which may carry a pin.

    Args:
        name: What to call it; default: what the source suggests.
        version: Name of the version folder; default: from the content's digest.
        file: What to install the source's single file as; default: what `file =` of the model's `headrace.toml` names
            if it is of the same type, else its own name.
        config: Content of `headrace.toml`; default: guessed from the type of the files.
        switch: Whether to make the version current. The first version of a model always becomes current.

    Raises `IntegrityError` if the content differs from the pin (nothing is installed then), `Conflict` if the name is a
    pipeline's or the version holds other content, `ConfigError` if the version would become current and lacks the file
    that the `headrace.toml` names (nothing is installed then either), and what the source raises.
    """
    progress = progress or Silent()
    bare, pin = split_pin(uri)
    source = open_source(bare)
    name = check_model(name) if name else source.name
    if version:
        check_version(version)
    if file:
        check_path(file, f"model {name!r}")

    with repository.edit(name, say=progress.note) as model:
        if model.is_pipeline():
            raise Conflict(f"{name!r} in {repository.root} is a pipeline; give the model another name")
        toml = config if config and (force_config or not model.has_config()) else model.config()
        wanted, becomes_current = named_file(toml), switch or not model.current()

        def check(files: list[FileEntry]) -> None:
            if becomes_current:
                try:
                    check_file(toml, [entry.path for entry in files], model.folder / CONFIG)
                except ConfigError as error:
                    raise ConfigError(f"{error}; mend that line, or pull with --no-switch to mend it later") from error

        def fill(target: Path) -> Fetched:
            fetched = source.fetch(target, progress)
            if pin and (got := content_pin(fetched.files)) != pin:
                raise IntegrityError(f"{bare}: expected sha256 {pin}, got {got}; nothing was installed")
            if file:
                fetched = _rename(fetched, target, file)
            elif _stands_for(fetched.files, wanted):
                progress.note(f"installing {fetched.files[0].path} as {wanted}, which `file =` in {CONFIG} names")
                fetched = _rename(fetched, target, wanted)
            check(fetched.files)
            return fetched

        manifest = _already(model, pin, version, file, wanted, progress)
        status: Literal["installed", "unchanged", "repaired"] = "unchanged"
        if manifest is None:
            installed = model.install(fill, version=version)
            manifest, status = installed.manifest, installed.status
        if becomes_current:
            check(manifest.files)
            model.switch(manifest.version, check=False)
        content = config or _guess_config(manifest)
        return Pulled(
            name=name,
            kind="model",
            status=status,
            version=manifest.version,
            is_current=model.current() == manifest.version,
            digest=manifest.digest,
            size_bytes=manifest.size_bytes,
            source=manifest.source,
            config=_configure(model, content, bool(config), force_config),
        )


def pull_recipe(
    repository: ModelStore,
    recipe_name: str,
    *,
    switch: bool = True,
    force_config: bool = False,
    progress: Progress | None = None,
) -> list[Pulled]:
    """Pull the models of a recipe, then write its pipelines, which therefore never name a model that is not there."""
    recipe, configs = load_recipe(recipe_name)
    pulled = [_pull_part(repository, part, configs, switch, force_config, progress) for part in recipe.model]
    for part in recipe.pipeline:
        with repository.edit(part.name, say=(progress or Silent()).note) as pipeline:
            if pipeline.versions():
                raise Conflict(f"{part.name!r} in {repository.root} is a model; the pipeline needs that name")
            config = pipeline.write_config(configs[part.config], force=force_config)
        status: Literal["configured", "unchanged"] = "configured" if config == "written" else "unchanged"
        pulled.append(Pulled(part.name, "pipeline", status, "", False, "", 0, "", config))
    return pulled


def _pull_part(
    repository: ModelStore,
    part: ModelRecipe,
    configs: dict[str, bytes],
    switch: bool,
    force_config: bool,
    progress: Progress | None,
) -> Pulled:
    return pull_model(
        repository,
        part.uri,
        name=part.name,
        file=part.file,
        config=configs[part.config],
        switch=switch,
        force_config=force_config,
        progress=progress,
    )


def _already(model: Edit, pin: str, version: str, file: str, wanted: str, progress: Progress) -> Manifest | None:
    """The sound installed version that a pin asks for, found without asking the source."""

    def matches(manifest: Manifest) -> bool:
        paths = [entry.path for entry in manifest.files]
        named = paths == [file] if file else not wanted or wanted in paths
        return named and content_pin(manifest.files) == pin and version in ("", manifest.version)

    found = model.find(matches) if pin else None
    try:
        return verify(model.version_dir(found.version), progress) if found else None
    except IntegrityError as error:
        progress.note(f"{error}; fetching it again")
        return None


def _stands_for(files: list[FileEntry], wanted: str) -> bool:
    """Whether the only file is of the type of `wanted`, so that it can be installed under that name."""
    if not wanted or safe_path(wanted) or len(files) != 1 or files[0].path == wanted:
        return False
    return Path(files[0].path).suffix.lower() == Path(wanted).suffix.lower()


def _rename(fetched: Fetched, target: Path, file: str) -> Fetched:
    if len(fetched.files) != 1:
        raise InvalidInput(f"{fetched.source}: expected one file to install as {file!r}, got {len(fetched.files)}")
    entry = fetched.files[0]
    (target / file).parent.mkdir(parents=True, exist_ok=True)
    (target / entry.path).rename(target / file)
    return Fetched(fetched.source, [msgspec.structs.replace(entry, path=file)])


def _guess_config(manifest: Manifest) -> bytes:
    """A `headrace.toml` for a model with one file of a known type, else b""."""
    known = [entry.path for entry in manifest.files if Path(entry.path).suffix.lower() in _BACKENDS]
    if len(known) != 1:
        return b""
    backend = _BACKENDS[Path(known[0]).suffix.lower()]
    if "/" not in known[0] and known[0].endswith((".gguf", ".onnx")):
        return f'backend = "{backend}"\n'.encode()  # the server finds the file, also that of the next version
    path = msgspec.json.encode(known[0]).decode()  # a JSON string without control characters is a TOML one too
    return f'backend = "{backend}"\nfile = {path}\n'.encode()


def _configure(
    model: Edit, content: bytes, is_given: bool, force: bool
) -> Literal["written", "unchanged", "kept", "absent"]:
    """Write the configuration; a guess only fills a gap, so it neither replaces nor contradicts what is there."""
    if not is_given and model.has_config():
        return "unchanged"
    return model.write_config(content, force=force) if content else "absent"
