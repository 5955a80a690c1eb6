"""A trained policy, or chance, at work: a policy or the name of an environment in, episodes and pictures out."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headrace.core.extras import require
from headrace.errors import InvalidInput, StageFailed
from headrace.rl.algorithms.make import make_source
from headrace.rl.algorithms.places import find_place
from headrace.rl.algorithms.play import play
from headrace.rl.envs import CompiledEnv
from headrace.rl.envs.batch import Autoreset, BatchEnv
from headrace.rl.evaluate import EVALUATION_SEED
from headrace.rl.saved import SavedPolicy
from headrace.rl.spec import Box, Discrete, EnvSpec, from_gymnasium
from headrace.rl.trajectory import EpisodeStats

__all__ = ["Frame", "animation", "frames", "judge"]

MOST_FRAMES = 100_000
"""Of an episode."""

MOST_PICTURES = 5_000
"""Of a film: they are kept, packed, until it is written."""


class Frame(NamedTuple):
    """A picture uint8[height, width, 3] if one was wanted, the episode's return and steps so far, and whether it is
    over."""

    picture: NDArray[np.uint8] | None
    total: float
    length: int
    over: bool


def judge(policy: SavedPolicy, episodes: int, seed: int) -> EpisodeStats:
    """Greedy episodes on seeds that training does not use, the same for the same `seed`."""
    if episodes < 1:
        raise InvalidInput(f"episodes: expected at least 1, got {episodes}")
    source = make_source(policy.config, find_place(policy.config.env), episodes)
    try:
        policy.reset(source.n_envs)
        return play(source, policy.act, episodes, seed + EVALUATION_SEED)
    finally:
        source.close()


def frames(env: str, policy: SavedPolicy | None, episodes: int, seed: int, *, drawn: bool = True) -> Iterator[Frame]:
    """Whole episodes, one after the other: a frame before the first step and one after each.

    Args:
        policy: Who acts; None: at random.
        drawn: Whether there are pictures.

    Raises `NotFound` for an environment that is not there, `InvalidInput` for one that cannot be drawn, `StageFailed`
    for what one of Gymnasium's raises.
    """
    place = find_place(env)
    rng = np.random.default_rng(seed)
    world = _Compiled(place) if isinstance(place, CompiledEnv) else _Gymnasium(env, place, drawn)
    picture = world.picture if drawn else lambda: None
    try:
        if policy is not None:
            policy.reset(1)
        for episode in range(episodes):
            obs = world.reset(seed + episode)
            yield Frame(picture(), 0.0, 0, False)
            total, length, over = 0.0, 0, False
            begins = np.ones(1, np.bool_)
            while not over:
                action = _random(world.spec, rng) if policy is None else policy.act(obs, begins)
                begins[:] = False
                obs, reward, over = world.step(action)
                total, length = total + reward, length + 1
                if length > MOST_FRAMES:
                    raise InvalidInput(f"{env}: the episode did not end in {MOST_FRAMES} steps")
                yield Frame(picture(), total, length, over)
    finally:
        world.close()


def animation(pictures: Iterable[NDArray[np.uint8]], fps: float, width: int | None = None) -> bytes:
    """A GIF that repeats for ever, `width` pixels wide if given; pictures are taken one at a time.

    Raises `InvalidInput` for no picture or more than 5,000, for a rate that is not above 0 and at most 100, and for a
    width that is not from 1 to 4,096.
    """
    if not 0 < fps <= 100:
        raise InvalidInput(f"fps: expected a number above 0 and at most 100, got {fps:g}")
    if width is not None and not 1 <= width <= 4096:
        raise InvalidInput(f"width: expected 1 to 4,096 pixels, got {width}")
    images = _images(pictures, width)
    first = next(images, None)
    if first is None:
        raise InvalidInput("pictures: expected at least one")
    content = io.BytesIO()
    first.save(content, "GIF", save_all=True, append_images=images, duration=max(10, round(1000 / fps)), loop=0)
    return content.getvalue()


def _images(pictures: Iterable[NDArray[np.uint8]], width: int | None) -> Iterator[Any]:
    image = require("PIL.Image", "rl")
    for number, picture in enumerate(pictures):
        if number == MOST_PICTURES:
            raise InvalidInput(f"pictures: expected at most {MOST_PICTURES:,}; film fewer episodes")
        drawn = image.fromarray(picture)
        yield drawn if width is None else drawn.resize((width, max(1, round(drawn.height * width / drawn.width))))


def _random(spec: EnvSpec, rng: np.random.Generator) -> NDArray[Any]:
    space = spec.action
    if isinstance(space, Box):
        low, high = np.maximum(space.low.ravel(), -1e3), np.minimum(space.high.ravel(), 1e3)
        return rng.uniform(low, high).astype(np.float32)[None]
    if isinstance(space, Discrete):
        return rng.integers(space.n, size=1, dtype=np.int32)
    return rng.integers(space.nvec, dtype=np.int32)[None]


class _Compiled:
    def __init__(self, env: CompiledEnv) -> None:
        self.spec = env.spec
        self._batch = BatchEnv(env, 1, threads=1, autoreset=Autoreset.DISABLED)

    def reset(self, seed: int) -> NDArray[np.float32]:
        return self._flat(self._batch.reset(seed))

    def step(self, action: NDArray[Any]) -> tuple[NDArray[np.float32], float, bool]:
        step = self._batch.step(action)
        return self._flat(step.obs), float(step.reward[0]), bool(step.terminated[0] | step.truncated[0])

    def picture(self) -> NDArray[np.uint8]:
        return self._batch.draw()

    def close(self) -> None:
        pass

    def _flat(self, obs: NDArray[np.float32]) -> NDArray[np.float32]:
        return obs.reshape(1, self.spec.obs_size)


class _Gymnasium:
    """What it raises is told as its own."""

    def __init__(self, name: str, factory: Any, drawn: bool) -> None:
        self._name = name
        with self._guarded():
            self._env: Any = factory(render_mode="rgb_array") if drawn else factory()
        size = int(np.prod(self._env.observation_space.shape or (1,)))
        self.spec = EnvSpec(name, Box(-np.inf, np.inf, (size,)), from_gymnasium(self._env.action_space))

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            raise StageFailed(self._name, f"{type(error).__name__}: {error}") from error

    def reset(self, seed: int) -> NDArray[np.float32]:
        with self._guarded():
            return self._flat(self._env.reset(seed=seed)[0])

    def step(self, action: NDArray[Any]) -> tuple[NDArray[np.float32], float, bool]:
        space: Any = self._env.action_space
        native = np.asarray(action).reshape(space.shape).astype(space.dtype)
        with self._guarded():
            obs, reward, terminated, truncated, _ = self._env.step(native if space.shape else native.item())
            return self._flat(obs), float(reward), bool(terminated or truncated)

    def picture(self) -> NDArray[np.uint8]:
        with self._guarded():
            picture = self._env.render()
        if not isinstance(picture, np.ndarray):
            raise InvalidInput(f"{self._name}: expected a picture of it, render() gave {type(picture).__name__}")
        return picture.astype(np.uint8)

    def close(self) -> None:
        self._env.close()

    def _flat(self, obs: Any) -> NDArray[np.float32]:
        return np.asarray(obs, np.float32).reshape(1, -1)
