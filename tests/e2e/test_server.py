"""The server as a client sees it: protocol, errors that name their cause, control, readiness, draining."""

import http.client
import json
import signal
import struct
import subprocess
import sys
import threading
import time
import zlib

import numpy as np
import pytest

from headrace.testing.language import save_language_model

X = {"name": "x", "shape": [1, 16], "datatype": "FP32", "data": [0.5] * 16}


def test_infer_answers_with_the_models_numbers(server, repository):
    import onnxruntime

    session = onnxruntime.InferenceSession(str(repository / "mlp/1/model.onnx"))
    x = np.random.default_rng(1).standard_normal((3, 16)).astype(np.float32)
    status, _, answer = server.infer(inputs=[{**X, "shape": [3, 16], "data": x.tolist()}], id="abc")
    assert status == 200
    assert (answer["id"], answer["model_name"], answer["model_version"]) == ("abc", "mlp", "1")
    y = np.array(answer["outputs"][0]["data"], np.float32).reshape(answer["outputs"][0]["shape"])
    np.testing.assert_allclose(y, session.run(None, {"x": x})[0], rtol=1e-5, atol=1e-6)


def test_the_request_id_comes_back(server):
    for path, status in (("/v2/models/mlp", 200), ("/nope", 404)):
        got, headers, answer = server.request("GET", path, headers={"x-request-id": "mine-7"})
        assert (got, headers["x-request-id"]) == (status, "mine-7")
    assert answer["request_id"] == "mine-7"
    assert "x-request-id" not in server.request("GET", "/v2/models/mlp")[1]


def test_large_json_tensors_come_back_number_for_number(server):
    values = np.random.default_rng(3).standard_normal(200_000).astype(np.float32)
    x = {"name": "x", "shape": [2, 100_000], "datatype": "FP32", "data": values.reshape(2, -1).tolist()}
    names = {"name": "names", "shape": [2], "datatype": "BYTES", "data": ["a", "b"]}
    status, _, answer = server.infer("identity", [x, names])
    assert status == 200
    np.testing.assert_array_equal(np.array(answer["outputs"][0]["data"], np.float32), values)
    x["data"][1][7] = "seven"
    status, _, answer = server.infer("identity", [x, names])
    assert (status, "expected a number, got" in answer["error"]) == (400, True)


def test_nan_is_refused_where_it_is_forbidden(server):
    x = np.full((1, 16), 0.5, "<f4")
    x[0, 3] = np.nan
    wish = {"name": "x", "shape": [1, 16], "datatype": "FP32", "parameters": {"binary_data_size": x.nbytes}}
    head = json.dumps({"inputs": [wish]}).encode()
    headers = {"Inference-Header-Content-Length": str(len(head))}
    status, _, answer = server.request("POST", "/v2/models/mlp/infer", head + x.tobytes(), headers)
    assert (status, "nan at [0, 3]; finite numbers expected" in answer["error"]) == (400, True)


def test_binary_tensors_and_strings_both_ways(server):
    x = np.arange(6, dtype="<f4").reshape(2, 3)
    names = [b"\x00a", "ñ".encode()]
    packed = b"".join(struct.pack("<I", len(name)) + name for name in names)
    head = json.dumps(
        {
            "inputs": [
                {"name": "x", "shape": [2, 3], "datatype": "FP32", "parameters": {"binary_data_size": x.nbytes}},
                {
                    "name": "names",
                    "shape": [2],
                    "datatype": "BYTES",
                    "parameters": {"binary_data_size": len(packed)},
                },
            ],
            "outputs": [
                {"name": "y", "parameters": {"binary_data": True}},
                {"name": "same_names", "parameters": {"binary_data": True}},
            ],
        }
    ).encode()
    status, headers, raw = server.request(
        "POST",
        "/v2/models/identity/infer",
        head + x.tobytes() + packed,
        {"Inference-Header-Content-Length": str(len(head))},
    )
    assert status == 200, raw
    length = int(headers["Inference-Header-Content-Length"])
    assert json.loads(raw[:length])["outputs"][0]["parameters"]["binary_data_size"] == 24
    assert raw[length:] == x.tobytes() + packed


@pytest.mark.parametrize(
    ("model", "inputs", "status", "said"),
    [
        ("nope", [X], 404, "no model or pipeline 'nope'; there are: "),
        ("mlp", [], 400, "tensor 'x' is missing"),
        ("mlp", [{**X, "name": "z"}], 400, "expected x FP32[-1, 16], got z"),
        ("mlp", [{**X, "datatype": "FP64"}], 400, "expected FP32, got FP64"),
        ("mlp", [{**X, "shape": [1, 4], "data": [1] * 4}], 400, "axis 1 must be 16, is 4"),
        ("mlp", [{**X, "shape": [-1, 16]}], 400, "negative dimension"),
        ("mlp", [{**X, "shape": [1 << 40, 1 << 40]}], 400, "one above"),
        ("mlp", [{**X, "shape": [0, 16], "data": []}], 400, "expected 1..4096 rows"),
        ("mlp", [{**X, "data": [1e39] * 16}], 400, "in range of the datatype, got '1e+39'"),
        ("corrupt", [X], 503, "corrupt"),
        ("typo", [X], 503, "max_bach"),
        ("shout", [X], 400, "'shout' is a pipeline"),
        ("broken", [{"name": "seconds", "shape": [1], "datatype": "FP32", "data": [1]}], 500, "the model's own fault"),
    ],
)
def test_errors_name_what_where_and_what_was_expected(server, model, inputs, status, said):
    got, _, answer = server.infer(model, inputs)
    assert (got, answer["error"].count(said) > 0) == (status, True), answer
    assert answer["request_id"]


def test_the_log_has_the_cause_of_a_failed_model(server):
    _, _, answer = server.infer("broken", [{"name": "seconds", "shape": [1], "datatype": "FP32", "data": [1]}])
    entries = [json.loads(line) for line in server.log.read_text().splitlines() if line.startswith("{")]
    (cause,) = [entry for entry in entries if entry.get("request_id") == answer["request_id"]]
    assert cause["error"] == "RuntimeError: the model's own fault"


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nope", 404),
        ("PUT", "/healthz", 405),
        ("POST", "/v1/pipelines/nope", 404),
        ("POST", "/v1/pipelines/mlp", 400),
        ("POST", "/v1/pipelines/shout", 400),
        ("GET", "/v2/models/mlp/versions/9", 404),
        ("GET", "/v2/models/nope/ready", 404),
        ("GET", "/v2/models/corrupt/ready", 503),
    ],
)
def test_wrong_paths_get_their_status(server, method, path, status):
    got, headers, answer = server.request(method, path)
    assert got == status
    assert answer["error"]
    assert (status == 405) == ("allow" in headers)


@pytest.mark.parametrize(
    "body", [b"", b"{", b"null", b"[]", b'{"inputs": 3}', b"\xff" * 50, b'{"inputs":' + b"[" * 5000]
)
def test_invalid_json_is_a_400(server, body):
    status, _, answer = server.request("POST", "/v2/models/mlp/infer", body)
    assert status == 400, answer


def test_health_metadata_config_stats_docs(server):
    for path in ("/healthz", "/livez", "/readyz", "/v2/health/live", "/v2/health/ready"):
        assert server.request("GET", path)[0] == 200
    assert server.request("GET", "/v2")[2]["name"] == "headrace"
    metadata = server.request("GET", "/v2/models/mlp")[2]
    assert metadata["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 16]}]
    config = server.request("GET", "/v2/models/mlp/config")[2]
    assert (config["max_batch_size"], config["input"][0]["dims"]) == (8, [16])
    server.infer()
    stats = server.request("GET", "/v2/models/mlp/stats")[2]["model_stats"][0]
    assert stats["inference_stats"]["success"]["count"] >= 1
    assert stats["inference_count"] >= stats["execution_count"] >= 1
    assert {entry["name"] for entry in server.request("GET", "/v2/models/stats")[2]["model_stats"]} >= {"mlp", "slow"}
    assert server.request("GET", "/openapi.json")[2]["openapi"] == "3.1.0"
    assert b"/v2/models/{model}/infer" in server.request("GET", "/docs")[2]


def test_metrics_are_exposed_and_move(server):
    server.infer()
    _, headers, text = server.request("GET", "/metrics")
    assert headers["content-type"].startswith("text/plain")
    for name in ("headrace_model_request_seconds_count", "headrace_http_request_seconds_bucket", "process_resident"):
        assert name in text.decode()


def test_the_index_says_what_failed_and_why(server):
    index = {entry["name"]: entry for entry in server.request("POST", "/v2/repository/index", {})[2]}
    assert index["mlp"]["state"] == "READY"
    assert index["corrupt"]["state"] == "UNAVAILABLE"
    assert "model.onnx" in index["corrupt"]["reason"]
    assert "max_bach" in index["typo"]["reason"]
    ready = server.request("POST", "/v2/repository/index", {"ready": True})[2]
    assert "corrupt" not in {entry["name"] for entry in ready}


def test_text_pipelines_generate(server):
    assert server.request("POST", "/v1/pipelines/shout", "héé".encode())[2] == "HÉÉ"
    assert server.request("POST", "/generate", {"text": "hi", "model": "shout"})[2] == {"model": "shout", "text": "HI"}
    status, _, answer = server.request("POST", "/generate", {"text": "hi"})
    assert (status, "there are: writer, shout" in answer["error"]) == (400, True)
    answer = server.request("POST", "/v2/models/shout/generate", {"text_input": "hi"})[2]
    assert answer == {"model_name": "shout", "text_output": "HI"}
    status, _, answer = server.request("POST", "/v1/pipelines/shout", b"abc\xff")
    assert (status, "0xff at 3" in answer["error"]) == (400, True)
    assert server.request("POST", "/generate", {"text": "hi", "model": "mlp"})[0] == 400
    assert server.request("GET", "/v1/pipelines/shout")[2]["stages"]
    multipart = {"content-type": "multipart/form-data; boundary=x"}
    assert server.request("POST", "/v1/pipelines/shout", b"--x--", multipart)[0] == 415


def test_compressed_requests(server):
    body = json.dumps({"inputs": [X]}).encode()
    deflated = zlib.compress(body)
    assert server.request("POST", "/v2/models/mlp/infer", deflated, {"content-encoding": "deflate"})[0] == 200
    assert server.request("POST", "/v2/models/mlp/infer", deflated[:-5], {"content-encoding": "deflate"})[0] == 400
    assert server.request("POST", "/v2/models/mlp/infer", body, {"content-encoding": "gzip"})[0] == 400
    assert server.request("POST", "/v2/models/mlp/infer", body, {"content-encoding": "br"})[0] == 415
    bomb = zlib.compress(b" " * (70 << 20))
    assert server.request("POST", "/v2/models/mlp/infer", bomb, {"content-encoding": "gzip"})[0] == 413


def test_a_request_that_takes_too_long_is_answered_at_its_deadline(server):
    began = time.monotonic()
    status, _, answer = server.sleep(1.5, {"x-request-timeout-s": "0.1"})
    assert (status, "deadline" in answer["error"]) == (504, True)
    assert time.monotonic() - began < 1.4
    assert server.sleep(1.5, parameters={"timeout": 100_000})[0] == 504
    assert server.infer(headers={"x-request-timeout-s": "-1"})[0] == 400
    assert server.infer(parameters={"timeout": -4})[0] == 400


def test_slow_models_do_not_hold_up_others(server):
    slow = threading.Thread(target=server.sleep, args=(1.0,))
    slow.start()
    began = time.monotonic()
    for _ in range(20):
        assert server.infer()[0] == 200
    assert time.monotonic() - began < 1.0 or not slow.is_alive()
    slow.join()


def test_no_answer_is_mixed_up_under_concurrency(server):
    wrong = []

    def client(number):
        for turn in range(30):
            value = number * 1000 + turn
            x = {"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [value, -value]}
            names = {"name": "names", "shape": [1], "datatype": "BYTES", "data": [str(value)]}
            status, _, answer = server.infer("identity", [x, names])
            got = {output["name"]: output["data"] for output in answer["outputs"]} if status == 200 else answer
            if got != {"y": [value, -value], "same_names": [str(value)]}:
                wrong.append(got)

    threads = [threading.Thread(target=client, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_one_gguf_file_is_served_under_its_own_name(tmp_path, start_at):
    file = save_language_model(tmp_path / "Tiny-Model.gguf")
    server = start_at(file, "--api-key", "sesame")
    key = {"authorization": "Bearer sesame"}
    assert server.request("GET", "/v1/models")[0] == 401
    assert [model["id"] for model in server.request("GET", "/v1/models", headers=key)[2]["data"]] == ["tiny-model"]
    asked = {"model": "tiny-model", "prompt": "Hello", "max_tokens": 5}
    status, _, answer = server.request("POST", "/v1/completions", asked, key)
    assert (status, answer["usage"]["completion_tokens"]) == (200, 5)
    assert server.stop() == 0
    assert file.exists()


def test_a_stream_is_finished_after_sigterm(tmp_path, start_at):
    server = start_at(save_language_model(tmp_path / "tiny.gguf", context=20_000))
    body = json.dumps({"model": "tiny", "prompt": "Hello", "max_tokens": 15_000, "stream": True, "temperature": 0})
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    connection.request("POST", "/v1/completions", body)
    response = connection.getresponse()
    first = response.readline()
    server.process.send_signal(signal.SIGTERM)
    rest = response.read().decode()
    assert first.startswith(b"data: ")
    assert '"finish_reason":"length"' in rest
    assert rest.endswith("data: [DONE]\n\n")
    assert server.process.wait(30) == 0
    assert "drained" in server.log.read_text()
    connection.close()


def test_a_file_that_is_no_model_is_told(tmp_path):
    (tmp_path / "notes.txt").write_text("not a model")
    command = [sys.executable, "-m", "headrace", "serve", str(tmp_path / "notes.txt")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "expected a folder of models, or a GGUF file" in done.stderr
