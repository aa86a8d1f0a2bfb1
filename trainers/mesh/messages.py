"""Messages between an agent and the processes of its mesh, over pipes: each is a JSON document and a tensor file.

The agent starts a process with `Start` and gives every process `RoundTask`s; the first process also gets the round's
parameters and, if it is kept, the optimizer's state. A process answers every message with `Ready`, `RoundDone` (from
the first process with both after the round) or `Failed`. Processes keep nothing between rounds, so losing them costs
one round. A process ends when its pipe ends.
"""

import asyncio
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, TypeVar

from batching.round_plan import RoundPlan
from state.errors import InvalidDocument
from state.intervals import BatchId
from state.tensors import Float32Array, Tensors, encode_tensor_file, parse_tensor_file
from state.wire import canonical_json, parse_document
from trainers.learner import InnerState
from trainers.mesh.options import MeshOptions

MAX_DOCUMENT_BYTES = 16 * 1024**2
MAX_BODY_BYTES = 48 * 1024**3
ENDED_WITH_AGENT = 3
"""The exit code of a process whose agent is gone."""
_SIZES = struct.Struct(">IQ")

Cause = Literal["unavailable", "corrupt", "out_of_range", "rejected", "trainer", "input", "called-off", "broken"]
"""Why a process could not do its part: a data error's kind, the trainer, the user's input, another process's failure,
or another process's end."""


@dataclass(frozen=True, slots=True)
class Start:
    """A process's first message: its mesh.

    Attributes:
        state: the run's configuration, as the coordinator gives it to clients.
        model: the run's model document.
        options: the mesh.
        process: this process's number.
        store: a file through which the processes find each other.
        timeout_s: time limit for waiting for the others.
    """

    state: Any
    model: Any
    options: MeshOptions
    process: int
    store: str
    timeout_s: float


@dataclass(frozen=True, slots=True)
class RoundTask:
    """A round to take part in.

    Attributes:
        ticket: the client's current ticket for data servers.
        steps_taken: the optimizer's step count.
        keeps_state: whether the answer holds the optimizer's state.
    """

    plan: RoundPlan
    ticket: str
    steps_taken: int
    keeps_state: bool


@dataclass(frozen=True, slots=True)
class Ready:
    """The process has found the others."""

    kind: Literal["ready"] = "ready"


@dataclass(frozen=True, slots=True)
class RoundDone:
    """The round's result: `rows_loaded` by this process; the rest is valid in the first process's answer only."""

    nats: float
    token_count: int
    steps_taken: int
    rows_loaded: int
    kind: Literal["done"] = "done"


@dataclass(frozen=True, slots=True)
class Failed:
    """The reason for a failure. `batch_id` names the batches whose data could not be loaded."""

    cause: Cause
    message: str
    batch_id: BatchId | None = None
    kind: Literal["failed"] = "failed"


_PARAMETERS, _INNER = "parameters/", "inner/"
Reply: TypeAlias = Ready | RoundDone | Failed
T = TypeVar("T")


async def write_frame(writer: asyncio.StreamWriter, document: Any, body: bytes = b"") -> None:
    """Write a document and its bytes. Raise `OSError` if the other side is gone."""
    text = canonical_json(document)
    writer.write(_SIZES.pack(len(text), len(body)) + text)
    writer.write(body)
    await writer.drain()


async def read_frame(reader: asyncio.StreamReader, kind: type[T] | Any) -> tuple[T, bytes]:
    """Read the next document and its bytes.

    Raises:
        EOFError: the other side is gone.
        InvalidDocument: the bytes are not a message of this kind.
    """
    document_bytes, body_bytes = _SIZES.unpack(await reader.readexactly(_SIZES.size))
    if document_bytes > MAX_DOCUMENT_BYTES or body_bytes > MAX_BODY_BYTES:
        raise InvalidDocument(f"a frame of {document_bytes} and {body_bytes} bytes")
    document: T = parse_document(kind, await reader.readexactly(document_bytes))
    return document, await reader.readexactly(body_bytes)


def encode_body(parameters: Mapping[str, Float32Array], state: InnerState | None) -> bytes:
    """Encode parameters, and the optimizer's state if given, as one tensor file."""
    parts = [(_PARAMETERS, parameters)] + ([] if state is None else [(_INNER, state.tensors)])
    return encode_tensor_file({prefix + name: array for prefix, part in parts for name, array in part.items()}, {})


def decode_body(body: bytes, steps_taken: int) -> tuple[Tensors, InnerState]:
    """Decode what `encode_body` encoded, into copies. Raise `InvalidTensorFile` for other bytes."""
    found: dict[str, Tensors] = {_PARAMETERS: {}, _INNER: {}}
    for name, array in parse_tensor_file(body).tensors().items():
        prefix, separator, rest = name.partition("/")
        found[prefix + separator][rest] = array.copy()
    return found[_PARAMETERS], InnerState(steps_taken, found[_INNER])
