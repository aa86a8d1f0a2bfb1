"""One safetensors file of a model's weights, as any program writes it: its header, and the places of its tensors.

`epochal.state.model.tensors` reads the strict subset of the format in which a run's own tensors travel. Here the
types, the order and the metadata are the writer's; but the bytes must be there, and no two tensors may share them:
https://huggingface.co/docs/safetensors/index#format.
"""

import json
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from epochal.state.errors import InvalidInput
from epochal.state.model.tensors import MAX_DIMENSIONS
from epochal.state.wire import check_json_values, unique_keys
from epochal.trainers.sources.model_source import ModelFile

MAX_WEIGHTS_HEADER_BYTES = 100_000_000
"""Maximum size of a header, as in the safetensors library."""
TYPE_BYTES = {
    "F64": 8, "I64": 8, "U64": 8, "F32": 4, "I32": 4, "U32": 4, "BF16": 2, "F16": 2, "I16": 2, "U16": 2,
    "I8": 1, "U8": 1, "BOOL": 1, "F8_E4M3": 1, "F8_E5M2": 1,
}  # fmt: skip
"""Size of one number of each type whose tensors' sizes are checked."""

_LENGTH = struct.Struct("<Q")
_METADATA_KEY = "__metadata__"


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor in a file: its type as the file names it, its shape, and its bytes `[start, stop)` of the file."""

    code: str
    shape: tuple[int, ...]
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class WeightsFile:
    """A safetensors file whose header has been read."""

    file: ModelFile
    metadata: Mapping[str, str]
    tensors: Mapping[str, StoredTensor]

    @property
    def place(self) -> str:
        return self.file.place


def open_weights(file: ModelFile) -> WeightsFile:
    """Read a file's header.

    Raises:
        InvalidInput: it is no safetensors file, or a truncated one.
    """
    body = _LENGTH.size
    if file.size_bytes < body:
        _refuse(file, f"{file.size_bytes} bytes are too few for a safetensors file; is it truncated?")
    header_bytes = int(_LENGTH.unpack(read_bytes(file, 0, body))[0])
    if header_bytes > MAX_WEIGHTS_HEADER_BYTES:
        _refuse(file, "not a safetensors file: it does not begin with the length of a header")
    if body + header_bytes > file.size_bytes:
        _refuse(file, f"truncated: {file.size_bytes} bytes end inside its header of {header_bytes} bytes")
    header = _parse_header(file, read_bytes(file, body, body + header_bytes))
    metadata = header.pop(_METADATA_KEY, {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        _refuse(file, "its metadata are not strings by name")
    tensors = {name: _stored_tensor(file, name, entry, body + header_bytes) for name, entry in header.items()}
    end = body + header_bytes
    for name, tensor in sorted(tensors.items(), key=lambda item: (item[1].start, item[1].stop)):
        if tensor.start != end:
            _refuse(file, f"{name!a} begins at byte {tensor.start}, where {end} is expected: a gap or an overlap")
        end = tensor.stop
    if end > file.size_bytes:
        _refuse(file, f"truncated: it has {file.size_bytes} bytes, and its header describes {end}")
    if end < file.size_bytes:
        _refuse(file, f"{file.size_bytes - end} bytes follow its last tensor")
    return WeightsFile(file, metadata, tensors)


def read_bytes(file: ModelFile, start: int, stop: int) -> bytes:
    """Return the bytes `[start, stop)` of a file. Raises as `ModelFile.read_into`."""
    data = bytearray(stop - start)
    file.read_into(start, memoryview(data))
    return bytes(data)


def _refuse(file: ModelFile, message: str) -> NoReturn:
    raise InvalidInput(f"{file.place}: {message}", place=file.place)


def _parse_header(file: ModelFile, text: bytes) -> dict[str, Any]:
    try:
        check_json_values(text)
        header = json.loads(text.decode("utf-8"), object_pairs_hook=unique_keys)
    except (ValueError, RecursionError):
        _refuse(file, "not a safetensors file: its header is not JSON")
    if not isinstance(header, dict):
        _refuse(file, "not a safetensors file: its header is not an object")
    return header


def _stored_tensor(file: ModelFile, name: str, entry: object, body: int) -> StoredTensor:
    """Return the tensor that a header's entry describes; `body` is the offset of the first tensor's bytes."""
    if not isinstance(entry, dict) or not {"dtype", "shape", "data_offsets"} <= set(entry):
        _refuse(file, f"{name!a} is not described by dtype, shape and data_offsets")
    code, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(code, str) or not _are_naturals(shape) or not _are_naturals(offsets) or len(offsets) != 2:
        _refuse(file, f"{name!a} has a type, shape or offsets that are not valid")
    start, stop = offsets
    size_bytes = math.prod(shape) * TYPE_BYTES.get(code, 0)
    if stop < start or (code in TYPE_BYTES and stop - start != size_bytes):
        _refuse(file, f"{name!a} has {stop - start} bytes; {code} of shape {tuple(shape)} takes {size_bytes}")
    return StoredTensor(code, tuple(shape), body + start, body + stop)


def _are_naturals(found: object) -> bool:
    if not isinstance(found, list) or len(found) > MAX_DIMENSIONS:
        return False
    return all(type(value) is int and 0 <= value < 2**63 for value in found)
