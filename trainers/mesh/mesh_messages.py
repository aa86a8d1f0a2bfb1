"""Messages between an agent and the processes of its mesh, over pipes: JSON documents, and tensors with their values.

The agent starts a process with `Start` and gives every process `RoundTask`s. After a task come its tensors
(`TensorHead`), one message each, and `TensorsEnd`: the first process gets the round's parameters and, if it is kept,
the optimizer's state; the others get none. A process answers `Start` with `Ready`, a task with `RoundDone`, either with
`Failed`; before `RoundDone` the first process sends the tensors after the round, one message each. So neither the agent
nor a process ever holds a model as one piece of bytes. Processes keep nothing between rounds, so losing them costs one
round. A process ends when its pipe ends.
"""

import asyncio
import math
import struct
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, TypeVar

import numpy as np
from pydantic_core import to_jsonable_python

from epochal.batching.round_plan import RoundPlan
from epochal.state.config.state_file import LaterMixes
from epochal.state.errors import InvalidDocument
from epochal.state.intervals import BatchId
from epochal.state.model.tensors import Float32Array, wire_bytes
from epochal.state.wire import canonical_json, parse_document
from epochal.trainers.mesh.mesh_options import MeshOptions

MAX_DOCUMENT_BYTES = 16 * 1024**2
MAX_TENSOR_BYTES = 48 * 1024**3
CHUNK_BYTES = 1024**2
"""Values that are written or read at a time."""
ENDED_WITH_AGENT = 3
"""The exit code of a process whose agent is gone."""
_SIZES = struct.Struct(">IQ")
_WIRE_DTYPE = np.dtype("<f4")

Cause = Literal[
    "unavailable",
    "corrupt",
    "out_of_range",
    "rejected",
    "trainer",
    "not_finite",
    "input",
    "memory",
    "called-off",
    "broken",
]
"""The cause of a process's failure: a data error's kind, the trainer, a loss that is not finite, the user's input, the
memory of its device, another process's failure, or another process's end. After `memory` and `broken` the others may
still wait for it."""
Part = Literal["parameters", "inner"]
"""A group of tensors: the model's parameters, or the optimizer's state."""
PARAMETERS: Part = "parameters"
INNER: Part = "inner"


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
        fitting_places: the most places of a micro-batch that may fit into a device's memory; None if nothing is known.
    """

    state: Any
    model: Any
    options: MeshOptions
    process: int
    store: str
    timeout_s: float
    fitting_places: int | None = None


@dataclass(frozen=True, slots=True)
class RoundTask:
    """A round to take part in; every process gets the same.

    Attributes:
        ticket: the client's current ticket for data servers.
        steps_taken: the optimizer's step count.
        inner_names: the names of the tensors of the optimizer's state, which the first process gets.
        keeps_state: whether the answer holds the optimizer's state.
        document_version: of the run document that the client follows, for data servers.
        mixes: the weights to which the run's mix has changed, as the client knows them now.
    """

    plan: RoundPlan
    ticket: str
    steps_taken: int
    inner_names: tuple[str, ...]
    keeps_state: bool
    document_version: int = 0
    mixes: LaterMixes = ()
    kind: Literal["task"] = "task"


@dataclass(frozen=True, slots=True)
class TensorHead:
    """A tensor; its float32 values follow."""

    part: Part
    name: str
    shape: tuple[int, ...]
    kind: Literal["tensor"] = "tensor"


@dataclass(frozen=True, slots=True)
class TensorsEnd:
    """The end of a task's tensors."""

    kind: Literal["end"] = "end"


@dataclass(frozen=True, slots=True)
class Ready:
    """The process has found the others, and computes as `computed` says (`state/model/computed_class.py`)."""

    computed: str
    kind: Literal["ready"] = "ready"


@dataclass(frozen=True, slots=True)
class RoundDone:
    """The round's result: `rows_loaded` as in `rounds.RoundEnd`, `sample_tokens` of this process; else of the first."""

    nats: float
    token_count: int
    steps_taken: int
    rows_loaded: int
    gradient_norm: float | None = None
    sample_tokens: int = 0
    kind: Literal["done"] = "done"


@dataclass(frozen=True, slots=True)
class Failed:
    """The reason for a failure.

    Attributes:
        batch_id: the batches whose data could not be loaded.
        fitting_places: where memory did not suffice, the most places of a micro-batch to try next; None if there is no
            smaller one.
    """

    cause: Cause
    message: str
    batch_id: BatchId | None = None
    fitting_places: int | None = None
    kind: Literal["failed"] = "failed"


@dataclass(frozen=True, slots=True, eq=False)
class SentTensor:
    """A tensor on its way."""

    part: Part
    name: str
    values: Float32Array


Request: TypeAlias = RoundTask | TensorHead | TensorsEnd
Reply: TypeAlias = Ready | RoundDone | Failed
T = TypeVar("T")


async def write_document(writer: asyncio.StreamWriter, document: Any) -> None:
    """Write a document. Raise `OSError` if the other side is gone."""
    text = canonical_json(to_jsonable_python(document) if isinstance(document, Start) else document)
    writer.write(_SIZES.pack(len(text), 0) + text)
    await writer.drain()


async def write_tensor(writer: asyncio.StreamWriter, tensor: SentTensor) -> None:
    """Write a tensor, a piece at a time. Raise `OSError` if the other side is gone."""
    values = wire_bytes(tensor.values)
    text = canonical_json(TensorHead(tensor.part, tensor.name, tensor.values.shape))
    writer.write(_SIZES.pack(len(text), len(values)) + text)
    for start in range(0, len(values), CHUNK_BYTES):
        writer.write(values[start : start + CHUNK_BYTES])
        await writer.drain()


async def read_message(reader: asyncio.StreamReader, kind: type[T] | Any) -> T | SentTensor:
    """Read the next document, or the next tensor if `kind` allows `TensorHead`.

    Raises:
        EOFError: the other side is gone.
        InvalidDocument: the bytes are not a message of this kind.
    """
    document_bytes, value_bytes = _SIZES.unpack(await reader.readexactly(_SIZES.size))
    if document_bytes > MAX_DOCUMENT_BYTES or value_bytes > MAX_TENSOR_BYTES:
        raise InvalidDocument(f"a message of {document_bytes} and {value_bytes} bytes")
    document: T = parse_document(kind, await reader.readexactly(document_bytes))
    shape = document.shape if isinstance(document, TensorHead) else (0,)
    if math.prod(shape) * _WIRE_DTYPE.itemsize != value_bytes:
        raise InvalidDocument(f"{value_bytes} bytes of values for a shape of {shape}")
    if not isinstance(document, TensorHead):
        return document
    values = np.empty(math.prod(shape), _WIRE_DTYPE)
    free = values.view(np.uint8).data
    while free:
        read = await reader.read(min(len(free), CHUNK_BYTES))
        if not read:
            raise EOFError("the other side is gone")
        free[: len(read)] = read
        free = free[len(read) :]
    return SentTensor(document.part, document.name, values.reshape(shape).astype(np.float32, copy=False))
