"""The whole `ocr` pipeline on the real models: pages of known text, a stored answer, and pictures without text."""

import asyncio
import dataclasses
import json
import os

import numpy as np
import pytest

from headrace.core.context import Context
from headrace.errors import InvalidInput, Unavailable
from headrace.serve.backends.onnx import OnnxBackend
from headrace.serve.config import load_config
from headrace.serve.model import Model
from headrace.serve.pipeline import Pipeline
from headrace.serve.protocol import Payload
from headrace.store.progress import make_progress
from headrace.store.pull import pull_recipe
from headrace.store.versions import ModelStore
from headrace.testing.images import PAGES, PageSpec, character_errors, edit_distance, encode_image, render_page
from headrace.testing.photographs import PHOTOGRAPHS, fetch_photograph

pytestmark = pytest.mark.models

MODELS = ("ocr-det", "ocr-cls", "ocr-rec")
SPECS = {spec.name: spec for spec in PAGES}
# A smaller sheet of each kind keeps the test quick; size of text, angle, contrast and compression stay.
KINDS = ["page", "small", "tiny", "tilted", "steep", "upside-down", "quarter-turn", "photo", "noise", "faint", "dark",
         "jpeg", "banner", "label"]  # fmt: skip


@pytest.fixture(scope="module")
def pulled(checkout):
    """A repository with the recipe in it, kept between runs; only a missing network is a reason to skip."""
    root = checkout / ".cache" / "models"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEADRACE_CACHE", os.environ.get("HEADRACE_CACHE", str(checkout / ".cache" / "headrace")))
        try:
            pull_recipe(ModelStore(root), "ocr", force_config=True)
        except Unavailable as error:
            pytest.skip(f"the models cannot be pulled: {error}")
    return root


@pytest.fixture
async def pipeline(pulled):
    models = {}
    for name in MODELS:
        config = load_config(pulled / name / "headrace.toml")
        file = pulled / name / "current" / config.file
        models[name] = await Model.load(name, "1", OnnxBackend(file, name, config.runtime.threads), config)
    directory = pulled / "ocr"
    pipeline = Pipeline.from_config("ocr", load_config(directory / "headrace.toml"), models.get, directory)
    yield pipeline
    await pipeline.close()
    for model in models.values():
        await model.close()


async def read(pipeline, pixels, format="png", **options):
    payload = Payload(data=encode_image(pixels, format, **options), media_type=f"image/{format}")
    return (await pipeline.run(payload, Context(timeout_s=100))).result


def sheet(kind):
    spec = SPECS[kind]
    return render_page(dataclasses.replace(spec, lines=min(spec.lines or 5, 5)), seed=7)


@pytest.mark.parametrize("kind", KINDS)
async def test_known_text_is_read(pipeline, kind):
    page = sheet(kind)
    result = await read(pipeline, page.pixels)
    assert (result["height"], result["width"]) == page.pixels.shape[:2]
    found = [(line["text"], line["box"]) for line in result["lines"]]
    edits, total = character_errors(page.lines, found, spaces=False)
    assert edits <= 0.015 * total, found
    assert len(found) == len(page.lines)
    # reading order, and corners from the text's own top-left, however the page lies
    for line, truth in zip(result["lines"], page.lines, strict=True):
        apart = np.asarray(line["box"]) - np.asarray(truth.box)
        assert np.abs(apart).max() < max(8, 0.6 * page.spec.size), (line["text"], truth.text)


async def test_the_stored_answer(pipeline, checkout):
    golden = json.loads((checkout / "tests" / "golden" / "data" / "ocr.json").read_text("utf-8"))
    page = render_page(PageSpec(**golden["page"]), golden["seed"])
    result = await read(pipeline, page.pixels)
    assert [line["text"] for line in result["lines"]] == [line["text"] for line in golden["lines"]]
    for line, stored in zip(result["lines"], golden["lines"], strict=True):
        np.testing.assert_allclose(line["box"], stored["box"], atol=2.0)
        assert line["confidence"] == pytest.approx(stored["confidence"], abs=0.02)


async def test_many_at_once_give_what_each_gives_alone(pipeline):
    pages = [sheet(kind).pixels for kind in ("label", "banner", "tiny", "photo")]
    alone = [await read(pipeline, pixels) for pixels in pages]
    together = await asyncio.gather(*(read(pipeline, pixels) for pixels in pages * 3))
    assert together == alone * 3


@pytest.mark.parametrize("size", [(1, 1), (1, 300), (300, 1), (37, 41)])
async def test_blank_and_tiny_pictures_have_no_lines(pipeline, size):
    result = await read(pipeline, np.full((*size, 3), 255, np.uint8))
    assert result == {"width": size[1], "height": size[0], "lines": []}


async def test_a_sideways_photo_reads_like_the_upright_one(pipeline):
    from PIL import Image

    page = sheet("label")
    exif = Image.Exif()
    exif[0x0112] = 6  # stored turned by a quarter, as phones do
    stored = np.ascontiguousarray(np.rot90(page.pixels))
    upright = await read(pipeline, page.pixels, "jpeg", quality=95)
    turned = await read(pipeline, stored, "jpeg", quality=95, exif=exif)
    assert [line["text"] for line in turned["lines"]] == [line["text"] for line in upright["lines"]]
    assert (turned["width"], turned["height"]) == (upright["width"], upright["height"])


async def test_what_is_no_picture_is_refused(pipeline):
    with pytest.raises(InvalidInput, match="PDF"):
        await pipeline.run(Payload(data=b"%PDF-1.7"), Context(timeout_s=10))


@pytest.mark.parametrize("photograph", PHOTOGRAPHS, ids=lambda photograph: photograph.name)
async def test_a_real_photograph_is_read(pipeline, checkout, monkeypatch, photograph):
    monkeypatch.setenv("HEADRACE_CACHE", os.environ.get("HEADRACE_CACHE", str(checkout / ".cache" / "headrace")))
    try:
        data = fetch_photograph(photograph, checkout / ".cache" / "photographs", make_progress(quiet=True))
    except Unavailable as error:
        pytest.skip(f"the photograph cannot be had: {error}")
    result = (await pipeline.run(Payload(data=data), Context(timeout_s=100))).result
    # Dim and curved: the detector may miss a line, but what it finds must be there, in order and all but right.
    written = [line.replace(" ", "") for line in photograph.lines]
    at = -1
    for line in result["lines"]:
        text = line["text"].replace(" ", "")
        nearest = min(range(len(written)), key=lambda i: edit_distance(written[i], text))
        assert edit_distance(written[nearest], text) <= 2, (text, written[nearest])
        assert nearest > at
        at = nearest
    assert len(result["lines"]) >= 5
