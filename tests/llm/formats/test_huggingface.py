"""A Hugging Face folder computes what `transformers` computes from it, and says so when it cannot."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from headrace.errors import LoadFailed
from headrace.llm.batches import one_sequence
from headrace.llm.formats import open_checkpoint
from headrace.llm.formats.hf_config import rope_factors, text_config, to_metadata
from headrace.llm.formats.hf_names import gguf_name
from headrace.llm.formats.mapped import MappedFile
from headrace.llm.loader import load_model
from headrace.llm.reference import ReferenceExecutor

ROOT = Path(__file__).resolve().parents[3]
GOLDENS = json.loads((ROOT / "tests/golden/data/huggingface.json").read_text("utf-8"))


def _recipe():
    """The script that wrote the goldens, for its weights and tokens."""
    spec = importlib.util.spec_from_file_location("golden_huggingface", ROOT / "tools/golden_huggingface.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


RECIPE = _recipe()


def _weights(name):
    golden = GOLDENS[name]
    arch = golden["config"]["model_type"]
    return {key: RECIPE.random_weight(key, tuple(shape), arch) for key, shape in golden["shapes"].items()}


def _folder(path, name, weights=None, **changes):
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps(GOLDENS[name]["config"] | changes))
    save_file(_weights(name) if weights is None else weights, path / "model.safetensors")
    return path


def _logits(path, context_length=None):
    checkpoint, _, trace = load_model(path, context_length)
    executor = ReferenceExecutor(trace, checkpoint, n_pages=4)
    rows = np.arange(len(RECIPE.TOKENS), dtype=np.int32)[-RECIPE.LAST :]
    return executor.step(one_sequence(RECIPE.TOKENS, range(4), rows=rows)).logits


@pytest.mark.parametrize("name", GOLDENS)
def test_logits_are_those_of_transformers(tmp_path, name):
    """40 tokens, past every window; longrope takes its short divisors where the whole context is a short one."""
    logits = _logits(_folder(tmp_path, name), 64 if name.endswith("short") else None)
    np.testing.assert_allclose(logits, np.array(GOLDENS[name]["logits"]), rtol=0, atol=2e-5)


OLD = {
    "llama, tied, llama3": {
        "rope_theta": 5e5,
        "rope_scaling": RECIPE.LLAMA3 | {"original_max_position_embeddings": 32},
    },
    "llama, linear": {"rope_theta": 1e4, "rope_scaling": {"type": "linear", "factor": 4.0}},
    "gemma3, linear": {
        "rope_theta": 1e6,
        "rope_local_base_freq": 1e4,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        "sliding_window_pattern": 6,
    },
    "phi3, longrope, long": {"rope_theta": 1e4, "rope_scaling": RECIPE.LONG | {"type": "su"}},
    "qwen2, window": {"rope_theta": 1e4, "rope_scaling": None},
    "gemma2": {"rope_theta": 1e4},
}


@pytest.mark.parametrize("name", OLD)
def test_files_of_before_version_5_mean_the_same(tmp_path, name):
    config = {
        key: GOLDENS[name]["config"][key] for key in GOLDENS[name]["config"].keys() - {"rope_parameters", "layer_types"}
    }
    (tmp_path / "config.json").write_text(json.dumps(config | OLD[name]))
    save_file(_weights(name), tmp_path / "model.safetensors")
    np.testing.assert_allclose(_logits(tmp_path), np.array(GOLDENS[name]["logits"]), rtol=0, atol=2e-5)


def test_a_model_that_can_see_is_read_without_its_eyes(tmp_path):
    golden = GOLDENS["gemma3"]
    weights = {f"language_model.{key}": value for key, value in _weights("gemma3").items()}
    weights["vision_tower.vision_model.embeddings.patch_embedding.weight"] = np.zeros((2, 3, 4, 4), np.float32)
    weights["multi_modal_projector.mm_input_projection_weight"] = np.zeros((2, 3), np.float32)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gemma3", "text_config": golden["config"]}))
    save_file(weights, tmp_path / "model.safetensors")
    np.testing.assert_allclose(_logits(tmp_path), np.array(golden["logits"]), rtol=0, atol=2e-5)


def test_names_of_the_newest_layout():
    name = "model.language_model.layers.3.self_attn.q_proj.weight"
    assert gguf_name(name, "gemma3") == "blk.3.attn_q.weight"
    assert gguf_name("language_model.lm_head.weight", "gemma3") == "output.weight"
    assert gguf_name("model.layers.0.mlp.router.weight", "llama") == "model.layers.0.mlp.router.weight"


def test_an_unknown_tensor_fails_the_load_by_name(tmp_path):
    weights = _weights("llama") | {"model.layers.0.mlp.router.weight": np.zeros((4, 32), np.float32)}
    with pytest.raises(LoadFailed, match=r"model\.layers\.0\.mlp\.router\.weight"):
        load_model(_folder(tmp_path, "llama", weights))


@pytest.mark.parametrize("kind", ["F16", "BF16"])
def test_halves_are_views_and_exact(tmp_path, kind):
    """BF16 has no NumPy type: the file is written by hand."""
    weights = _weights("qwen3")
    if kind == "F16":
        halves = {name: value.astype(np.float16) for name, value in weights.items()}
        exact = {name: value.astype(np.float32) for name, value in halves.items()}
    else:
        halves = {name: (value.view(np.uint32) >> 16).astype(np.uint16) for name, value in weights.items()}
        exact = {name: (value.astype(np.uint32) << 16).view(np.float32) for name, value in halves.items()}
    folder = _folder(tmp_path, "qwen3", halves)
    if kind == "BF16":
        data = (folder / "model.safetensors").read_bytes()
        end = 8 + int.from_bytes(data[:8], "little")
        header = data[8:end].rstrip().replace(b'"U16"', b'"BF16"')
        (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + data[end:])
    model = open_checkpoint(folder)
    tensor = model.tensors["blk.0.attn_q.weight"]
    assert (tensor.type, tensor.shape) == (kind, (64, 32))
    assert not tensor.data.flags.owndata
    assert not tensor.data.flags.writeable
    np.testing.assert_array_equal(
        model.dequantise("blk.0.attn_q.weight"), exact["model.layers.0.self_attn.q_proj.weight"]
    )
    assert model.metadata["headrace.rope.interleaved"] is False


def test_gemma_norms_come_with_their_one(tmp_path):
    model = open_checkpoint(_folder(tmp_path, "gemma3"))
    expected = _weights("gemma3")["model.layers.1.self_attn.q_norm.weight"] + np.float32(1)
    np.testing.assert_array_equal(model.dequantise("blk.1.attn_q_norm.weight"), expected)
    assert model.tensors["blk.1.attn_q_norm.weight"].type == "F32"


def test_a_split_model_is_read_by_its_index(tmp_path):
    weights = _weights("llama")
    folder = _folder(tmp_path, "llama", {})
    (folder / "model.safetensors").unlink()
    names = sorted(weights)
    parts = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
    for file, held in parts.items():
        save_file({name: weights[name] for name in held}, folder / file)
    (folder / "consolidated.safetensors").write_bytes(b"not to be read")
    index = {"weight_map": {name: file for file, held in parts.items() for name in held}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    np.testing.assert_allclose(_logits(folder), np.array(GOLDENS["llama"]["logits"]), rtol=0, atol=2e-5)
    assert open_checkpoint(folder).files == tuple(str(folder / name) for name in ["config.json", *parts])
    assert open_checkpoint(folder / "config.json").tensors.keys() == open_checkpoint(folder).tensors.keys()
    (folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(LoadFailed, match=r"model-00002-of-00002\.safetensors: cannot be read"):
        open_checkpoint(folder)
    for bad in ({}, {"weight_map": []}, {"weight_map": {"a": "../x.safetensors"}}, {"weight_map": {"a": 1}}):
        (folder / "model.safetensors.index.json").write_text(json.dumps(bad))
        with pytest.raises(LoadFailed, match="weight_map: expected"):
            open_checkpoint(folder)


def test_a_tensor_in_two_files_is_refused(tmp_path):
    folder = _folder(tmp_path, "llama")
    (folder / "model.safetensors").rename(folder / "a.safetensors")
    save_file({"model.norm.weight": np.ones(32, np.float32)}, folder / "b.safetensors")
    with pytest.raises(LoadFailed, match=r"b\.safetensors: tensor 'model\.norm\.weight' .* is there twice"):
        open_checkpoint(folder)


def test_tied_models_have_no_head_of_their_own(tmp_path):
    tied = _weights("llama, tied, llama3")
    tied["lm_head.weight"] = np.zeros((96, 32), np.float32)
    assert "output.weight" not in open_checkpoint(_folder(tmp_path, "llama, tied, llama3", tied)).tensors
    untied = _weights("llama")
    del untied["lm_head.weight"]
    with pytest.raises(LoadFailed, match=r"has no lm_head\.weight"):
        open_checkpoint(_folder(tmp_path, "llama", untied))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, "has no lm_head"),
        ({"tie_word_embeddings": True, "rope_parameters": {"rope_type": "longrope", "rope_theta": 1e4}}, "long_factor"),
    ],
)
def test_a_folder_that_is_refused_is_let_go(tmp_path, monkeypatch, changes, message):
    weights = _weights("llama")
    del weights["lm_head.weight"]
    closed = []
    monkeypatch.setattr(MappedFile, "close", lambda file: closed.append(Path(file.path).name))
    with pytest.raises(LoadFailed, match=message):
        open_checkpoint(_folder(tmp_path, "llama", weights, **changes))
    assert closed[-1] == "model.safetensors"


def test_tokens_templates_and_the_tokenizer_are_found(tmp_path):
    folder = _folder(tmp_path, "llama")
    assert open_checkpoint(folder).metadata["tokenizer.ggml.eos_token_id"] == 2
    assert "headrace.tokenizer.file" not in open_checkpoint(folder).metadata
    (folder / "tokenizer.json").write_text("{}")
    (folder / "generation_config.json").write_text('{"eos_token_id": [5, 6, 7, 8], "bos_token_id": null}')
    template = [{"name": "tool_use", "template": "no"}, {"name": "default", "template": "{{ messages }}"}]
    (folder / "tokenizer_config.json").write_text(json.dumps({"add_bos_token": True, "chat_template": template}))
    found = open_checkpoint(folder).metadata
    assert found["headrace.tokenizer.file"] == str(folder / "tokenizer.json")
    expected = {"bos_token_id": 1, "eos_token_id": 5, "eot_token_id": 6, "eom_token_id": 7, "padding_token_id": 0}
    assert {key: found[f"tokenizer.ggml.{key}"] for key in expected} == expected
    assert found["tokenizer.ggml.add_bos_token"] is True
    assert found["tokenizer.chat_template"] == "{{ messages }}"
    (folder / "chat_template.jinja").write_text("newer")
    assert open_checkpoint(folder).metadata["tokenizer.chat_template"] == "newer"
    (folder / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(LoadFailed, match=r"chat_template\.jinja: cannot be read"):
        open_checkpoint(folder)


REFUSED = {
    "model_type": ("mixtral", "model_type: expected one of llama, mistral, .* got 'mixtral'"),
    "quantization_config": ({"quant_method": "gptq"}, "quantization_config: models that set it are not supported"),
    "hidden_act": ("relu", "activation: expected silu for llama, got 'relu'"),
    "rope_parameters": ({"rope_type": "dynamic", "factor": 2.0}, "got 'dynamic'"),
    "rope_scaling": ("linear", "rope_scaling: expected an object, got linear"),
    "partial_rotary_factor": (-1, "partial_rotary_factor: expected a positive number, got -1"),
}


@pytest.mark.parametrize("key", REFUSED)
def test_settings_that_cannot_be_kept_are_refused(tmp_path, key):
    value, message = REFUSED[key]
    with pytest.raises(LoadFailed, match=rf"config\.json: .*{message}|config\.json: {message}"):
        open_checkpoint(_folder(tmp_path, "llama", **{key: value}))


@pytest.mark.parametrize("text", ["", "[]", "{", '"x"', "[" * 100_000, "nul", "\udcff"])
def test_a_config_that_is_no_object_is_refused(tmp_path, text):
    (tmp_path / "config.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(LoadFailed, match=r"config\.json: (is empty|is not JSON|expected a JSON object)"):
        open_checkpoint(tmp_path)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_any_config_is_read_or_refused(data):
    name = data.draw(st.sampled_from(sorted(GOLDENS)))
    config = json.loads(json.dumps(GOLDENS[name]["config"]))
    keys = st.sampled_from([*config, "rope_scaling", "text_config", "rope_theta", "num_experts", "layer_types"])
    config.update(data.draw(st.dictionaries(keys, JSON, min_size=1, max_size=3)))
    inner = config.get("rope_parameters")
    if isinstance(inner, dict) and inner:
        inner.update(
            data.draw(st.dictionaries(st.sampled_from([*inner, "type", "factor", "mscale"]), JSON, max_size=2))
        )
    try:
        text = text_config(config, "config.json")
        metadata = to_metadata(text, "config.json")
        rope_factors(text, "config.json")
    except LoadFailed as error:
        assert str(error).startswith("config.json: ")  # noqa: PT017 - either way is right
    else:
        assert metadata["general.architecture"] in {"llama", "qwen2", "qwen3", "gemma2", "gemma3", "phi3"}
