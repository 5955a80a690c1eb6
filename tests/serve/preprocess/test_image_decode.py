"""Reading headers and decoding pictures: what is accepted, what is refused, and how fast a bomb is."""

import struct
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from headrace.core.context import Context
from headrace.errors import ConfigError, InvalidInput, PayloadTooLarge, UnsupportedMedia
from headrace.serve.preprocess.image_decode import Decode, decode_image
from headrace.serve.preprocess.image_header import FORMATS, read_header, sniff
from headrace.serve.protocol import Payload
from headrace.testing.images import encode_image

RED, GREEN, BLUE, WHITE = (255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255)


def quadrants(size=8):
    """Red, green over blue, white: every rotation and mirror image of it is different."""
    pixels = np.zeros((size, size, 3), np.uint8)
    half = size // 2
    pixels[:half, :half], pixels[:half, half:], pixels[half:, :half], pixels[half:, half:] = RED, GREEN, BLUE, WHITE
    return pixels


def png_claiming(width, height):
    """A few bytes that say they are a picture of this size."""
    chunk = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + chunk + struct.pack(">I", zlib.crc32(chunk))


@pytest.mark.parametrize("format", FORMATS)
@given(width=st.integers(1, 300), height=st.integers(1, 300))
@settings(max_examples=15, deadline=None)
def test_header_tells_what_the_decoder_finds(format, width, height):
    data = encode_image(np.zeros((height, width, 3), np.uint8), format)
    header = read_header(data)
    assert (header.format, header.width, header.height) == (format, width, height)
    assert decode_image(data).shape == (height, width, 3)


@pytest.mark.parametrize("options", [{"lossless": True}, {"quality": 80}, {"exif": b"Exif\0\0MM\0*\0\0\0\x08\0\0"}])
def test_every_kind_of_webp_header_is_read(options):
    header = read_header(encode_image(np.zeros((20, 33, 3), np.uint8), "webp", **options))
    assert (header.width, header.height) == (33, 20)


def test_jpeg_header_lies_behind_long_metadata():
    data = encode_image(quadrants(), "jpeg", comment=b"x" * 60_000)
    assert read_header(data).width == 8


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"%PDF-1.7 ...", "PDF"),
        (b"PK\x03\x04rest", "ZIP"),
        (b'{"image": 1}', "JSON"),
        (b"<!doctype html>", "HTML"),
        (b"II*\x00\x08\0\0\0", "TIFF"),
        (b"hello there", "plain text"),
        (b"RIFF\x24\0\0\0WAVEfmt ", "WAV"),
        (b"\x00\x01\x02\x03\x04\x05\x06\x07", "00 01 02 03"),
    ],
)
def test_foreign_data_is_named_with_what_is_accepted(data, said):
    with pytest.raises(UnsupportedMedia, match=rf"jpeg, png, webp, bmp or gif, got .*{said}"):
        decode_image(data)


def test_nothing_is_invalid_input():
    with pytest.raises(InvalidInput, match="0 bytes"):
        decode_image(b"")
    assert "0 bytes" in sniff(b"")


@pytest.mark.parametrize("format", FORMATS)
def test_cut_off_data_is_refused_at_every_length(format):
    rng = np.random.default_rng(0)
    data = encode_image(rng.integers(0, 256, (40, 40, 3)).astype(np.uint8), format)
    for size in {*range(1, 64), *range(64, len(data) * 3 // 4, 97)}:
        with pytest.raises(InvalidInput):
            decode_image(data[:size])


@given(st.sampled_from(FORMATS), st.integers(0, 2**32 - 1))
@settings(max_examples=60, deadline=None)
def test_damaged_bytes_give_a_picture_or_a_clear_refusal(format, seed):
    rng = np.random.default_rng(seed)
    data = bytearray(encode_image(quadrants(24), format))
    for _ in range(4):
        data[int(rng.integers(0, len(data)))] = int(rng.integers(0, 256))
    try:
        pixels = decode_image(bytes(data), max_pixels=100_000)
    except InvalidInput:
        return
    assert pixels.dtype == np.uint8
    assert pixels.size <= 300_000


def test_a_bomb_is_refused_by_its_header_alone():
    with pytest.raises(PayloadTooLarge, match=r"60000x60000 .*limit is 40000000"):
        decode_image(png_claiming(60_000, 60_000))  # no pixel data follows: whoever decoded would fail differently
    with pytest.raises(PayloadTooLarge):
        decode_image(encode_image(np.zeros((11, 10), np.uint8)), max_pixels=100)
    assert decode_image(encode_image(np.zeros((10, 10), np.uint8)), max_pixels=100).shape == (10, 10, 3)


def test_a_picture_of_no_pixels_is_refused():
    with pytest.raises(InvalidInput, match="0x5"):
        decode_image(png_claiming(0, 5))


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_applied(orientation):
    stored = {
        1: lambda p: p,
        2: lambda p: p[:, ::-1],
        3: lambda p: p[::-1, ::-1],
        4: lambda p: p[::-1],
        5: lambda p: p.transpose(1, 0, 2),
        6: lambda p: np.rot90(p, 1),
        7: lambda p: np.rot90(p.transpose(1, 0, 2), 2),
        8: lambda p: np.rot90(p, -1),
    }[orientation](quadrants())
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encode_image(np.ascontiguousarray(stored), "png", exif=exif)
    np.testing.assert_array_equal(decode_image(data), quadrants())


def test_alpha_lies_over_white_or_the_given_grey():
    pixels = np.zeros((4, 4, 4), np.uint8)
    pixels[:2] = (*RED, 255)
    data = encode_image(pixels)
    assert decode_image(data)[3, 0].tolist() == [255, 255, 255]
    assert decode_image(data, background=10)[3, 0].tolist() == [10, 10, 10]
    assert decode_image(data)[0, 0].tolist() == list(RED)


def test_sixteen_bits_are_scaled_not_clipped():
    wide = np.array([[0, 32768, 65535]], np.uint16)
    assert decode_image(encode_image(wide), channels="grey")[0, :, 0].tolist() == [0, 128, 255]


def test_palette_grey_bilevel_and_cmyk_become_rgb(tmp_path):
    picture = Image.fromarray(quadrants())
    for mode, format in (("P", "png"), ("P", "gif"), ("L", "png"), ("1", "png"), ("CMYK", "jpeg"), ("LA", "png")):
        path = tmp_path / f"{mode}.{format}"
        picture.convert(mode).save(path)
        pixels = decode_image(path.read_bytes())
        assert pixels.shape == (8, 8, 3), mode
        assert pixels[7, 7].min() > 245, mode


def test_an_animation_shows_its_first_frame(tmp_path):
    frames = [Image.fromarray(np.full((6, 6, 3), value, np.uint8)) for value in (200, 10)]
    frames[0].save(tmp_path / "a.gif", save_all=True, append_images=frames[1:])
    assert decode_image((tmp_path / "a.gif").read_bytes())[0, 0, 0] == 200


def test_channel_orders():
    data = encode_image(quadrants())
    np.testing.assert_array_equal(decode_image(data, channels="bgr"), quadrants()[:, :, ::-1])
    assert decode_image(data, channels="grey").shape == (8, 8, 1)


def test_stage_fills_the_tensor_and_the_facts():
    payload = Decode(channels="bgr").process(Payload(data=memoryview(encode_image(quadrants()[:4]))), Context())
    assert payload.tensors["image"].shape == (1, 4, 8, 3)
    assert (payload.metadata["image.width"], payload.metadata["image.height"]) == (8, 4)
    assert payload.data == b""


@pytest.mark.parametrize(
    "options", [{"channels": "cmyk"}, {"max_pixels": 0}, {"formats": ["tiff"]}, {"formats": []}, {"background": 300}]
)
def test_wrong_options_are_told_when_the_stage_is_made(options):
    with pytest.raises(ConfigError, match=r"image\.decode"):
        Decode(**options)


def test_formats_can_be_narrowed():
    with pytest.raises(UnsupportedMedia, match="expected png, got jpeg"):
        decode_image(encode_image(quadrants(), "jpeg"), formats=("png",))
