"""The layout of a mesh, and which of its processes loads which rows of a global batch.

A mesh is a grid of devices with named axes. The global batch is cut into *shards* along the batch axes, `batch_size`
rows each; along every other axis the devices hold the same rows. A process loads a shard when it holds, for that shard,
the device at index 0 of every axis that is not a batch axis, so every row is loaded exactly once, by one process;
the others that need it receive it by broadcast. Devices with the same rows divide them, so every row is computed once.
A global batch with fewer rows is spread over all devices, the processes taking turns.

Which process holds which device is an input. Everything here is computed from it without communication, so that all
processes agree.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from epochal.state.errors import InvalidInput

MAX_DEVICES = 2**20
MAX_SIZE_DIGITS = 18
DATA_AXIS = "data"
BATCH_AXES = (DATA_AXIS, "replica", "fsdp")
"""The usual names of axes along which rows differ."""


@dataclass(frozen=True, slots=True)
class ProcessLoading:
    """One process's part in a global batch. Shards and rows are numbered within the global batch, from 0.

    Attributes:
        should_load: whether the process loads any rows.
        loaded_shards: the shards that it loads, ascending.
        local_batch_size: number of rows that it loads.
        loaded_rows: `[start, stop)` ranges of the rows that it loads of a full global batch; neighbours joined.
        needed_shards: the shards on which its devices compute.
        received_from: for each needed shard that it does not load, the process that does.
    """

    should_load: bool
    loaded_shards: tuple[int, ...]
    local_batch_size: int
    loaded_rows: tuple[tuple[int, int], ...]
    needed_shards: tuple[int, ...]
    received_from: dict[int, int]

    @property
    def local_shards(self) -> int:
        """Number of shards that it loads."""
        return len(self.loaded_shards)


@dataclass(frozen=True, eq=False)
class MeshLayout:
    """A mesh of devices, and which process holds each of them.

    Attributes:
        axes: the axes' names.
        processes: int64, one dimension for each axis: the process of the device at each coordinate.
        batch_axes: the axes along which the global batch is cut, the outermost first; not always the mesh's order.
        batch_size: number of rows of one shard.

    Raises:
        InvalidInput: the parts do not fit together; the message says which.
    """

    axes: tuple[str, ...]
    processes: NDArray[np.int64]
    batch_axes: tuple[str, ...] = (DATA_AXIS,)
    batch_size: int = 1

    def __post_init__(self) -> None:
        if len(set(self.axes)) != len(self.axes) or not all(self.axes) or not self.axes:
            raise InvalidInput(f"mesh axes {', '.join(self.axes) or '(none)'}; allowed: one or more different names")
        if self.processes.ndim != len(self.axes) or not self.processes.size:
            raise InvalidInput(f"a mesh of shape {self.processes.shape} for the axes {', '.join(self.axes)}")
        if self.processes.size > MAX_DEVICES or int(self.processes.min()) < 0:
            raise InvalidInput(
                f"a mesh of {self.processes.size} devices; allowed: at most {MAX_DEVICES}, processes from 0"
            )
        unknown = [axis for axis in self.batch_axes if axis not in self.axes]
        if unknown or len(set(self.batch_axes)) != len(self.batch_axes):
            raise InvalidInput(
                f"batch axes {', '.join(self.batch_axes)}; allowed: different ones of {', '.join(self.axes)}"
            )
        if self.batch_size < 1:
            raise InvalidInput(f"a batch size of {self.batch_size} per shard; allowed: 1 or more")

    @property
    def other_axes(self) -> tuple[str, ...]:
        """The axes along which devices hold the same rows, in the mesh's order."""
        return tuple(axis for axis in self.axes if axis not in self.batch_axes)

    @property
    def shard_count(self) -> int:
        """Number of shards of the global batch."""
        return math.prod(self.processes.shape[self.axes.index(axis)] for axis in self.batch_axes)

    @property
    def replica_count(self) -> int:
        """Number of devices that hold the same rows."""
        return self.processes.size // self.shard_count

    @property
    def global_batch_size(self) -> int:
        """Number of rows of the global batch."""
        return self.batch_size * self.shard_count

    @cached_property
    def holders(self) -> NDArray[np.int64]:
        """`(shard_count, replica_count)`: the process of each device, by its shard and its place among the replicas."""
        order = [self.axes.index(axis) for axis in (*self.batch_axes, *self.other_axes)]
        return self.processes.transpose(order).reshape(self.shard_count, self.replica_count)

    @cached_property
    def _turns(self) -> NDArray[np.int64]:
        """The devices, by their places in `holders`, in an order in which the processes take turns."""
        held = self.holders.ravel()
        grouped = np.argsort(held, kind="stable")
        turn = np.empty_like(held)
        turn[grouped] = np.arange(held.size) - np.searchsorted(held[grouped], held[grouped])
        return np.lexsort((held, turn))

    def row_devices(self, row_count: int) -> NDArray[np.int64]:
        """Return the device that computes each row of a global batch, `(row_count,)`, ascending.

        Devices are numbered by their places in `holders`, the last axis fastest, so a shard's rows are neighbours.
        Devices have equally many rows, or one more, and so have processes with equally many devices. Only where
        `batch_size` is no multiple of `replica_count`, a full shard's next row goes to another shard.

        Args:
            row_count: at most `global_batch_size`.
        """
        least = row_count // self.processes.size
        counts = np.full(self.processes.size, least)
        room = np.full(self.shard_count, self.batch_size - least * self.replica_count)
        left = row_count - int(counts.sum())
        while left:
            for device in self._turns.tolist():
                shard = device // self.replica_count
                if left and room[shard]:
                    counts[device] += 1
                    room[shard] -= 1
                    left -= 1
        return np.repeat(np.arange(counts.size), counts)

    def loading(self, process: int) -> ProcessLoading:
        """Return the shards that a process loads, needs and receives; none for a process without a device."""
        loaders = self.holders[:, 0]
        loaded = np.flatnonzero(loaders == process).tolist()
        needed = np.flatnonzero((self.holders == process).any(axis=1)).tolist()
        received_from = {shard: int(loaders[shard]) for shard in needed if shard not in loaded}
        row_count = self.batch_size * len(loaded)
        return ProcessLoading(bool(loaded), tuple(loaded), row_count, self._rows(loaded), tuple(needed), received_from)

    def compute_batch_size(self, process: int) -> tuple[bool, int]:
        """Return `(should_load, local_shards)` of a process. Its local batch size is `batch_size × local_shards`."""
        loading = self.loading(process)
        return loading.should_load, loading.local_shards

    @property
    def io_saved(self) -> float:
        """Factor by which fewer rows are loaded than if each process loaded all it needs. No run uses it."""
        return sum(len(set(row)) for row in self.holders.tolist()) / self.shard_count

    def _rows(self, shards: Sequence[int]) -> tuple[tuple[int, int], ...]:
        ranges: list[tuple[int, int]] = []
        for shard in shards:
            start, stop = shard * self.batch_size, (shard + 1) * self.batch_size
            if ranges and ranges[-1][1] == start:
                ranges[-1] = (ranges[-1][0], stop)
            else:
                ranges.append((start, stop))
        return tuple(ranges)


def parse_mesh(text: str) -> dict[str, int]:
    """Parse a mesh such as `data=2,tensor=2`: its axes' sizes by name, in order; `InvalidInput` for another form."""
    sizes: dict[str, int] = {}
    for part in text.split(","):
        name, separator, size = (piece.strip() for piece in part.partition("="))
        is_size = size.isdecimal() and len(size) <= MAX_SIZE_DIGITS and int(size) > 0
        if not name.isidentifier() or not separator or not is_size or name in sizes:
            raise InvalidInput(f"mesh {text!r}: {part!r}; allowed: NAME=SIZE, as in data=2,tensor=2, each name once")
        sizes[name] = int(size)
    if math.prod(sizes.values()) > MAX_DEVICES:
        raise InvalidInput(f"mesh {text!r} has more than {MAX_DEVICES} devices")
    return sizes


def spread_over(sizes: dict[str, int], process_count: int, batch_size: int) -> MeshLayout:
    """Return a mesh whose devices, in order (the last axis fastest), are spread evenly over processes.

    The axes named in `BATCH_AXES` are batch axes.

    Raises:
        InvalidInput: there is no process, more processes than devices, or no batch axis; the user's fault.
    """
    devices = math.prod(sizes.values())
    if not 1 <= process_count <= devices:
        raise InvalidInput(f"{process_count} processes for a mesh of {devices} devices; allowed: 1 to {devices}")
    processes = np.arange(devices, dtype=np.int64) * process_count // devices
    axes = tuple(sizes)
    batch_axes = tuple(axis for axis in axes if axis in BATCH_AXES)
    if not batch_axes:
        raise InvalidInput(f"a mesh of the axes {', '.join(axes)}; one must be a batch axis: {', '.join(BATCH_AXES)}")
    return MeshLayout(axes, processes.reshape(tuple(sizes.values())), batch_axes, batch_size)
