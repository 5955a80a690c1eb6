"""Many texts in one blob behave as the list of them; a text that is not UTF-8 is found, also one torn in two."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import LoadFailed
from headrace.llm.formats import open_checkpoint
from headrace.llm.formats.texts import Texts


def _texts(texts):
    raw = [text.encode() for text in texts]
    return Texts(b"".join(raw), np.cumsum([0, *map(len, raw)]).astype(np.int32))


@given(st.lists(st.text(st.characters(codec="utf-8"), max_size=5)))
def test_they_are_the_list_of_them(words):
    texts = _texts(words)
    assert list(texts) == words
    assert texts == words
    assert texts == _texts(words)
    assert texts != [*words, "x"]
    assert texts[1:] == words[1:]
    assert [texts[i] for i in range(-len(words), len(words))] == words + words
    with pytest.raises(IndexError):
        texts[len(words)]


def _file(path, raw):
    body = b"".join(struct.pack("<Q", len(text)) + text for text in raw)
    key = struct.pack("<Q", 3) + b"key" + struct.pack("<IIQ", 9, 8, len(raw)) + body
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + key)
    return path


@pytest.mark.parametrize(
    ("raw", "text", "skipped"),
    [
        ([b"ab", b"c\xff", b"d"], 1, 10 + 8 + 1),
        ([b"", b"\xc3", b"\xa9", b""], 2, 8 + 9 + 8),
        ([b"a", b"\xe2\x82"], 1, 9 + 8),
        ([b"\x80"], 0, 8),
    ],
)
def test_a_text_that_is_not_utf8_is_named(tmp_path, raw, text, skipped):
    at = 24 + 8 + 3 + 4 + 4 + 8 + skipped
    checkpoint = open_checkpoint(_file(tmp_path / "bad.gguf", raw))
    with pytest.raises(LoadFailed, match=f"at byte {at}: 'key': text {text} is not UTF-8"):
        checkpoint.metadata["key"]
    checkpoint.close()


def test_no_texts_are_none(tmp_path):
    checkpoint = open_checkpoint(_file(tmp_path / "none.gguf", []))
    assert checkpoint.metadata["key"] == []
    assert repr(checkpoint.metadata["key"]) == "<0 texts: >"
    checkpoint.close()
