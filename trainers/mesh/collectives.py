"""Operations of all processes of a mesh together, over `torch.distributed` on the loopback interface.

Each call blocks until every process has made it, in the same order, and raises `RuntimeError` when another process is
gone or does not come within the timeout.
"""

import os
import socket
from collections.abc import Sequence
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from epochal.batching.mesh.torch_mesh import RowBroadcast
from epochal.state.model.tensors import Float32Array
from epochal.trainers.mesh.mesh_messages import Start

FIRST = 0
"""The process that takes the optimizer's steps."""
_INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")


class MeshCollectives:
    """The mesh's processes, connected. Every process makes it at once.

    Operations here are on the host, over gloo.

    Args:
        start: names the mesh, this process, and where the processes meet.
        has_gpus: whether torch's operations on CUDA devices, over NCCL, are connected too.
    """

    def __init__(self, start: Start, *, has_gpus: bool) -> None:
        loopback = next(name for _, name in socket.if_nameindex() if name.startswith("lo"))
        for setting in _INTERFACES:
            os.environ.setdefault(setting, loopback)
        timeout = timedelta(seconds=start.timeout_s)
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if has_gpus else "gloo",
            store=dist.FileStore(start.store, start.options.process_count),
            rank=start.process,
            world_size=start.options.process_count,
            timeout=timeout,
        )
        self.layout = start.options.layout
        self.process = start.process
        self.is_first = start.process == FIRST
        self._rows = RowBroadcast(self.layout, self.process, timeout)

    def any_of(self, value: bool) -> bool:
        """Return whether the value is true in any process."""
        flag = torch.tensor([int(value)])
        dist.all_reduce(flag, op=dist.ReduceOp.MAX)
        return bool(flag.item())

    def share_rows(self, rows: NDArray[np.int32]) -> None:
        """Exchange rows as `RowBroadcast.receive` does."""
        self._rows.receive(rows)

    def rows_from_first(self, own: NDArray[np.int32], parts: Sequence[NDArray[np.int32]] | None) -> None:
        """Fill in this process's rows, `(rows, …)`, from `parts`: every process's, in the first one; None elsewhere."""
        each = None if parts is None else [torch.from_numpy(part) for part in parts]
        dist.scatter(torch.from_numpy(own), each, src=FIRST)

    def from_first(self, values: Float32Array | NDArray[np.int64]) -> None:
        """Overwrite the values with those of the first process."""
        dist.broadcast(torch.from_numpy(values), src=FIRST)

    def sum_to_first(self, values: NDArray[np.float32] | NDArray[np.float64]) -> None:
        """Add the values of all processes up in the first; those of the others are undefined afterwards."""
        dist.reduce(torch.from_numpy(values), dst=FIRST)
