"""Films of episodes: made picture by picture, refused where they cannot be."""

from __future__ import annotations

import io
from collections.abc import Iterator

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from headrace.errors import InvalidInput, NotFound
from headrace.rl import show
from headrace.rl.show import animation, frames


def _pictures(n: int) -> Iterator[NDArray[np.uint8]]:
    for k in range(n):
        picture = np.full((20, 40, 3), 255, np.uint8)
        picture[5:10, k % 30 : k % 30 + 5] = (0, 0, 200)
        yield picture


def test_a_film_has_the_pictures_it_was_given() -> None:
    with Image.open(io.BytesIO(animation(_pictures(12), 20.0, 80))) as film:
        assert film.n_frames == 12
        assert film.size == (80, 40)
        assert film.info["duration"] == 50
        film.seek(7)
        frame = np.asarray(film.convert("RGB")).astype(int)
        assert np.abs(frame[14, 18] - (0, 0, 200)).sum() < 30
        assert frame[14, 40].min() > 240


def test_films_that_cannot_be_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for fps in (0.0, -1.0, 101.0, float("nan")):
        with pytest.raises(InvalidInput, match="fps: expected a number above 0 and at most 100"):
            animation(_pictures(2), fps)
    with pytest.raises(InvalidInput, match="width: expected 1 to 4,096 pixels, got 0"):
        animation(_pictures(2), 10.0, 0)
    with pytest.raises(InvalidInput, match="at least one"):
        animation([], 10.0)
    monkeypatch.setattr(show, "MOST_PICTURES", 3)
    with pytest.raises(InvalidInput, match="at most 3; film fewer episodes"):
        animation(_pictures(4), 10.0)
    assert animation(_pictures(3), 10.0)


def test_frames_tell_of_whole_episodes_and_the_same_seed_of_the_same() -> None:
    once, again = (list(frames("headrace/CartPole-v1", None, 2, 5, drawn=False)) for _ in range(2))
    assert once == again
    assert [frame.length for frame in once if frame.over] == [frame.total for frame in once if frame.over]
    assert sum(frame.over for frame in once) == 2
    assert all(frame.picture is None for frame in once)
    (first, *_) = frames("headrace/CartPole-v1", None, 1, 0)
    assert first.picture is not None
    assert first.picture.dtype == np.uint8


def test_what_cannot_be_drawn_or_is_not_there_is_told() -> None:
    with pytest.raises(InvalidInput, match="cannot be drawn"):
        next(frames("headrace/Bandit-v0", None, 1, 0))
    with pytest.raises(NotFound):
        next(frames("headrace/None-v0", None, 1, 0))
