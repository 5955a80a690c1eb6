"""`headrace serve`: a model repository, or one language model, in; an HTTP server out, until SIGTERM or Ctrl-C."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.core.telemetry import TraceSettings
    from headrace.serve.repository import Repository
    from headrace.serve.server import ServerSettings

__all__ = ["EPILOG", "command"]

_log = logging.getLogger(__name__)

EXIT_GRACE_S = 2.0
"""How long threads get to end once everything else is done."""

EPILOG = """[bold]Examples[/bold]

headrace serve

headrace serve ./models --port 9000 --access-log

headrace serve ./SmolLM2-135M-Instruct.Q4_1.gguf --api-key "$KEY"

headrace serve ./models --host 0.0.0.0 --token "$TOKEN" --max-body-mb 16

headrace serve ./models --trace-exporter http://localhost:4318/v1/traces --trace-ratio 0.01
"""


def command(
    repo: Annotated[
        Path | None,
        typer.Argument(
            metavar="[REPO|MODEL]",
            envvar="HEADRACE_REPO",
            help="Model repository, or one language model: a GGUF file, or a folder with config.json and safetensors. "
            "Default: ./models.",
        ),
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = 8000,
    token: Annotated[
        str,
        typer.Option(
            envvar="HEADRACE_TOKEN",
            help="Guards model control only (/v2/repository: index, load, unload), sent as 'Authorization: Bearer "
            "TOKEN'. Without one, control is for local programs, and off when --host is not loopback. Inference is "
            "guarded by --api-key; metrics and docs are open to whoever reaches the address.",
        ),
    ] = "",
    api_key: Annotated[
        str,
        typer.Option(
            envvar="HEADRACE_API_KEY",
            help="Guards whatever runs a model (/v1, /generate, /v2/models: infer, generate), sent as 'Authorization: "
            "Bearer KEY', as OpenAI's clients send it. Without one it is open.",
        ),
    ] = "",
    max_body_mb: Annotated[int, typer.Option(min=1, help="Largest request body, MiB.")] = 64,
    max_concurrency: Annotated[int, typer.Option(min=1, help="Requests answered at once; more get 429.")] = 2048,
    drain_timeout: Annotated[float, typer.Option(min=0, help="Seconds open requests get at shutdown.")] = 30.0,
    access_log: Annotated[bool, typer.Option("--access-log", help="Log each request.")] = False,
    log_format: Annotated[str, typer.Option(help="auto, text or json (auto: text on a terminal).")] = "auto",
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
    trace_exporter: Annotated[
        str, typer.Option(help="none, console, or the URL of an OTLP collector; needs the extra otel.")
    ] = "none",
    trace_ratio: Annotated[
        float, typer.Option(min=0, max=1, help="Share of requests without a traceparent to trace.")
    ] = 0.01,
) -> None:
    """Serve every model and pipeline of a repository, or one language model, over HTTP.

    OpenAI's API for language models and pipelines under /v1, Open Inference Protocol V2 under /v2, /generate, /healthz,
    /readyz, /metrics, /docs. On SIGTERM or Ctrl-C open requests are finished first; a second signal ends it at once.
    """
    from contextlib import nullcontext

    import uvloop

    from headrace.apps.serve_llm.bare import bare_model, bare_repository
    from headrace.core import logs
    from headrace.core.telemetry import TraceSettings
    from headrace.serve.codec.message import Limits
    from headrace.serve.server import ServerSettings
    from headrace.store.versions import default_root

    handler = logs.setup(log_format, log_level)  # type: ignore[arg-type]  # it judges both
    say = _say_json if isinstance(handler.formatter, logs.JsonFormatter) else _say_text
    settings = ServerSettings(
        host=host,
        port=port,
        token=token,
        drain_timeout_s=drain_timeout,
        access_log=access_log,
        limits=Limits(max_body_bytes=max_body_mb << 20, max_concurrency=max_concurrency),
    )
    path = repo or default_root()
    traces = TraceSettings(trace_ratio, trace_exporter)
    try:
        model = bare_model(path)
        with nullcontext(path) if model is None else bare_repository(model) as root:
            uvloop.run(_serve(root, settings, traces, api_key, say))
    except HeadraceError as error:
        if log_format != "json":
            raise
        _log.error("%s", error)
        raise typer.Exit(1) from None


def _say_text(message: str, **_: object) -> None:
    typer.echo(message, err=True)


def _say_json(message: str, **facts: object) -> None:
    _log.info("%s", message.strip().removeprefix("headrace: "), extra=facts)


async def _serve(
    root: Path, settings: ServerSettings, traces: TraceSettings, api_key: str, say: Callable[..., None]
) -> None:
    import asyncio
    import gc

    from headrace.apps.serve_llm.backend import LlmPlugin
    from headrace.apps.serve_llm.routes import llm_routes
    from headrace.core.memory import release_regularly
    from headrace.core.telemetry import LoopLag, ProcessMetrics, Registry, Tracer
    from headrace.serve.metrics import ServeMetrics
    from headrace.serve.repository import Repository
    from headrace.serve.server import Server

    registry = Registry()
    process = ProcessMetrics(registry)
    beside = [asyncio.create_task(LoopLag(registry).run()), asyncio.create_task(release_regularly())]
    tracer = Tracer(traces)
    metrics = ServeMetrics(registry)
    repository = Repository(
        root,
        metrics,
        tracer=tracer,
        drain_timeout_s=settings.drain_timeout_s,
        plugins={"llm": LlmPlugin(registry, tracer)},
    )
    extend = llm_routes(repository, settings.limits.max_body_bytes, api_key)
    server = Server(repository, metrics, settings, tracer, extend)
    try:
        await server.start()
        serving = asyncio.create_task(server.serve())
        loading = asyncio.create_task(_load(repository, server.url, say))
        await asyncio.wait({serving, loading}, return_when=asyncio.FIRST_COMPLETED)
        if loading.done() and not serving.done():
            loading.result()
            gc.collect()
            gc.set_threshold(20_000, 20, 50)  # a busy tick makes thousands of short-lived objects (2 % more rps)
            gc.freeze()  # what was loaded lives as long as the server; the collector need not walk it again
        drained = await serving
        say("headrace: drained, bye" if drained else "headrace: stopped")
    finally:
        await server.stop()
        for task in beside:
            task.cancel()
        process.close()
        tracer.close()
        _leave_soon()


def _leave_soon() -> None:
    """Python waits for its threads at exit, and one may be stuck in a model for ever: then leave without it."""
    import os
    from threading import Timer

    timer = Timer(EXIT_GRACE_S, os._exit, [1])
    timer.daemon = True
    timer.start()


async def _load(repository: Repository, url: str, say: Callable[..., None]) -> None:
    import shlex

    from headrace.store.recipe import recipe_names

    await repository.start()
    entries = repository.index()
    ready = [entry["name"] for entry in entries if entry["state"] == "READY"]
    say(f"headrace: serving {len(ready)} of {len(entries)} on {url}  (docs: {url}/docs)", url=url)
    for entry in entries:
        line = f"  {entry['name']:<24} {entry['state'].lower()}"
        say(f"{line}{'  ' + entry['reason'] if entry['reason'] else ''}", model=entry["name"], state=entry["state"])
    if not entries:
        where = shlex.quote(str(repository.root))
        names = ", ".join(recipe_names())
        say(f"headrace: {where} holds no model yet; get one with: headrace pull NAME --repo {where} (NAME: {names})")
