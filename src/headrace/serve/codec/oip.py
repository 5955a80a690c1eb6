"""Open Inference Protocol V2 over HTTP: an infer request's bytes to named arrays, and arrays back to bytes.

Both forms of the protocol: numbers in JSON, and the binary-tensor extension, in which the JSON head is followed by the
raw little-endian tensors in order. Binary tensors are views of the request's body: from the socket to the model's input
they are copied once, by the kernel (a second time only when several requests are joined into one batch).
"""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np

from headrace.core.json_numbers import format_numbers, parse_numbers
from headrace.errors import InvalidInput
from headrace.serve.codec.bytestensor import pack_bytes, unpack_bytes
from headrace.serve.protocol import Array, Tensors
from headrace.serve.tensors import DTYPES, datatype

__all__ = ["JSON_HEADER", "InferInput", "InferOutput", "InferRequest", "RequestedOutput", "decode", "encode"]

JSON_HEADER = "Inference-Header-Content-Length"
MAX_ELEMENTS = 1 << 31
MAX_DIMENSIONS = 32


class InferInput(msgspec.Struct):
    """One input tensor: `data` in row-major order (flat or nested), or `parameters.binary_data_size`."""

    name: str
    shape: list[int]
    datatype: str
    data: msgspec.Raw = msgspec.Raw(b"")
    parameters: dict[str, Any] = {}


class RequestedOutput(msgspec.Struct):
    """An output the client wants; `parameters.binary_data` asks for its raw form."""

    name: str
    parameters: dict[str, Any] = {}


class InferRequest(msgspec.Struct):
    """The JSON part of an infer request."""

    inputs: list[InferInput]
    id: str = ""
    outputs: list[RequestedOutput] = []
    parameters: dict[str, Any] = {}


class InferOutput(msgspec.Struct, omit_defaults=True):
    """One output tensor of a response."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: msgspec.Raw | list[Any] | None = None
    parameters: dict[str, Any] = {}


class InferResponse(msgspec.Struct, omit_defaults=True):
    """The JSON part of an infer response."""

    model_name: str
    model_version: str
    outputs: list[InferOutput]
    id: str = ""


_request_decoder = msgspec.json.Decoder(InferRequest)
_encoder = msgspec.json.Encoder()
_any_decoder = msgspec.json.Decoder()
_flat_decoders: dict[str, tuple[Any, msgspec.json.Decoder[Any]]] = {
    "b": (list[bool], msgspec.json.Decoder(list[bool])),
    "O": (list[str], msgspec.json.Decoder(list[str])),
}


def decode(body: bytes | memoryview, header_length: str = "") -> tuple[InferRequest, Tensors]:
    """Parse an infer request.

    Args:
        body: The whole HTTP body.
        header_length: Value of `Inference-Header-Content-Length`: bytes of JSON before the raw tensors; "" when all
            of the body is JSON.

    Returns:
        The JSON part and the inputs by name, read-only where they are views of `body`.

    Raises:
        InvalidInput: naming the input or field, what was expected and what came.
    """
    binary: memoryview | None = None
    if header_length:
        plain = header_length.isascii() and header_length.isdigit() and len(header_length) < 12
        length = int(header_length) if plain else -1
        if not 0 <= length <= len(body):
            raise InvalidInput(f"{JSON_HEADER}: expected 0..{len(body)} (the body's length), got {header_length!r}")
        view = memoryview(body)
        body, binary = view[:length], view[length:]
    try:
        request = _request_decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidInput(f"body: {error}") from None
    except RecursionError:
        raise InvalidInput("body: nested too deeply") from None
    if request.outputs:
        names = [output.name for output in request.outputs]
        if len(set(names)) < len(names):
            raise InvalidInput("outputs: an output is named twice")
    tensors: Tensors = {}
    offset = 0
    for index, item in enumerate(request.inputs):
        where = f"inputs[{index}] ({item.name!r})"
        if item.name in tensors:
            raise InvalidInput(f"{where}: given twice")
        dtype = DTYPES.get(item.datatype)
        if dtype is None:
            raise InvalidInput(f"{where}: unknown datatype {item.datatype!r}; expected one of {', '.join(DTYPES)}")
        if len(item.shape) > MAX_DIMENSIONS:
            raise InvalidInput(f"{where}: {len(item.shape)} dimensions; at most {MAX_DIMENSIONS} are accepted")
        if item.shape and not 0 <= min(item.shape) <= max(item.shape) <= MAX_ELEMENTS:
            raise InvalidInput(f"{where}: shape {item.shape} has a negative dimension, or one above {MAX_ELEMENTS}")
        count = math.prod(item.shape)
        if count > MAX_ELEMENTS:
            raise InvalidInput(f"{where}: shape {item.shape} has {count} elements; at most {MAX_ELEMENTS} are accepted")
        if item.parameters and "shared_memory_region" in item.parameters:
            raise InvalidInput(f"{where}: shared memory is not enabled on this server")
        if item.parameters and "binary_data_size" in item.parameters:
            size = item.parameters["binary_data_size"]
            if binary is None:
                raise InvalidInput(f"{where}: binary_data_size is given but the {JSON_HEADER} header is missing")
            if type(size) is not int or not 0 <= size <= len(binary) - offset:
                raise InvalidInput(
                    f"{where}: binary_data_size {size!r}, but {len(binary) - offset} bytes are left in the body"
                )
            tensors[item.name] = _from_binary(binary[offset : offset + size], dtype, item.shape, count, where)
            offset += size
        else:
            tensors[item.name] = _from_json(item.data, dtype, item.shape, count, where)
    if binary is not None and offset != len(binary):
        raise InvalidInput(f"body: {len(binary) - offset} bytes after the last binary tensor")
    return request, tensors


def _from_binary(raw: memoryview, dtype: np.dtype[Any], shape: list[int], count: int, where: str) -> Array:
    if dtype.kind == "O":
        return unpack_bytes(raw, count, where).reshape(shape)
    if len(raw) != count * dtype.itemsize:
        raise InvalidInput(
            f"{where}: shape {shape} of {datatype(dtype)} takes {count * dtype.itemsize} bytes, got {len(raw)}"
        )
    array = np.frombuffer(raw, dtype.newbyteorder("<")).reshape(shape)
    return array if array.flags.aligned else array.copy()


def _from_json(raw: msgspec.Raw, dtype: np.dtype[Any], shape: list[int], count: int, where: str) -> Array:
    if not memoryview(raw).nbytes:
        raise InvalidInput(f"{where}: `data` is missing")
    if dtype.kind in "fiu":
        try:
            return parse_numbers(memoryview(raw), shape, dtype)
        except InvalidInput as error:
            raise InvalidInput(f"{where}.data: {error}") from None
    flat_type, decoder = _flat_decoders[dtype.kind]
    try:
        data = decoder.decode(raw)
    except msgspec.ValidationError as error:
        try:
            nested = _any_decoder.decode(raw)
        except (msgspec.DecodeError, RecursionError):
            nested = None
        if not isinstance(nested, list) or not any(isinstance(item, list) for item in nested):
            raise InvalidInput(f"{where}.data: {error}") from None
        data = _flatten(nested, shape, flat_type, where)
    except msgspec.DecodeError as error:
        raise InvalidInput(f"{where}.data: {error}") from None
    if len(data) != count:
        raise InvalidInput(f"{where}: shape {shape} takes {count} elements, `data` has {len(data)}")
    if dtype.kind == "O":
        return np.array([text.encode() for text in data], np.object_).reshape(shape)
    return np.array(data, dtype).reshape(shape)


def _flatten(nested: list[Any], shape: list[int], flat_type: Any, where: str) -> list[Any]:
    level: list[Any] = nested
    for axis, size in enumerate(shape[:-1]):
        if len(level) != math.prod(shape[: axis + 1]) or not all(isinstance(item, list) for item in level):
            raise InvalidInput(f"{where}.data: nesting does not match shape {shape} at axis {axis} (size {size})")
        if any(len(item) != shape[axis + 1] for item in level):
            raise InvalidInput(f"{where}.data: nesting does not match shape {shape} at axis {axis + 1}")
        level = [item for items in level for item in items]
    try:
        return msgspec.convert(level, flat_type)  # type: ignore[no-any-return]
    except msgspec.ValidationError as error:
        raise InvalidInput(f"{where}.data: {error}") from None


def encode(
    request: InferRequest, model: str, version: str, outputs: Tensors
) -> tuple[tuple[bytes | memoryview, ...], str]:
    """Build the response's body buffers, JSON first, and the header lines they need.

    Raises `InvalidInput` when the request names an output the model does not have.
    """
    binary_all = bool(request.parameters) and request.parameters.get("binary_data_output") is True
    wanted = request.outputs or [RequestedOutput(name) for name in outputs]
    items: list[InferOutput] = []
    raws: list[bytes | memoryview] = []
    for output in wanted:
        array = outputs.get(output.name)
        if array is None:
            raise InvalidInput(f"outputs: no output {output.name!r}; the model has {', '.join(outputs)}")
        binary = output.parameters.get("binary_data", binary_all) if output.parameters else binary_all
        kind = datatype(array.dtype)
        item = InferOutput(output.name, kind, array.shape)
        if binary:
            raw = pack_bytes(array) if kind == "BYTES" else _raw(array)
            item.parameters = {"binary_data_size": memoryview(raw).nbytes}
            raws.append(raw)
        else:
            item.data = _json_data(array)
        items.append(item)
    head = _encoder.encode(InferResponse(model, version, items, request.id))
    if not raws:
        return (head,), ""
    return (head, *raws), f"{JSON_HEADER}: {len(head)}\r\n"


def _json_data(array: Array) -> msgspec.Raw | list[Any]:
    if array.dtype.kind in "fiu":
        return msgspec.Raw(format_numbers(array))
    return array.ravel().tolist() if array.dtype.kind == "b" else [_text(x) for x in array.ravel()]


def _raw(array: Array) -> memoryview:
    return np.ascontiguousarray(array, array.dtype.newbyteorder("<")).reshape(-1).view(np.uint8).data


def _text(item: Any) -> str:
    if isinstance(item, bytes):
        try:
            return item.decode()
        except UnicodeDecodeError:
            raise InvalidInput("a BYTES output is not UTF-8; ask for it with binary_data = true") from None
    return str(item)
