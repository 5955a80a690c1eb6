"""The small parts: one file as a repository, the `[llm]` table, the contract of backends."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.apps.serve_llm.backend import LlmBackend, LlmPlugin
from headrace.apps.serve_llm.bare import bare_model, bare_repository
from headrace.apps.serve_llm.config import llm_config
from headrace.core.context import Context
from headrace.errors import ConfigError, InvalidInput, LoadFailed, NotFound
from headrace.llm.params import SamplingParams
from headrace.serve.config import ModelConfig, load_config
from headrace.serve.protocol import ConcurrentBackend
from headrace.store.config import language_model
from headrace.testing.language import save_language_model


@pytest.mark.parametrize(
    ("name", "model"),
    [("SmolLM2-135M-Instruct.Q4_1.gguf", "smollm2-135m-instruct.q4_1"), ("model.gguf", "folder"), ("a b.gguf", "a-b")],
)
def test_a_bare_file_is_a_repository_of_one_model(tmp_path, name, model):
    file = tmp_path / "folder" / name
    file.parent.mkdir()
    file.write_bytes(b"GGUF")
    with bare_repository(file) as root:
        assert [path.name for path in root.iterdir()] == [model]
        assert load_config(root / model / "headrace.toml").backend == "llm"
        assert (root / model / "1" / name).read_bytes() == b"GGUF"
    assert not root.exists()
    assert file.exists()


def test_the_parts_of_a_split_file_come_along(tmp_path):
    for number in (1, 2, 3):
        (tmp_path / f"big[1]-{number:05d}-of-00003.gguf").write_bytes(b"GGUF")
    (tmp_path / "other-00001-of-00002.gguf").write_bytes(b"GGUF")
    with bare_repository(tmp_path / "big[1]-00001-of-00003.gguf") as root:
        assert len(list((root / "big-1" / "1").iterdir())) == 3


def test_a_folder_that_is_one_model_is_told_from_a_repository(tmp_path):
    folder = tmp_path / "Qwen2.5-0.5B"
    folder.mkdir()
    assert bare_model(folder) is None
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"")
    with bare_repository(bare_model(folder)) as root:
        (name,) = [path.name for path in root.iterdir()]
        assert name == "qwen2.5-0.5b"
        assert language_model([path.name for path in (root / name / "1").iterdir()]) == "."
    (tmp_path / "loose.gguf").write_bytes(b"GGUF")
    assert bare_model(tmp_path) == tmp_path / "loose.gguf"
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "headrace.toml").write_text('backend = "llm"\n')
    assert bare_model(tmp_path) is None
    with pytest.raises(NotFound, match=r"nope\.gguf: no such file or folder"):
        bare_model(tmp_path / "nope.gguf")


def test_another_file_is_no_repository(tmp_path):
    (tmp_path / "model.onnx").write_bytes(b"")
    with (
        pytest.raises(InvalidInput, match=r"expected a folder of models, or a GGUF file"),
        bare_repository(tmp_path / "model.onnx"),
    ):
        pass


def test_the_table_is_checked():
    table = {"threads": 2, "kv_type": "int8", "sampling": {"temperature": 0.5, "stop": ["a"], "logit_bias": {"5": 1}}}
    config = llm_config(table)
    assert config.engine_options() == {"threads": 2, "kv_type": "int8"}
    assert config.sampling == SamplingParams(temperature=0.5, stop=("a",), logit_bias={5: 1.0})
    assert llm_config({}).engine_options() == {}


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ({"thread": 2}, "did you mean `threads`"),
        ({"threads": 0}, "`llm.threads`"),
        ({"kv_type": "f8"}, "`llm.kv_type`; expected 'f16' or 'int8'"),
        ({"sampling": {"temperature": -1}}, "llm.sampling.temperature: expected a number from 0"),
        ({"sampling": {"heat": 1}}, "`llm.sampling`"),
    ],
)
def test_a_wrong_table_is_told_with_its_key(table, says):
    with pytest.raises(ConfigError) as caught:
        llm_config(table)
    assert says in str(caught.value)


@pytest.fixture
def folder(tmp_path):
    save_language_model(tmp_path / "m" / "1" / "tiny.gguf")
    return tmp_path / "m" / "1"


def build(folder, **fields):
    return LlmPlugin()(ModelConfig(backend="llm", llm={"threads": 1}, **fields), folder)


def test_the_backend_keeps_its_contract(folder):
    backend = build(folder)
    assert isinstance(backend, ConcurrentBackend)
    with pytest.raises(LoadFailed, match="'m' is not loaded"):
        _ = backend.engine
    backend.load()
    backend.warm()
    texts = np.array(["Hello", b"the world"], object)
    whole = backend.infer({"text_input": texts})["text_output"]
    assert whole.shape == (2,)
    assert all(isinstance(text, bytes) and len(text) > 100 for text in whole)
    for wrong in (np.array([1], object), np.array([b"\xff"], object)):
        with pytest.raises(InvalidInput, match="text_input"):
            backend.infer({"text_input": wrong})
    backend.drain()
    backend.free()
    backend.free()


async def test_the_answers_of_a_concurrent_backend_are_those_of_infer(folder):
    backend = build(folder)
    backend.load()
    texts = np.array([["Hello"], ["the world"]], object)
    answer = await backend.answer({"text_input": texts}, Context(timeout_s=20))
    assert answer["text_output"].tolist() == backend.infer({"text_input": texts})["text_output"].tolist()
    await backend.settle()
    backend.drain()
    backend.free()


def test_the_file_is_found_or_named(folder, tmp_path):
    assert isinstance(build(folder, file="tiny.gguf"), LlmBackend)
    with pytest.raises(ConfigError, match="must lie inside"):
        build(folder, file="../tiny.gguf")
    (folder / "second.gguf").write_bytes(b"GGUF")
    with pytest.raises(ConfigError, match=r"name the model in `file`.*found second\.gguf, tiny\.gguf"):
        build(folder)
    missing = build(folder, file="third.gguf")
    with pytest.raises(LoadFailed, match=r"third\.gguf"):
        missing.load()


def test_a_template_of_one_s_own_takes_the_place_of_the_file_s(folder):
    config = ModelConfig(backend="llm", llm={"threads": 1, "chat_template": "{{ messages[0].content }}!"})
    backend = LlmPlugin()(config, folder)
    backend.load()
    engine = backend.engine
    assert engine.chat.render([{"role": "user", "content": "Hello"}]) == "Hello!"
    backend.drain()
    backend.free()
