"""The options of a client's mesh, checked."""

import importlib.util
from dataclasses import dataclass
from functools import cached_property

from batching.mesh.layout import MAX_DEVICES, MeshLayout, parse_mesh, spread_over
from state.errors import InvalidInput

MAX_PROCESSES = 64
MAX_BATCH_SIZE = 2**16
DEFAULT_BATCH_SIZE = 4


@dataclass(frozen=True)
class MeshOptions:
    """A client's mesh.

    Attributes:
        mesh: its axes, as `parse_mesh` reads them.
        process_count: number of processes that hold its devices.
        batch_size: rows of one shard in each step of all processes together.
        data: the client's `--data`.
        cache_dir, cache_bytes: as `BlockCache` takes them.

    Raises:
        InvalidInput: no such mesh is possible, or PyTorch is not installed; the user's fault.
    """

    mesh: str
    process_count: int
    batch_size: int = DEFAULT_BATCH_SIZE
    data: str | None = None
    cache_dir: str | None = None
    cache_bytes: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.process_count <= MAX_PROCESSES:
            raise InvalidInput(f"{self.process_count} processes; allowed: 1 to {MAX_PROCESSES}")
        if not 1 <= self.batch_size <= MAX_BATCH_SIZE:
            raise InvalidInput(f"a batch size of {self.batch_size}; allowed: 1 to {MAX_BATCH_SIZE}")
        if self.layout.global_batch_size > MAX_DEVICES:
            raise InvalidInput(f"mesh {self.mesh} has global batches of more than {MAX_DEVICES} rows")
        if importlib.util.find_spec("torch") is None:
            raise InvalidInput("--mesh needs PyTorch; install epochal[torch]")

    @cached_property
    def layout(self) -> MeshLayout:
        """The devices, and which process holds each."""
        return spread_over(parse_mesh(self.mesh), self.process_count, self.batch_size)
