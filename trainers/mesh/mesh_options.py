"""The options of a client's mesh, checked."""

import importlib.util
import math
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from epochal.batching.mesh.layout import BATCH_AXES, MAX_DEVICES, MeshLayout, parse_mesh, spread_over
from epochal.runtime.permissions import Permissions
from epochal.state.errors import InvalidInput
from epochal.trainers.architectures import NUMPY, TORCH
from epochal.trainers.torch.torch_options import DEFAULT_TORCH_OPTIONS, TorchOptions

MAX_PROCESSES = 64
MAX_BATCH_SIZE = 2**16
DEFAULT_BATCH_SIZE = 4
MESH_TRAINERS = (NUMPY, TORCH)
SHARD_AXIS = "fsdp"
"""The axis along which the `torch` trainer shards parameters; along the other batch axes it repeats them."""
MESH_DEVICES = ("auto", "cpu", "cuda")


@dataclass(frozen=True)
class MeshOptions:
    """A client's mesh.

    Attributes:
        mesh: its axes, as `parse_mesh` reads them.
        process_count: number of processes that hold its devices.
        batch_size: rows of one shard in each step of all processes together.
        data: the client's `--data`.
        cache_dir, cache_bytes: as `BlockCache` takes them.
        data_trust, data_insecure: how data servers are asked, as `DataServerAccess` takes it; None for True.
        trainer: one of `MESH_TRAINERS`.
        permissions: what the run's documents may use of this machine.
        torch: how the `torch` trainer computes. Its processes share the machine's CUDA devices out, one each.

    Raises:
        InvalidInput: no such mesh is possible, or PyTorch is not installed; the user's fault.
    """

    mesh: str
    process_count: int
    batch_size: int = DEFAULT_BATCH_SIZE
    data: str | None = None
    cache_dir: str | None = None
    cache_bytes: int = 0
    data_trust: str | None = None
    data_insecure: bool = False
    trainer: str = NUMPY
    permissions: Permissions = field(default_factory=Permissions.of_volunteer)
    torch: TorchOptions = DEFAULT_TORCH_OPTIONS

    def __post_init__(self) -> None:
        if self.trainer not in MESH_TRAINERS:
            raise InvalidInput(f"--mesh goes with --trainer {' or '.join(MESH_TRAINERS)}, not with {self.trainer}")
        if not 1 <= self.process_count <= MAX_PROCESSES:
            raise InvalidInput(f"{self.process_count} processes; allowed: 1 to {MAX_PROCESSES}")
        if not 1 <= self.batch_size <= MAX_BATCH_SIZE:
            raise InvalidInput(f"a batch size of {self.batch_size}; allowed: 1 to {MAX_BATCH_SIZE}")
        if self.layout.global_batch_size > MAX_DEVICES:
            raise InvalidInput(f"mesh {self.mesh} has global batches of more than {MAX_DEVICES} rows")
        if importlib.util.find_spec("torch") is None:
            raise InvalidInput("--mesh needs PyTorch; install epochal[torch]")
        if self.trainer == TORCH:
            self._check_torch()

    @cached_property
    def layout(self) -> MeshLayout:
        """The devices, and which process holds each."""
        return spread_over(parse_mesh(self.mesh), self.process_count, self.batch_size)

    @property
    def shard_grid(self) -> list[list[int]]:
        """The processes of the `torch` trainer: each row holds the model's shards in order, and rows repeat it."""
        sizes = parse_mesh(self.mesh)
        processes = self.layout.processes
        if SHARD_AXIS in sizes:
            processes = np.moveaxis(processes, tuple(sizes).index(SHARD_AXIS), -1)
        grid: list[list[int]] = processes.reshape(-1, sizes.get(SHARD_AXIS, 1)).tolist()
        return grid

    def _check_torch(self) -> None:
        sizes = parse_mesh(self.mesh)
        for axis in sizes:
            if axis not in BATCH_AXES:
                raise InvalidInput(
                    f"mesh {self.mesh} with --trainer torch: axis {axis!r}; allowed: {SHARD_AXIS}, which shards the "
                    f"model, and {' and '.join(one for one in BATCH_AXES if one != SHARD_AXIS)}, which repeat it"
                )
        if self.process_count != math.prod(sizes.values()):
            raise InvalidInput(
                f"{self.process_count} processes for mesh {self.mesh} with --trainer torch; allowed: "
                f"{math.prod(sizes.values())}, one for each device"
            )
        if self.torch.compiles:
            raise InvalidInput("--compile does not go with --mesh; allowed: one of them")
        if self.torch.device not in MESH_DEVICES:
            raise InvalidInput(f"--device {self.torch.device} with --mesh; allowed: {', '.join(MESH_DEVICES)}")
