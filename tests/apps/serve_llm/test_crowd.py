"""Many clients of every kind at once over few pages: each finished answer is the one it would have got alone."""

from __future__ import annotations

import http.client
import json
import random
from concurrent.futures import ThreadPoolExecutor

import pytest

N_PROMPTS = 12


@pytest.mark.parametrize("kv_bytes", [None, 18 * 4096])
def test_a_crowd_gets_the_answers_it_would_get_alone(start, until, kv_bytes):
    table = "max_batch = 6\nmax_queue = 200\nstep_tokens = 32\n"
    server = start(table + (f"kv_bytes = {kv_bytes}\n" if kv_bytes else ""))
    bodies = [
        {
            "model": "tiny",
            "prompt": ("the world " * (i % 5) + f"Hello {i}") * (1 + i % 3),
            "max_tokens": 10 + 13 * (i % 4),
            "temperature": 0.9 if i % 2 else 0,
            "seed": i,
            "n": 1 + i % 2,
        }
        for i in range(N_PROMPTS)
    ]
    alone = [_whole(server, body) for body in bodies]

    def client(seed):
        chance = random.Random(seed)
        for _ in range(8):
            number = chance.randrange(N_PROMPTS)
            how = chance.choice(["whole", "stream", "leave", "late"])
            if how == "whole":
                assert _whole(server, bodies[number]) == alone[number]
            elif how == "stream":
                assert _streamed(server, bodies[number]) == alone[number]
            else:
                _leave(server, {**bodies[number], "stream": how == "leave"}, chance.random() * 0.05)

    with ThreadPoolExecutor(12) as pool:
        list(pool.map(client, range(12)))
    until(server.idle)
    server.engine._kv.check_integrity()
    assert [_whole(server, body) for body in bodies] == alone


def _whole(server, body):
    status, answer = server.post("/v1/completions", body)
    assert status == 200, answer
    return [(choice["text"], choice["finish_reason"]) for choice in answer["choices"]]


def _streamed(server, body):
    status, _, raw = server.request("POST", "/v1/completions", {**body, "stream": True})
    assert status == 200, raw
    *parts, done = raw.decode().strip().split("\n\n")
    assert done == "data: [DONE]"
    texts, reasons = [""] * body["n"], [""] * body["n"]
    for part in parts:
        (choice,) = json.loads(part.removeprefix("data: "))["choices"]
        texts[choice["index"]] += choice["text"]
        reasons[choice["index"]] = choice["finish_reason"]
    return list(zip(texts, reasons, strict=True))


def _leave(server, body, after_s):
    connection = http.client.HTTPConnection("127.0.0.1", server.server.port, timeout=after_s + 0.001)
    connection.request("POST", "/v1/completions", json.dumps(body))
    try:
        connection.getresponse().read(10)
    except (TimeoutError, http.client.HTTPException):
        pass
    finally:
        connection.close()
