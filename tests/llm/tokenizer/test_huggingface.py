"""A `tokenizer.json` gives the ids of the `tokenizers` package, and text, bytes and roles as any other file."""

from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, processors

from headrace.errors import LoadFailed, StageFailed
from headrace.llm.tokenizer import Detokenizer, load_tokenizer

fixed = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
pieces = st.sampled_from(["the", " fox", "<|im_end|>", "\n", "世界", "👍🏽", "<|im_start|>", "é"])
texts = st.lists(pieces | st.text(st.characters(codec="utf-8"), max_size=3), max_size=8).map("".join)


@pytest.fixture(scope="module")
def path(byte_level, tmp_path_factory):
    path = tmp_path_factory.mktemp("hf") / "tokenizer.json"
    byte_level.save(str(path))
    return path


@fixed
@given(text=texts)
def test_tokens_are_those_of_the_package_and_of_the_same_file_as_gguf(path, byte_level_metadata, text):
    ours = load_tokenizer({"headrace.tokenizer.file": str(path)})
    for parse in (False, True):
        reference = Tokenizer.from_file(str(path))
        reference.encode_special_tokens = not parse
        ids = ours.encode(text, parse_special=parse)
        assert ids == reference.encode(text).ids
        assert ids == load_tokenizer(byte_level_metadata).encode(text, parse_special=parse)
        assert ours.decode(ids) == text
        stream = Detokenizer(ours)
        assert "".join(map(stream.push, ids)) + stream.flush() == ours.decode(ids, skip_special=True)


def test_roles_come_from_the_metadata(path):
    ours = load_tokenizer({"headrace.tokenizer.file": path, "tokenizer.ggml.eos_token_id": 0})
    assert (ours.eos_id, ours.end_ids, ours.marks.add_bos) == (0, {0, 2}, False)
    assert ours.is_special(1)


def test_rows_of_the_model_without_a_token_are_empty_ones(path, byte_level):
    metadata = {"general.architecture": "qwen2", "qwen2.vocab_size": 1000, "headrace.tokenizer.file": path}
    ours = load_tokenizer(metadata)
    assert ours.vocab_size == 1000 > byte_level.get_vocab_size()
    assert ours.token_bytes(999) == b""


@pytest.fixture
def spaced(tmp_path):
    """As Llama 2: U+2581 for spaces, bytes for what is unknown, begin of text in front."""
    vocabulary = {"<unk>": 0, "<s>": 1, "</s>": 2, **{f"<0x{value:02X}>": 3 + value for value in range(256)}}
    for piece in ["▁", "h", "e", "l", "o", "he", "ll", "hell", "hello", "▁hello"]:
        vocabulary[piece] = len(vocabulary)
    merges = [("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o"), ("▁", "hello")]
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(parts)
    tokenizer.add_special_tokens(["<unk>", "<s>", AddedToken("</s>", rstrip=True)])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    return tmp_path / "tokenizer.json"


def test_spaces_bytes_and_begin_of_text(spaced):
    ours, reference = load_tokenizer({"headrace.tokenizer.file": spaced}), Tokenizer.from_file(str(spaced))
    assert (ours.bos_id, ours.marks.add_bos, ours.marks.add_eos) == (1, True, False)
    for text in ("hello", "hello hello", "hé\n", "", "  hello"):
        ids = ours.encode(text)
        assert ids == reference.encode(text).ids
        assert ours.decode(ids, skip_special=True) == reference.decode(ids) == text
    assert ours.token_bytes(ours.encode("\n")[-1]) == b"\n"
    assert ours.encode("<s>hello", parse_special=True) == reference.encode("hello").ids


def test_what_the_file_adds_at_the_end_is_added(spaced):
    described = json.loads(spaced.read_text())
    ours = Tokenizer.from_str(json.dumps(described))
    ours.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 2)])
    ours.save(str(spaced))
    tokenizer = load_tokenizer({"headrace.tokenizer.file": spaced, "tokenizer.ggml.eos_token_id": 2})
    assert (tokenizer.marks.add_bos, tokenizer.marks.add_eos) == (False, True)
    assert tokenizer.encode("hello")[-1] == 2


def test_guarded_text_holds_no_mark(spaced):
    ours = load_tokenizer({"headrace.tokenizer.file": spaced})
    guarded = ours.guard("</s>hello", "\ufdd0")
    assert ours.encode_guarded(f"<s>{guarded}</s>", "\ufdd0").count(2) == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\xff\xfe", "not JSON in UTF-8"),
        (b"{", "not JSON in UTF-8"),
        (b"[" * 100_000, "not JSON in UTF-8"),
        (b"[]", "not a tokenizer.json"),
        (b'{"version": "1.0"}', "not a tokenizer.json"),
        (None, "cannot be read: No such file"),
    ],
)
def test_what_is_wrong_with_a_file_is_told(tmp_path, content, message):
    path = tmp_path / "tokenizer.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(LoadFailed, match=f"{path}: .*{message}"):
        load_tokenizer({"headrace.tokenizer.file": path})


def test_a_decoder_that_is_not_known_is_named(tmp_path):
    tokenizer = Tokenizer(models.WordPiece({"[UNK]": 0}, unk_token="[UNK]"))
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(LoadFailed, match=r"its decoder is .*WordPiece.*; expected ByteLevel"):
        load_tokenizer({"headrace.tokenizer.file": tmp_path / "tokenizer.json"})


SLOW = {"type": "Split", "pattern": {"Regex": "(a|a)*$|(a|aa)+$"}, "behavior": "Isolated", "invert": False}


def _changed(path, tmp_path, **parts):
    """The file with some of its parts, or parts of its model, in place of its own."""
    described = json.loads(path.read_text("utf-8"))
    described["model"] |= {key: parts.pop(key) for key in ("vocab", "merges", "unk_token") if key in parts}
    (tmp_path / "tokenizer.json").write_text(json.dumps(described | parts), "utf-8")
    return tmp_path / "tokenizer.json"


@pytest.mark.parametrize(
    "parts",
    [
        {"pre_tokenizer": SLOW},
        {"vocab": {}, "merges": [], "unk_token": "[UNK]"},
    ],
    ids=["a pattern that does not end", "no token for what is unknown"],
)
def test_a_text_on_which_the_package_fails_fails_alone(path, tmp_path, parts):
    ours = load_tokenizer({"headrace.tokenizer.file": _changed(path, tmp_path, **parts)})
    for parse in (False, True):
        with pytest.raises(StageFailed, match="stage 'tokenizer'"):
            ours.encode("a" * 60 + "b", parse_special=parse)
        assert ours.encode("", parse_special=parse) == []


@pytest.mark.parametrize("size", [0, 1000, 1 << 40])
def test_ids_far_beyond_the_tokens_are_refused(path, tmp_path, size):
    vocabulary = json.loads(path.read_text("utf-8"))["model"]["vocab"]
    metadata = {"general.architecture": "qwen2", "qwen2.vocab_size": size}
    if size < 1 << 32:
        path = _changed(path, tmp_path, vocab={**vocabulary, "qq": 4_000_000_000})
    with pytest.raises(
        LoadFailed, match=f"{path}: expected at most .* ids for its .* tokens, got {max(size, 4000000001)}"
    ):
        load_tokenizer({"headrace.tokenizer.file": path, **metadata})


def test_added_tokens_have_the_ids_the_package_gives_them(path, tmp_path):
    added = json.loads(path.read_text("utf-8"))["added_tokens"]
    new = {**added[0], "id": 4_000_000_000, "content": "<new>", "rstrip": True}
    path = _changed(path, tmp_path, added_tokens=[*added, new])
    ours, reference = load_tokenizer({"headrace.tokenizer.file": path}), Tokenizer.from_file(str(path))
    assert ours.vocabulary.names["<new>"] == reference.token_to_id("<new>") == ours.vocab_size - 1
    assert ours.is_special(ours.vocab_size - 1)
