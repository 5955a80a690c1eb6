"""Clients of the field, unmodified, against the running server."""

import subprocess
import sys

import numpy as np
import pytest


@pytest.fixture
def triton(server):
    pytest.importorskip("tritonclient.http")
    import tritonclient.http as triton_http

    client = triton_http.InferenceServerClient(f"127.0.0.1:{server.port}")
    yield triton_http, client
    client.close()


def test_tritonclient_asks_about_server_and_models(triton):
    _, client = triton
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("mlp")
    assert not client.is_model_ready("corrupt")
    assert client.get_server_metadata()["name"] == "headrace"
    assert client.get_model_metadata("mlp")["platform"] == "onnx"
    assert client.get_model_config("mlp")["max_batch_size"] == 8
    assert client.get_inference_statistics("mlp")["model_stats"][0]["name"] == "mlp"
    assert {entry["name"] for entry in client.get_model_repository_index()} >= {"mlp", "identity"}


@pytest.mark.parametrize("binary_in", [True, False])
@pytest.mark.parametrize("binary_out", [True, False])
@pytest.mark.parametrize("compression", [None, "gzip", "deflate"])
def test_tritonclient_infers_in_every_form(triton, binary_in, binary_out, compression):
    module, client = triton
    x = np.random.default_rng(0).standard_normal((3, 5)).astype(np.float32)
    names = np.array([b"a", "ß".encode(), b""], object)
    inputs = [module.InferInput("x", x.shape, "FP32"), module.InferInput("names", names.shape, "BYTES")]
    inputs[0].set_data_from_numpy(x, binary_data=binary_in)
    inputs[1].set_data_from_numpy(names, binary_data=binary_in)
    outputs = [module.InferRequestedOutput(name, binary_data=binary_out) for name in ("y", "same_names")]
    answer = client.infer(
        "identity", inputs, outputs=outputs, request_id="r1", request_compression_algorithm=compression
    )
    np.testing.assert_array_equal(answer.as_numpy("y"), x)
    got = [item if isinstance(item, bytes) else item.encode() for item in answer.as_numpy("same_names")]
    assert got == names.tolist()
    assert answer.get_response()["id"] == "r1"


def test_tritonclient_shows_our_error(triton):
    module, client = triton
    wrong = module.InferInput("z", [1, 16], "FP32")
    wrong.set_data_from_numpy(np.zeros((1, 16), np.float32))
    with pytest.raises(module.InferenceServerException, match="tensor 'x' is missing"):
        client.infer("mlp", [wrong])


def test_tritonclient_loads_and_unloads(start):
    import tritonclient.http as triton_http

    server = start()
    client = triton_http.InferenceServerClient(f"127.0.0.1:{server.port}")
    client.unload_model("mlp")
    assert not client.is_model_ready("mlp")
    client.load_model("mlp")
    assert client.is_model_ready("mlp")
    client.close()


def test_schemathesis_finds_no_server_error(start):
    """The whole surface under generated requests, valid and not: no 5xx, and only documented statuses."""
    server = start("--token", "t", without=("broken", "corrupt", "typo"))
    command = [
        sys.executable, "-m", "schemathesis.cli", "run", f"http://127.0.0.1:{server.port}/openapi.json",
        "--checks", "not_a_server_error,status_code_conformance,response_schema_conformance",
        "--phases", "examples,coverage,fuzzing", "--max-examples", "25", "--seed", "1", "--request-timeout", "20",
        "--header", "Authorization: Bearer t", "--exclude-path-regex", ".*/unload", "--no-color",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False, cwd=server.repo.parent)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert server.request("GET", "/healthz")[0] == 200
