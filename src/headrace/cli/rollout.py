"""`headrace rollout`: a training run, or an environment, in; a film of episodes out."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from headrace.cli._complete import runs_and_environments
from headrace.errors import ConfigError, Unavailable

__all__ = ["EPILOG", "command"]

EPILOG = """[bold]Examples[/bold]

headrace rollout runs/fast --video pole.gif

headrace rollout headrace/Acrobot-v1 --video chance.gif --episodes 2 --seed 3 --size 300 --fps 15

headrace rollout runs/fast --json | jq .returns"""


def command(
    what: Annotated[
        str,
        typer.Argument(
            metavar="RUN|ENV",
            help="The folder or a checkpoint of a run; or an environment, for chance.",
            autocompletion=runs_and_environments,
        ),
    ],
    video: Annotated[Path | None, typer.Option(metavar="FILE.gif", help="Where the film goes; default: none.")] = None,
    episodes: Annotated[int, typer.Option(metavar="N", min=1, help="One after the other.")] = 1,
    seed: Annotated[
        int, typer.Option(metavar="N", min=0, help="Of the first episode; that of the next is one more.")
    ] = 0,
    fps: Annotated[float, typer.Option(metavar="X", help="Pictures a second.")] = 30.0,
    size: Annotated[
        int | None, typer.Option(metavar="PIXELS", min=1, max=4096, help="Width; default: as it is drawn.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Let a policy act, episode by episode, and film it.

    Environments of Headrace draw themselves, those of Gymnasium in their mode rgb_array.
    """
    from headrace.rl.saved import load_policy
    from headrace.rl.show import animation, frames
    from headrace.store.durable import replace_file

    if video is not None and video.suffix.lower() != ".gif":
        raise ConfigError(f"--video {video}: expected a name that ends in .gif")
    if video is not None and not video.parent.is_dir():
        raise Unavailable(f"{video}: cannot be written: there is no folder {video.parent}")
    policy = load_policy(Path(what)) if Path(what).exists() else None
    env = what if policy is None else policy.config.env
    returns: list[float] = []
    lengths: list[int] = []

    def played() -> Iterator[Any]:
        for frame in frames(env, policy, episodes, seed, drawn=video is not None):
            if frame.over:
                returns.append(frame.total)
                lengths.append(frame.length)
            yield frame.picture

    if video is None:
        deque(played(), maxlen=0)
    else:
        film = animation(played(), fps, size)
        try:
            replace_file(video, film)
        except OSError as error:
            raise Unavailable(f"{video}: cannot be written: {error.strerror}") from error
    if as_json:
        told = {"env": env, "returns": returns, "lengths": lengths, "video": str(video) if video else None}
        print(json.dumps(told))
        return
    for number, (total, length) in enumerate(zip(returns, lengths, strict=True)):
        print(f"episode {number}: return {total:.2f} in {length} steps")
    if video is not None:
        print(f"{video}: {sum(lengths) + episodes} pictures")
