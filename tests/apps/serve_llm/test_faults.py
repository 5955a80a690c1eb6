"""What rude, slow, many and leaving clients get, and that nobody's pages are lost by it."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8, "temperature": 0}
LONG = {"model": "tiny", "prompt": "Hello", "max_tokens": 3900, "temperature": 0, "ignore_eos": True}


def _post(body):
    data = json.dumps(body).encode()
    return b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(data) + data


def _open(server, body):
    """A socket that has asked for a stream and read its first event."""
    plug = socket.create_connection(("127.0.0.1", server.server.port), timeout=30)
    plug.sendall(_post({**body, "stream": True}))
    got = b""
    while b"data: " not in got:
        piece = plug.recv(65536)
        assert piece, got
        got += piece
        assert got.startswith(b"HTTP/1.1 200 OK\r\n"[: len(got)]), got
    assert b"content-type: text/event-stream; charset=utf-8\r\n" in got
    return plug


def test_a_client_that_leaves_frees_its_pages(start, until):
    server = start(context=4096)
    plugs = [_open(server, LONG) for _ in range(3)]
    assert server.gauge("headrace_llm_kv_held_pages") > 0
    for plug in plugs:
        plug.close()
    until(server.idle)
    assert server.gauge("headrace_llm_generated_tokens_total") < 3 * LONG["max_tokens"]
    server.engine._kv.check_integrity()


def test_a_client_that_leaves_before_the_whole_answer_frees_its_pages_too(start, until):
    server = start(context=4096)
    connection = http.client.HTTPConnection("127.0.0.1", server.server.port)
    connection.request("POST", "/v1/completions", json.dumps(LONG))
    until(lambda: server.gauge("headrace_llm_generated_tokens_total") > 0)
    connection.close()
    until(server.idle)
    assert server.gauge("headrace_llm_generated_tokens_total") < LONG["max_tokens"]


def test_a_client_that_does_not_read_holds_no_pages_and_the_others_go_on(start, until):
    server = start(context=4096)
    slow = socket.socket()
    slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    slow.connect(("127.0.0.1", server.server.port))
    slow.sendall(_post({**LONG, "stream": True, "logprobs": 20}))
    until(lambda: server.gauge("headrace_llm_generated_tokens_total") >= LONG["max_tokens"])
    assert server.post("/v1/chat/completions", CHAT)[0] == 200
    until(server.idle)
    unsent = max(one._transport.get_write_buffer_size() for one in server.server.connections)
    assert unsent < 4 << 20
    slow.settimeout(30)
    got = b""
    while not got.endswith(b"0\r\n\r\n"):
        piece = slow.recv(1 << 20)
        assert piece
        got += piece
    assert got.count(b'"finish_reason":"length"') == 1
    slow.close()


def test_more_than_may_wait_are_told_to_come_again(start):
    server = start("max_batch = 1\nmax_queue = 2\n", context=4096)
    plugs = [_open(server, LONG)]
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: server.request("POST", "/v1/chat/completions", CHAT), range(8)))
        refused = [(headers, body) for status, headers, body in answers if status == 429]
    assert 0 < len(refused) <= 6
    headers, body = refused[0]
    assert int(headers["retry-after"]) >= 1
    assert (body["error"]["type"], body["error"]["code"]) == ("rate_limit_error", "rate_limit_exceeded")
    for plug in plugs:
        plug.close()


def test_the_client_of_openai_waits_and_comes_again(start, until):
    server = start("max_batch = 1\nmax_queue = 1\n", context=4096)
    plug = _open(server, LONG)
    waiting = socket.create_connection(("127.0.0.1", server.server.port))
    waiting.sendall(_post({**LONG, "stream": True}))
    until(lambda: server.gauge("headrace_llm_waiting_answers") == 1)
    with server.client() as impatient, pytest.raises(openai.RateLimitError):
        impatient.chat.completions.create(**CHAT)
    plug.close()
    waiting.close()
    with server.client(max_retries=5) as patient:
        assert patient.chat.completions.create(**CHAT).choices[0].finish_reason == "length"


@pytest.mark.parametrize("stream", [False, True])
def test_a_deadline_ends_the_work(start, until, stream):
    server = start(context=4096)
    began_s = time.monotonic()
    data = json.dumps({**LONG, "stream": stream, "n": 8})
    connection = http.client.HTTPConnection("127.0.0.1", server.server.port, timeout=30)
    connection.request("POST", "/v1/completions", data, {"x-request-timeout-s": "0.3"})
    response = connection.getresponse()
    raw = response.read()
    assert time.monotonic() - began_s < 20
    if stream:
        assert response.status == 200
        last = json.loads(raw.decode().strip().rpartition("data: ")[2])
        assert last["error"]["code"] == "timeout"
    else:
        assert response.status == 504
        assert json.loads(raw)["error"]["code"] == "timeout"
    connection.close()
    until(server.idle)


def test_an_error_in_mid_stream_is_the_client_s_api_error(start):
    server = start(context=4096)
    with server.client(default_headers={"x-request-timeout-s": "0.3"}) as client:
        stream = client.completions.create(
            model="tiny", prompt="Hello", max_tokens=3900, n=8, stream=True, extra_body={"ignore_eos": True}
        )
        with pytest.raises(openai.APIError, match="deadline exceeded"):
            for _ in stream:
                pass


def test_a_stream_under_way_is_finished_when_the_server_drains(start):
    server = start(context=4096)
    with server.client() as client:
        stream = client.completions.create(
            model="tiny", prompt="Hello", max_tokens=3000, temperature=0, stream=True, extra_body={"ignore_eos": True}
        )
        first = next(iter(stream))
        stopping = server.begin(server.server.stop())
        chunks = [first, *stream]
    assert chunks[-1].choices[0].finish_reason == "length"
    stopping.result(30)
    with pytest.raises(OSError, match="refused"):
        server.post("/v1/chat/completions", CHAT)


def test_what_outlasts_the_draining_is_cut_and_cancelled(start):
    server = start("max_batch = 8\n", context=4096, drain_timeout_s=0.3)
    plug = _open(server, {**LONG, "n": 8})
    engine = server.engine
    server.run(server.server.stop())
    got = b""
    while part := plug.recv(1 << 20):
        got += part
    plug.close()
    assert b"the server is shutting down" in got.rsplit(b"data: ", 1)[-1], "a cut answer must not look complete"
    assert b'finish_reason":"' not in got
    with pytest.raises(openai.APIConnectionError), server.client() as client:
        client.models.list()
    engine.close()


def test_a_reload_lets_running_streams_finish_on_the_old_engine(start, until):
    server = start(context=4096)
    old = server.engine
    with server.client() as client:
        stream = client.completions.create(
            model="tiny", prompt="Hello", max_tokens=3000, temperature=0, stream=True, extra_body={"ignore_eos": True}
        )
        texts = [next(iter(stream)).choices[0].text]
        assert server.post("/v2/repository/models/tiny/load", {})[0] == 200
        assert server.engine is not old
        new = client.completions.create(model="tiny", prompt="Hello", max_tokens=3000, temperature=0,
                                        extra_body={"ignore_eos": True})  # fmt: skip
        texts += [chunk.choices[0].text for chunk in stream]
    assert "".join(texts) == new.choices[0].text
    until(lambda: _is_closed(old))


def _is_closed(engine):
    try:
        engine.generate("Hello").cancel()
    except openai.OpenAIError:
        raise
    except Exception:
        return True
    return False


def test_an_unloaded_model_is_not_found_and_comes_back(start):
    server = start()
    assert server.post("/v2/repository/models/tiny/unload", {})[0] == 200
    status, answer = server.post("/v1/chat/completions", CHAT)
    assert (status, answer["error"]["code"], answer["error"]["param"]) == (404, "model_not_found", "model")
    assert server.request("GET", "/v1/models")[2]["data"] == []
    assert server.post("/v2/repository/models/tiny/load", {})[0] == 200
    assert server.post("/v1/chat/completions", CHAT)[0] == 200


def test_requests_during_reloads_are_all_answered(start):
    server = start()
    stop, statuses = threading.Event(), []

    def ask():
        while not stop.is_set():
            statuses.append(server.post("/v1/chat/completions", CHAT)[0])

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(5):
        assert server.post("/v2/repository/models/tiny/load", {})[0] == 200
    stop.set()
    for thread in threads:
        thread.join(30)
    assert set(statuses) == {200}


def test_a_model_that_cannot_load_is_told_with_its_reason(tmp_path, start):
    server = start()
    (server.root / "tiny" / "headrace.toml").write_text('backend = "llm"\n[llm]\nthraeds = 2\n')
    status, answer = server.post("/v2/repository/models/tiny/load", {})
    assert status == 500
    assert "headrace.toml" in answer["error"]
    assert "`thraeds`" in answer["error"]
    assert "did you mean `threads`" in answer["error"]
    assert server.post("/v1/chat/completions", CHAT)[0] == 200, "the old one stays"
    gguf = server.root / "tiny" / "1" / "tiny.gguf"
    (server.root / "tiny" / "headrace.toml").write_text('backend = "llm"\n')
    gguf.write_bytes(gguf.read_bytes()[:2000])
    status, answer = server.post("/v2/repository/models/tiny/load", {})
    assert status == 500
    assert "tiny.gguf" in answer["error"]
