"""A server's life: reload under load, control, draining, limits on how much it takes at once."""

import http.client
import json
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest


def test_models_load_reload_and_unload_while_serving(start):
    server = start()
    failures = []
    stop = threading.Event()

    def client():
        while not stop.is_set():
            status, _, answer = server.infer()
            if status != 200:
                failures.append(answer)

    thread = threading.Thread(target=client)
    thread.start()
    for _ in range(5):
        assert server.request("POST", "/v2/repository/models/mlp/load", {})[0] == 200
    stop.set()
    thread.join()
    assert not failures
    assert server.request("POST", "/v2/repository/models/mlp/unload", {})[0] == 200
    assert server.infer()[0] == 404
    assert server.request("POST", "/v2/repository/models/nope/load", {})[0] == 404
    assert server.request("POST", "/v2/repository/models/corrupt/load", {})[0] == 500
    assert server.request("POST", "/v2/repository/models/mlp/load", {})[0] == 200
    assert server.infer()[0] == 200
    assert server.stop() == 0


def test_control_is_not_for_web_pages(server):
    path = "/v2/repository/models/mlp/load"
    assert server.request("POST", path, {}, {"origin": "http://evil.example"})[0] == 403
    assert server.request("POST", path, {}, {"host": "rebound.example:8000"})[0] == 403


def test_control_with_a_token(start):
    server = start("--token", "s3cret")
    path = "/v2/repository/models/mlp/load"
    status, headers, _ = server.request("POST", path, {})
    assert (status, headers["www-authenticate"]) == (401, "Bearer")
    assert server.request("POST", path, {}, {"authorization": "Bearer wrong"})[0] == 401
    assert server.request("POST", path, {}, {"authorization": "Bearer s3cret"})[0] == 200


def test_control_off_loopback_needs_a_token(start):
    server = start("--host", "0.0.0.0")
    assert server.request("POST", "/v2/repository/models/mlp/load", {})[0] == 403
    assert server.infer()[0] == 200


def test_sigterm_finishes_open_requests_and_refuses_new_ones(start):
    server = start()
    answers = []
    thread = threading.Thread(target=lambda: answers.append(server.sleep(1.0)[0]))
    thread.start()
    time.sleep(0.3)
    server.process.send_signal(signal.SIGTERM)
    time.sleep(0.2)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", server.port), timeout=2)
    thread.join()
    assert answers == [200]
    assert server.process.wait(20) == 0
    assert "drained" in server.log.read_text()


def test_a_second_signal_does_not_wait(start):
    server = start()

    def abandoned():
        with pytest.raises((OSError, http.client.HTTPException)):
            server.sleep(5.0)

    thread = threading.Thread(target=abandoned)
    thread.start()
    time.sleep(0.3)
    server.process.send_signal(signal.SIGINT)
    time.sleep(0.2)
    server.process.send_signal(signal.SIGINT)
    began = time.monotonic()
    server.process.wait(20)
    assert time.monotonic() - began < 15
    thread.join()


def test_a_taken_port_is_a_clear_error(server, repository, tmp_path):
    command = [sys.executable, "-m", "headrace", "serve", str(repository), "--port", str(server.port)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert f"cannot listen on 127.0.0.1:{server.port}" in done.stderr


def test_too_many_at_once_are_told_when_to_come_back(start):
    server = start("--max-concurrency", "1")
    thread = threading.Thread(target=server.sleep, args=(1.0,))
    thread.start()
    time.sleep(0.3)
    status, headers, _ = server.infer()
    assert (status, headers["retry-after"]) == (429, "1")
    thread.join()
    assert server.infer()[0] == 200


def test_a_client_that_leaves_frees_its_place(start):
    server = start("--max-concurrency", "1")
    body = json.dumps({"inputs": [{"name": "seconds", "shape": [1], "datatype": "FP32", "data": [0.3]}]}).encode()
    with socket.create_connection(("127.0.0.1", server.port)) as raw:
        raw.sendall(b"POST /v2/models/slow/infer HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
        time.sleep(0.1)
    for _ in range(100):
        if server.infer()[0] == 200:
            break
        time.sleep(0.02)
    else:
        raise AssertionError("its place was never freed")


def test_a_model_that_never_returns_does_not_keep_the_process(start):
    server = start("--drain-timeout", "0.5")
    assert server.sleep(3600, {"x-request-timeout-s": "0.2"})[0] == 504
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(20) == 1
