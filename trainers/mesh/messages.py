"""Messages between an agent and the processes of its mesh, over pipes: a JSON document and a tensor file each.

The agent starts a process with `Start` and gives every process `RoundTask`s, the first process with the round's
parameters and, where it is kept, the optimizer's state. Each answers every message, with `Ready`, `RoundDone` (the
first process with both after the round) or `Failed`. The processes keep nothing between rounds, so that losing them
costs a round and no more. Where its pipe ends, a process ends.
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

MAX_DOCUMENT_BYTES = 16 * 1024**2
MAX_BODY_BYTES = 48 * 1024**3
ENDED_WITH_AGENT = 3
"""The exit code of a process whose agent is gone."""
_SIZES = struct.Struct(">IQ")

Cause = Literal["unavailable", "corrupt", "out_of_range", "rejected", "trainer", "input", "called-off", "broken"]
"""Why a process could not do its part: a data error's kind, the trainer, what the user gave, because another process
could not, or because another process is gone."""


@dataclass(frozen=True, slots=True)
class Start:
    """A process's first message: its mesh.

    Attributes:
        state: the run's configuration, as the coordinator gives it to clients.
        mesh: the mesh's axes, as in `parse_mesh`.
        process: this process's number, of `process_count`.
        batch_size: rows of one shard.
        store: a file through which the processes find each other.
        data, cache_dir, cache_bytes: the client's own options.
        timeout_s: how long a process waits for the others.
    """

    state: Any
    mesh: str
    process: int
    process_count: int
    batch_size: int
    store: str
    data: str | None
    cache_dir: str | None
    cache_bytes: int
    timeout_s: float


@dataclass(frozen=True, slots=True)
class RoundTask:
    """A round to take part in.

    Attributes:
        ticket: opens data servers.
        steps_taken: the optimizer's count.
        keeps_state: whether the optimizer's state is wanted back.
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
    """The round's result: the first process's holds the sums over all. `rows_loaded`: by this process."""

    loss_sum: float
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
    """Write a document and its bytes; return when the pipe has room again.

    Raises:
        OSError: the other side is gone.
    """
    text = canonical_json(document)
    writer.write(_SIZES.pack(len(text), len(body)) + text)
    writer.write(body)
    await writer.drain()


async def read_frame(reader: asyncio.StreamReader, kind: type[T] | Any) -> tuple[T, bytes]:
    """Read the next document and its bytes.

    Raises:
        EOFError: the other side is gone.
        InvalidDocument: something else came.
    """
    document_bytes, body_bytes = _SIZES.unpack(await reader.readexactly(_SIZES.size))
    if document_bytes > MAX_DOCUMENT_BYTES or body_bytes > MAX_BODY_BYTES:
        raise InvalidDocument(f"a frame of {document_bytes} and {body_bytes} bytes")
    document: T = parse_document(kind, await reader.readexactly(document_bytes))
    return document, await reader.readexactly(body_bytes)


def encode_body(parameters: Mapping[str, Float32Array], state: InnerState | None) -> bytes:
    """Encode parameters, and the optimizer's state if it is wanted, as one tensor file."""
    parts = [(_PARAMETERS, parameters)] + ([] if state is None else [(_INNER, state.tensors)])
    return encode_tensor_file({prefix + name: array for prefix, part in parts for name, array in part.items()}, {})


def decode_body(body: bytes, steps_taken: int) -> tuple[Tensors, InnerState]:
    """Decode what `encode_body` encoded; the arrays are copies. Raise `InvalidTensorFile` for something else."""
    found: dict[str, Tensors] = {_PARAMETERS: {}, _INNER: {}}
    for name, array in parse_tensor_file(body).tensors().items():
        prefix, separator, rest = name.partition("/")
        found[prefix + separator][rest] = array.copy()
    return found[_PARAMETERS], InnerState(steps_taken, found[_INNER])
