"""The kinds of request in the soak test: each sends one, judges the answer and returns what to count it under.

Every good request carries a number nobody else carries at that time; the model answers 2 x + 1 for each element, so an
answer that belongs to another request, or to another row of a batch, is seen at once.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from soak_client import Answer, Connection, Dropped, post

__all__ = ["COLUMNS", "KINDS", "Client", "Violation"]

COLUMNS = 16
INFER = "/v2/models/affine/infer"
PIPELINE = "/v1/pipelines/affine-pipeline"
HUGE_ROWS = 262_144
"""16 MiB of float32."""
OVER_LIMIT = 80 * 1024 * 1024
"""More than the 64 MiB a body may have by default."""


class Violation(Exception):
    """The server did something it must not do."""


class Client:
    """State of one of the concurrent clients: its connection, its random numbers, its own range of unique values."""

    def __init__(self, port: int, number: int, seed: int) -> None:
        self.connection = Connection(port)
        self.rng = random.Random(f"{seed}/{number}")
        # float32 holds whole numbers exactly to 2**24 and the answer is 2 x + 1: stay below 2**23, 2**18 a client
        base = (number % 31) << 18
        self._unique = (base + k % (1 << 18) for k in itertools.count(1))

    def rows(self, count: int) -> npt.NDArray[np.float32]:
        """[count, 16] whole numbers; the first column is unique to this request, the others say their row."""
        x = np.empty((count, COLUMNS), np.float32)
        x[:, 0] = next(self._unique)
        x[:, 1:] = np.arange(count)[:, None] + np.arange(1, COLUMNS)
        return x

    def number(self) -> int:
        return next(self._unique)


def _json_request(x: npt.NDArray[np.float32]) -> bytes:
    tensor = {"name": "x", "shape": list(x.shape), "datatype": "FP32", "data": x.ravel().tolist()}
    return post(INFER, json.dumps({"inputs": [tensor]}).encode(), {"Content-Type": "application/json"})


def _binary_request(x: npt.NDArray[np.float32], *, claimed: int | None = None, raw: bytes | None = None) -> bytes:
    data = x.tobytes() if raw is None else raw
    size = len(data) if claimed is None else claimed
    tensor = {"name": "x", "shape": list(x.shape), "datatype": "FP32", "parameters": {"binary_data_size": size}}
    head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    headers = {"Content-Type": "application/octet-stream", "Inference-Header-Content-Length": str(len(head))}
    return post(INFER, head + data, headers)


def _expect(answer: Answer, *statuses: int) -> str:
    if answer.status not in statuses:
        raise Violation(f"status {answer.status} instead of {' or '.join(map(str, statuses))}: {answer.body[:300]!r}")
    if answer.status >= 400 and not str(json.loads(answer.body).get("error", "")):
        raise Violation(f"status {answer.status} does not say what is wrong: {answer.body[:300]!r}")
    return str(answer.status)


def _verify(answer: Answer, x: npt.NDArray[np.float32], *, binary: bool) -> str:
    status = _expect(answer, 200)
    if binary:
        got = np.frombuffer(answer.body, np.float32, offset=int(answer.headers["inference-header-content-length"]))
    else:
        got = np.array(json.loads(answer.body)["outputs"][0]["data"], np.float32)
    if not np.array_equal(got.reshape(-1), (2 * x + 1).reshape(-1)):
        raise Violation(f"mixed-up or wrong answer: sent {x[0, :3].tolist()}, got {got[:3].tolist()}")
    return status


async def _json(client: Client) -> str:
    x = client.rows(1)
    await client.connection.send(_json_request(x))
    return _verify(await client.connection.receive(), x, binary=False)


async def _rows(client: Client) -> str:
    x = client.rows(client.rng.randint(2, 12))
    await client.connection.send(_json_request(x))
    return _verify(await client.connection.receive(), x, binary=False)


async def _binary(client: Client) -> str:
    x = client.rows(client.rng.choice((1, 1, 4, 64)))
    await client.connection.send(_binary_request(x))
    return _verify(await client.connection.receive(), x, binary=True)


async def _pipelined(client: Client) -> str:
    sent = [client.rows(1) for _ in range(4)]
    await client.connection.send(b"".join(_json_request(x) for x in sent))
    for x in sent:
        _verify(await client.connection.receive(), x, binary=False)
    return "200"


async def _pipeline(client: Client) -> str:
    number = client.number()
    await client.connection.send(post(PIPELINE, str(number).encode(), {"Content-Type": "text/plain"}))
    answer = await client.connection.receive()
    status = _expect(answer, 200)
    if (got := json.loads(answer.body)) != {"sent": number, "value": 2 * number + 1}:
        raise Violation(f"mixed-up or wrong answer: sent {number}, got {got}")
    return status


async def _slow(client: Client) -> str:
    x = client.rows(1)
    await client.connection.send(_json_request(x), pieces=client.rng.randint(5, 20), pause_s=0.1)
    return _verify(await client.connection.receive(), x, binary=False)


async def _huge(client: Client) -> str:
    x = client.rows(HUGE_ROWS)
    await client.connection.send(_binary_request(x), pieces=8)
    return _verify(await client.connection.receive(), x, binary=True)


async def _beyond_limit(client: Client) -> str:
    await client.connection.send(post(INFER, bytes(1 << 20), length=OVER_LIMIT))
    status = _expect(await client.connection.receive(), 413)
    await client.connection.close()
    return status


async def _bad_json(client: Client) -> str:
    body = client.rng.choice(
        (b"", b"{", b"[]", b'{"inputs": 7}', b"\xff\xfe{}", b'{"inputs": [{"name": "x"}]}', b"null")
    )
    await client.connection.send(post(INFER, body, {"Content-Type": "application/json"}))
    return _expect(await client.connection.receive(), 400)


async def _wrong_shape(client: Client) -> str:
    shape = client.rng.choice(([1, 15], [16], [1, 1, 16], [2, 16], [-1, 16], [1, 16, 0], [1 << 40, 1 << 40]))
    tensor = {"name": "x", "shape": shape, "datatype": "FP32", "data": [1.0] * 16}
    await client.connection.send(post(INFER, json.dumps({"inputs": [tensor]}).encode()))
    return _expect(await client.connection.receive(), 400)


async def _truncated_binary(client: Client) -> str:
    x = client.rows(4)
    request = client.rng.choice(
        (
            _binary_request(x, raw=x.tobytes()[:100]),
            _binary_request(x, claimed=1 << 30),
            _binary_request(x, raw=x.tobytes() + b"tail", claimed=x.nbytes),
            _binary_request(x, claimed=-1),
        )
    )
    await client.connection.send(request)
    return _expect(await client.connection.receive(), 400)


async def _unknown(client: Client) -> str:
    path = client.rng.choice(("/v2/models/nobody/infer", "/v1/pipelines/nobody", "/nowhere", "/v2/models/../infer"))
    await client.connection.send(post(path, b"{}"))
    return _expect(await client.connection.receive(), 404)


async def _not_http(client: Client) -> str:
    await client.connection.close()
    await client.connection.send(
        client.rng.choice((b"\x16\x03\x01\x02\x00\x01\x00", b"GARBAGE\r\n\r\n", b"GET / HTTP/9\r\n\r\n"))
    )
    try:
        return _expect(await client.connection.receive(), 400)
    finally:
        await client.connection.close()


async def _cancel_request(client: Client) -> str:
    whole = client.rng.choice((_json_request(client.rows(1)), _binary_request(client.rows(1024))))
    await client.connection.send(whole[: client.rng.randrange(1, len(whole))])
    await client.connection.close(abort=client.rng.random() < 0.5)
    return "closed by client"


async def _cancel_response(client: Client) -> str:
    await client.connection.send(_binary_request(client.rows(client.rng.choice((1, 4096, 65536)))))
    if client.rng.random() < 0.5:
        await client.connection.peek(100)
    await client.connection.close(abort=client.rng.random() < 0.5)
    return "closed by client"


async def _stalled(client: Client) -> str:
    await client.connection.close()
    await client.connection.send(b"POST " + INFER.encode() + b" HTTP/1.1\r\nHost: s")
    try:
        return _expect(await client.connection.receive(), 408)
    except Dropped:
        return "closed by server"
    finally:
        await client.connection.close()


Kind = Callable[[Client], Awaitable[str]]

KINDS: dict[str, tuple[float, Kind]] = {
    "json": (30, _json),
    "json, several rows": (10, _rows),
    "binary": (22, _binary),
    "pipeline": (20, _pipeline),
    "pipelined x4": (4, _pipelined),
    "slow client": (1, _slow),
    "16 MB": (0.5, _huge),
    "beyond the limit": (0.5, _beyond_limit),
    "bad JSON": (2, _bad_json),
    "wrong shape": (2, _wrong_shape),
    "truncated binary": (2, _truncated_binary),
    "unknown name": (1, _unknown),
    "not HTTP": (0.5, _not_http),
    "cancelled in request": (2, _cancel_request),
    "cancelled in response": (2, _cancel_response),
    "stalled header": (0.02, _stalled),
}
"""Kind -> (share of the requests in percent, how to do it)."""


async def one(client: Client) -> tuple[str, str]:
    """Do one request of a kind drawn by share; (kind, what came). Raises `Violation` naming the kind."""
    kind = client.rng.choices(list(KINDS), [share for share, _ in KINDS.values()])[0]
    try:
        return kind, await KINDS[kind][1](client)
    except (Violation, Dropped, TimeoutError) as error:
        await client.connection.close()
        raise Violation(f"{kind}: {error or type(error).__name__}") from error


async def in_flight(port: int, count: int) -> list[Awaitable[Any]]:
    """`count` requests that the server has in hand for a while: each a task that verifies its answer."""
    clients = [Client(port, number, seed=0) for number in range(count)]

    async def run(client: Client) -> str:
        number = client.number()
        await client.connection.send(post("/v1/pipelines/slow-pipeline", str(number).encode()))
        answer = await client.connection.receive()
        await client.connection.close()
        _expect(answer, 200)
        if json.loads(answer.body) != {"sent": number, "value": 2 * number + 1}:
            raise Violation(f"while draining: wrong answer to {number}: {answer.body!r}")
        return "200"

    return [asyncio.create_task(run(client)) for client in clients]
