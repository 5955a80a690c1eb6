"""Real vocabularies, held to what llama.cpp makes of the same texts (tests/golden/data/tokens.json)."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from headrace.llm.chat import Chat
from headrace.llm.formats import open_checkpoint
from headrace.llm.tokenizer import Detokenizer, Tokenizer, load_tokenizer

pytestmark = pytest.mark.models
NAMES = ("smollm2", "gemma3-270m")


@pytest.fixture(scope="module")
def golden(checkout: Path) -> dict[str, Any]:
    return json.loads((checkout / "tests" / "golden" / "data" / "tokens.json").read_text("utf-8"))


@pytest.fixture(scope="module", params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def metadata(real_model, name: str) -> Any:
    checkpoint = open_checkpoint(real_model(name))
    yield checkpoint.metadata
    checkpoint.close()


@pytest.fixture(scope="module")
def tokenizer(metadata: Any) -> Tokenizer:
    return load_tokenizer(metadata)


@pytest.mark.parametrize("parse", [False, True])
def test_tokens_are_those_of_llama_cpp(tokenizer, golden, name, parse):
    expected = list(golden[name]["plain"])
    if parse:
        for index, ids in golden[name]["parsed"].items():
            expected[int(index)] = _once(ids, tokenizer)
    assert len(expected) == len(golden["texts"]) > 300
    for text, ids in zip(golden["texts"], expected, strict=True):
        assert tokenizer.encode(text, parse_special=parse) == ids, ascii(text)


def _once(ids: list[int], tokenizer: Tokenizer) -> list[int]:
    """llama.cpp warns of a second begin of text; here it is not added."""
    return ids[1:] if tokenizer.marks.add_bos and ids[:2] == [tokenizer.bos_id] * 2 else ids


def test_the_ends_are_those_of_llama_cpp(tokenizer, golden, name):
    """But for the closing tag `</s>` of Gemma's HTML, which ends no answer: the file calls it text."""
    ends = {token for token in golden[name]["ends"] if tokenizer.token_bytes(token) != b"</s>"}
    assert tokenizer.end_ids == ends


def test_text_comes_back(tokenizer, golden, name):
    for text in golden["texts"]:
        ids = tokenizer.encode(text)
        if name == "smollm2" and len(b"".join(map(tokenizer.token_bytes, ids))) < len(text.encode()):
            continue  # its vocabulary lacks some control characters
        assert tokenizer.decode(ids, skip_special=True) == text.replace(
            "\u2581", " " if name != "smollm2" else "\u2581"
        )
        stream = Detokenizer(tokenizer)
        assert "".join(map(stream.push, ids)) + stream.flush() == tokenizer.decode(ids, skip_special=True)


def test_prompts_are_those_of_llama_cpp(metadata, tokenizer, golden, name):
    chat = Chat(metadata, tokenizer)
    expected = golden[name].get("prompts") or golden["built_in"]["gemma"]
    for messages, prompt in zip(golden["chats"], expected, strict=True):
        assert chat.render(messages).removeprefix("<bos>") == prompt
        ids = chat.encode(messages)
        assert tokenizer.decode(ids).removeprefix("<bos>") == prompt
        assert ids[:2] != [tokenizer.bos_id] * 2
    for messages, ids in zip(golden["chats"], golden[name].get("prompt_ids", []), strict=False):
        assert chat.encode(messages) == ids


def test_threads_share_a_tokenizer(tokenizer, golden):
    texts = golden["texts"] * 3
    expected = [tokenizer.encode(text) for text in texts]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(tokenizer.encode, texts)) == expected
