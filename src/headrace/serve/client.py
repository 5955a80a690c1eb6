"""A small blocking client for a Headrace server: arrays or a file's bytes in, arrays or a JSON answer out.

Tensors travel in the binary form of the Open Inference Protocol. An error of the server comes back as the same class of
the `headrace.errors` tree that it was raised as.
"""

from __future__ import annotations

import contextlib
import http.client
import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlsplit

import numpy as np

from headrace import errors
from headrace.errors import HeadraceError, InvalidInput, Unavailable
from headrace.serve.codec.bytestensor import pack_bytes, unpack_bytes
from headrace.serve.codec.oip import JSON_HEADER
from headrace.serve.protocol import Array, Tensors, TensorSpec
from headrace.serve.tensors import DTYPES, datatype

__all__ = ["DEFAULT_URL", "Client"]

DEFAULT_URL = "http://127.0.0.1:8000"


class Client:
    """One kept-open connection to `url`; use it from one thread, and close it (or use it in a `with` block).

    Args:
        url: `http://HOST:PORT` or `https://…`, with a path prefix if a proxy adds one.
        timeout_s: Longest wait for the connection, and for any one read or write.
        token: Sent as a bearer token when not empty.

    Every method raises `Unavailable` when the server cannot be reached, and the server's own error when it answers
    with one.
    """

    def __init__(self, url: str = DEFAULT_URL, *, timeout_s: float = 60.0, token: str = "") -> None:
        parts = urlsplit(url)
        try:
            port = parts.port
        except ValueError as error:
            raise InvalidInput(f"url {url!r}: {error}") from None
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise InvalidInput(f"url {url!r}: expected http://HOST:PORT or https://HOST:PORT")
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self.url = url.rstrip("/")
        self._prefix = parts.path.rstrip("/")
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._connection = kind(parts.hostname, port, timeout=timeout_s)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._connection.close()

    def ready(self) -> bool:
        """Whether the server is there and ready for traffic."""
        try:
            self._exchange("GET", "/v2/health/ready")
        except HeadraceError:
            return False
        return True

    def names(self) -> list[str]:
        """Names of the models and pipelines that the server has, sorted."""
        index = self._json("POST", "/v2/repository/index", b"{}", {"Content-Type": "application/json"})
        return sorted({str(entry["name"]) for entry in index})

    def metadata(self, model: str, version: str = "") -> dict[str, Any]:
        """The Open Inference Protocol metadata of a model: name, versions, platform, inputs, outputs."""
        answer: dict[str, Any] = self._json("GET", _path(model, version))
        return answer

    def specs(self, model: str, version: str = "") -> tuple[TensorSpec, ...]:
        """The inputs of a model."""
        return tuple(
            TensorSpec(item["name"], DTYPES[item["datatype"]], tuple(item["shape"]))
            for item in self.metadata(model, version)["inputs"]
        )

    def infer(self, model: str, tensors: Mapping[str, Array], version: str = "") -> Tensors:
        """Run a model on named arrays of n rows (axis 0); returns its outputs, read-only views of the response.

        Raises `InvalidInput` for a dtype that the protocol does not know.
        """
        inputs, raws = [], []
        for name, array in tensors.items():
            kind = datatype(array.dtype.newbyteorder("="))
            if kind not in DTYPES:
                raise InvalidInput(f"tensor {name!r}: dtype {array.dtype} is not one of {', '.join(DTYPES)}")
            raw = pack_bytes(array) if kind == "BYTES" else array.astype(array.dtype.newbyteorder("<")).tobytes()
            raws.append(raw)
            parameters = {"binary_data_size": len(raw)}
            inputs.append({"name": name, "shape": list(array.shape), "datatype": kind, "parameters": parameters})
        head = json.dumps({"inputs": inputs, "parameters": {"binary_data_output": True}}).encode()
        headers = {"Content-Type": "application/octet-stream", JSON_HEADER: str(len(head))}
        fields, body = self._exchange("POST", f"{_path(model, version)}/infer", b"".join((head, *raws)), headers)
        return _outputs(fields.get(JSON_HEADER, ""), body)

    def pipeline(self, name: str, data: bytes, media_type: str = "application/octet-stream") -> Any:
        """Send `data` (an image, a recording, UTF-8 text) through a pipeline; returns its decoded JSON answer."""
        return self._json("POST", f"/v1/pipelines/{quote(name, safe='')}", data, {"Content-Type": media_type})

    def _json(self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None) -> Any:
        _, answer = self._exchange(method, path, body, headers)
        try:
            return json.loads(answer)
        except ValueError:
            raise Unavailable(f"{self.url}{path} did not answer with JSON; is it a Headrace server?") from None

    def _exchange(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> tuple[http.client.HTTPMessage, bytes]:
        reused = self._connection.sock is not None
        try:
            # a server may refuse a large body before it was sent: its answer counts, not the broken pipe
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                self._connection.request(method, self._prefix + path, body, {**self._headers, **(headers or {})})
            response = self._connection.getresponse()
            answer = response.read()
        except (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError) as error:
            self._connection.close()
            if reused:  # the server closed the idle connection: the request was not taken up
                return self._exchange(method, path, body, headers)
            raise Unavailable(f"{self.url} closed the connection without an answer: {error}") from error
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            raise Unavailable(_unreachable(self.url, error)) from error
        if not 200 <= response.status < 300:
            raise _error(response.status, answer, f"{method} {self.url}{path}")
        return response.headers, answer


def _path(model: str, version: str) -> str:
    path = f"/v2/models/{quote(model, safe='')}"
    return f"{path}/versions/{quote(version, safe='')}" if version else path


def _unreachable(url: str, error: Exception) -> str:
    if isinstance(error, ConnectionRefusedError):
        port = urlsplit(url).port or 80
        return f"no server listens at {url}; start one with: headrace serve --port {port}"
    if isinstance(error, TimeoutError):
        return f"{url} did not answer in time"
    return f"{url} cannot be reached: {error or type(error).__name__}"


def _error(status: int, body: bytes, where: str) -> HeadraceError:
    """The server's error as the class it names, else the first of the tree with that status."""
    try:
        said = json.loads(body)
        text, name = str(said["error"]), str(said.get("type", ""))
    except (ValueError, TypeError, KeyError, AttributeError):
        text, name = f"{where} was answered with status {status}: {body[:200].decode('utf-8', 'replace')}", ""
    known = [getattr(errors, entry) for entry in errors.__all__ if entry not in ("MissingExtra", "StageFailed")]
    named = [kind for kind in known if kind.__name__ == name]
    alike = [kind for kind in known if kind.http_status == status != HeadraceError.http_status]
    return next(iter(named + alike), HeadraceError)(text)


def _outputs(header_length: str, body: bytes) -> Tensors:
    try:
        split = int(header_length) if header_length else len(body)
        head, rest = json.loads(body[:split]), memoryview(body)[split:]
        found: Tensors = {}
        for item in head["outputs"]:
            dtype, shape, name = DTYPES[item["datatype"]], item["shape"], item["name"]
            size = item.get("parameters", {}).get("binary_data_size")
            if size is None:
                found[name] = np.array(item["data"], dtype).reshape(shape)
                continue
            raw, rest = rest[:size], rest[size:]
            if dtype.kind == "O":
                found[name] = unpack_bytes(raw, int(np.prod(shape)), name).reshape(shape)
            else:
                found[name] = np.frombuffer(raw, dtype.newbyteorder("<")).reshape(shape)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Unavailable(f"the server's answer is not an Open Inference Protocol response: {error!r}") from error
    return found
