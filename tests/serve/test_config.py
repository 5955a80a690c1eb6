import pytest

from headrace.errors import ConfigError
from headrace.serve.config import load_config

GOOD = """
backend = "onnx"
file = "model.onnx"
[batching]
max_batch = 16
window_ms = 0
[runtime]
threads = 2
"""


@pytest.fixture
def load(tmp_path):
    def parse(text):
        path = tmp_path / "headrace.toml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return load_config(path)

    return parse


def test_reads_a_model(load):
    config = load(GOOD)
    assert (config.backend, config.batching.max_batch, config.runtime.threads) == ("onnx", 16, 2)
    assert config.batching.enabled


def test_reads_a_pipeline(load):
    config = load('[[stage]]\nop = "infer"\nafter = []\ntimeout_s = 2\nwith = { model = "m" }\n')
    assert config.stage[0].options == {"model": "m"}
    assert config.stage[0].after == []


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "declare either `backend` (a model) or `[[stage]]` (a pipeline)"),
        ('backend = "onnx"\n[[stage]]\nop = "infer"\n', "declare either"),
        ('backend = "onnx"\nbatchign = 1\n', "`batchign`; did you mean `batching`?"),
        ('backend = "onnx"\n[batching]\nmax_bach = 1\n', "- at `$.batching`; did you mean `max_batch`?"),
        ('backend = "pyton"\n', "'pyton' - at `$.backend`; expected 'llm' or 'onnx' or 'python'"),
        ('[[stage]]\nop = "a"\n[[stages]]\nop = "b"\n', "`stages`; did you mean `stage`?"),
        ('backend = "onnx"\n[batching]\nmax_batch = 0\n', "`$.batching.max_batch`"),
        ('backend = "onnx"\n[batching]\nmax_batch = "8"\n', "`$.batching.max_batch`"),
        ('backend = "onnx"\n[runtime]\nexecution = "gpu"\n', "`$.runtime.execution`; expected 'auto' or 'inline'"),
        ('backend = "onnx"\ntimeout_s = 0\n', "`$.timeout_s`"),
        ('[[stage]]\nop = "infer"\nwit = {}\n', "`wit` - at `$.stage[0]`; did you mean `with`?"),
        ('[[stage]]\nname = "x"\n', "`op`"),
        ("backend = onnx", "line 1, column"),
        (b"backend = '\xff'", "utf-8"),
    ],
)
def test_a_bad_value_names_the_file_and_the_key(load, text, says):
    with pytest.raises(ConfigError, match=r"headrace\.toml: ") as caught:
        load(text)
    assert says in str(caught.value)


def test_an_unknown_key_unlike_any_other_lists_nothing(load):
    with pytest.raises(ConfigError, match=r"headrace\.toml: Object contains unknown field `zzz`$"):
        load('backend = "onnx"\nzzz = 1\n')


def test_an_absent_file_is_told(tmp_path):
    with pytest.raises(ConfigError, match=r"no headrace\.toml"):
        load_config(tmp_path / "headrace.toml")
