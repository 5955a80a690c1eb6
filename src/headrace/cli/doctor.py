"""`headrace doctor`: the machine, the installation and the repository flow in, a report and a verdict flow out.

Every section is gathered on its own; one that fails is a line in the report, never an end of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

__all__ = ["EPILOG", "command"]

EPILOG = """[bold]Examples[/bold]

headrace doctor

headrace doctor --json | jq .verdict
"""

# Extras for developing Headrace; nobody misses them on a server.
_DEVELOPMENT = ("dev", "docs", "lint", "test")


def command(
    repo: Annotated[
        Path | None, typer.Option(metavar="DIR", envvar="HEADRACE_REPO", help="Model repository. Default: ./models.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show what Headrace finds here: processor, memory, limits, packages, models, and whether it can serve.

    Exit status 1 if it cannot.
    """
    report = examine(repo)
    if as_json:
        import msgspec

        typer.echo(msgspec.json.encode(report).decode())
    else:
        for line in describe(report):
            typer.echo(line)
    if report["problems"]:
        raise typer.Exit(1)


def examine(repo: Path | None) -> dict[str, Any]:
    """The whole report as plain data; see `docs/observability.md` for its keys. Never raises."""
    report: dict[str, Any] = {
        "headrace": _guard(_headrace),
        "machine": _guard(_machine),
        "simd": _guard(_simd),
        "packages": _guard(_packages),
        "extras": _guard(_extras),
        "repository": _guard(lambda: _repository(repo)),
    }
    report["problems"], report["notes"] = list(_problems(report)), list(_notes(report))
    report["cannot_serve"] = list(_cannot_serve(report))
    report["verdict"] = "not ready" if report["problems"] else "ready"
    return report


def describe(report: dict[str, Any]) -> Iterator[str]:
    """The report as aligned lines, the verdict last."""
    for name in ("headrace", "machine", "simd", "packages", "extras", "repository"):
        section = report[name]
        yield name
        lines = (
            _DESCRIBE.get(name, _describe_plain)(section) if "error" not in section else [("error", section["error"])]
        )
        for key, value in lines:
            yield f"  {key:<12} {value}".rstrip()
    for kind in ("problems", "notes"):
        for text in report[kind]:
            yield f"{kind[:-1]}: {text}"
    but = f"; cannot serve: {', '.join(report['cannot_serve'])}" if report["cannot_serve"] else ""
    yield f"verdict: {report['verdict']}{but}"


def _guard(gather: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    try:
        return gather()
    except Exception as error:  # an odd machine is what this command is for
        return {"error": f"{type(error).__name__}: {error}"}


def _headrace() -> dict[str, Any]:
    import platform
    import sys

    import headrace

    return {
        "version": headrace.__version__,
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "executable": sys.executable,
        "location": str(Path(headrace.__file__).parent),
    }


def _machine() -> dict[str, Any]:
    from headrace.core.machine import machine

    return asdict(machine())


def _simd() -> dict[str, Any]:
    from headrace.core.probe import cpu

    found = cpu()
    return {"isa": found.isa, "isas": found.isas, "features": found.features}


def _requirements() -> Iterator[tuple[str, str]]:
    """(package, extra) of the installed Headrace, as its metadata tells; extra is "" for what is always needed."""
    import re
    from importlib.metadata import requires

    for line in requires("headrace") or []:
        requirement, _, marker = line.partition(";")
        extra = re.search(r"""extra\s*==\s*["']([^"']+)["']""", marker)
        package = re.match(r"[A-Za-z0-9._-]+", requirement)
        if package and package[0] != "headrace":
            yield package[0], extra[1] if extra else ""


def _installed(package: str) -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _packages() -> dict[str, Any]:
    return {package: _installed(package) for package, extra in _requirements() if not extra}


def _extras() -> dict[str, Any]:
    from headrace.cli._needs import install

    extras: dict[str, Any] = {}
    for package, extra in _requirements():
        if extra and extra not in _DEVELOPMENT:
            extras.setdefault(extra, {"packages": {}})["packages"][package] = _installed(package)
    for name, extra in extras.items():
        extra["present"] = all(extra["packages"].values())
        extra["install"] = "" if extra["present"] else install([name])
    return extras


def _repository(repo: Path | None) -> dict[str, Any]:
    from headrace.cli._needs import extras_of
    from headrace.errors import HeadraceError
    from headrace.serve.config import load_config
    from headrace.store.versions import ModelStore, default_root

    repository = ModelStore(repo or default_root())
    models, damaged, misconfigured, configs = {}, {}, {}, {}
    for name in repository.names():
        try:
            info = repository.info(name)
            models[name] = "pipeline" if info.kind == "pipeline" else info.current
        except HeadraceError as error:
            damaged[name] = str(error)
            continue
        try:
            configs[name] = load_config(repository.root / name / "headrace.toml")
            if info.current:
                repository.check(name, read_files=False)
        except HeadraceError as error:
            misconfigured[name] = str(error)
    # A pipeline also needs what the models need that its stages call.
    used = {name: [name, *(s.options.get("model") for s in config.stage)] for name, config in configs.items()}
    needs = {
        name: sorted({extra for one in parts if one in configs for extra in extras_of(configs[one])})
        for name, parts in used.items()
    }
    path = repository.root
    return {
        "path": str(path.absolute()),
        "exists": path.is_dir(),
        "models": models,
        "damaged": damaged,
        "misconfigured": misconfigured,
        "needs": needs,
    }


def _problems(report: dict[str, Any]) -> Iterator[str]:
    """What keeps Headrace from working here."""
    if "error" in report["simd"]:
        yield f"kernels cannot run: {report['simd']['error']}"
    missing = [name for name, version in report["packages"].items() if not version]
    if "error" in report["packages"]:
        yield f"the installation cannot be read: {report['packages']['error']}"
    elif missing:
        yield f"packages are missing: {', '.join(missing)}; install again, in the clone: pip install '.[serve]'"
    if "error" in report["repository"]:
        yield f"the model repository cannot be read: {report['repository']['error']}"
    for kind in ("damaged", "misconfigured"):
        for name, error in report["repository"].get(kind, {}).items():
            yield f"model {name}: {error}"
    if lacking := _lacking(report):
        extras = sorted({extra for missing in lacking.values() for extra in missing})
        word = "extra" if len(extras) == 1 else "extras"
        yield f"{', '.join(lacking)}: the {word} {', '.join(extras)} are missing; run: {_install(extras)}"


def _lacking(report: dict[str, Any]) -> dict[str, list[str]]:
    """The extras that are not installed, for each model or pipeline that needs one."""
    absent = {name for name, extra in report["extras"].items() if name != "error" and not extra["present"]}
    needs = report["repository"].get("needs", {})
    return {name: missing for name, extras in needs.items() if (missing := [e for e in extras if e in absent])}


def _install(extras: list[str]) -> str:
    from headrace.cli._needs import install

    return install(extras)


def _cannot_serve(report: dict[str, Any]) -> Iterator[str]:
    """What the verdict leaves out: models and pipelines of the repository, or a whole kind of models."""
    repository = report["repository"]
    stopped = {*repository.get("damaged", {}), *repository.get("misconfigured", {}), *_lacking(report)}
    stopped |= {name for name, current in repository.get("models", {}).items() if not current}
    yield from sorted(stopped)
    if not stopped and not report["extras"].get("onnx", {"present": True})["present"]:
        yield "ONNX models"


def _notes(report: dict[str, Any]) -> Iterator[str]:
    """What works, but less well than it could."""
    machine, repository, extras = report["machine"], report["repository"], report["extras"]
    if not extras.get("onnx", {"present": True})["present"] and not _lacking(report):
        yield f"ONNX models cannot be served; run: {extras['onnx']['install']}"
    if repository.get("exists") is False:
        yield f"there is no model repository yet; run: headrace pull vad --repo {repository['path']}"
    for name, current in repository.get("models", {}).items():
        if not current:
            yield f"model {name} has no current version; run: headrace models switch {name} VERSION"
    if "error" in machine:
        return
    quota = machine["limits"]["cpus"]
    if quota is not None and quota < machine["usable_cpus"]:
        yield f"CPU time is limited to {quota:g} cores of {machine['usable_cpus']}; set threads of models accordingly"
    if machine["huge_pages"]["transparent"] == "never":
        yield "transparent huge pages are off; large weights are read faster with: madvise"


def _describe_plain(section: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for key, value in section.items():
        yield key, str(value) or "missing"


def _describe_simd(section: dict[str, Any]) -> Iterator[tuple[str, str]]:
    yield "isa", f"{section['isa']} (of {' '.join(section['isas'])})"
    yield "features", " ".join(section["features"]) or "none"


def _describe_extras(section: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for name, extra in section.items():
        found = ", ".join(f"{package} {version}" for package, version in extra["packages"].items() if version)
        yield name, found if extra["present"] else f"missing: {extra['install']}"


def _describe_repository(section: dict[str, Any]) -> Iterator[tuple[str, str]]:
    yield "path", section["path"] if section["exists"] else f"{section['path']} (not there)"
    for name, current in section["models"].items():
        mark = "; its headrace.toml cannot be served" if name in section["misconfigured"] else ""
        yield name, f"{current or 'no current version'}{mark}"
    for name in section["damaged"]:
        yield name, "damaged"


def _describe_machine(section: dict[str, Any]) -> Iterator[tuple[str, str]]:
    limits, huge = section["limits"], section["huge_pages"]
    quota = "" if limits["cpus"] is None else f", limited to {limits['cpus']:g}"
    yield "processor", section["cpu_model"] or section["architecture"]
    counts = f"{section['cores']} in {section['sockets']} socket(s), {section['cpus']} logical"
    yield "cores", f"{counts}, {section['usable_cpus']} usable{quota}"
    for cache in section["caches"]:
        kind = {"data": "d", "instruction": "i"}.get(cache["kind"], "")
        yield f"L{cache['level']}{kind}", f"{cache['instances']} x {_size(cache['size_bytes'])}"
    cap = "" if limits["memory_bytes"] is None else f", limited to {_size(limits['memory_bytes'])}"
    yield "memory", f"{_size(section['memory_bytes'])}, {_size(section['available_bytes'])} available{cap}"
    yield "huge pages", f"transparent: {huge['transparent'] or 'unknown'}; reserved: {huge['reserved']}"
    for node in section["numa"]:
        yield f"NUMA node {node['number']}", f"{len(node['cpus'])} CPUs, {_size(node['memory_bytes'])}"
    yield "kernel", f"{section['kernel']} {section['architecture']}"


def _size(size_bytes: int) -> str:
    for shift, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if size_bytes >= 1 << shift:
            return f"{size_bytes / (1 << shift):.4g} {unit}"
    return f"{size_bytes} B"


_DESCRIBE: dict[str, Callable[[dict[str, Any]], Iterator[tuple[str, str]]]] = {
    "machine": _describe_machine,
    "simd": _describe_simd,
    "extras": _describe_extras,
    "repository": _describe_repository,
}
