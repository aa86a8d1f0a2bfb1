"""Meshes of PyTorch: the layout of a `DeviceMesh`, and rows broadcast along the axes that are not batch axes."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from epochal.batching.mesh.layout import MeshLayout


def layout_of_torch(mesh: Any, batch_axes: Sequence[str], batch_size: int = 1) -> tuple[MeshLayout, int]:
    """Return a `DeviceMesh`'s layout, and this process's rank; `InvalidInput` if it has no names or batch axis."""
    axes = tuple(mesh.mesh_dim_names or ())
    ranks = np.array(mesh.mesh.tolist(), dtype=np.int64)
    return MeshLayout(axes, ranks, tuple(batch_axes), batch_size), dist.get_rank()


@dataclass(frozen=True, slots=True)
class _Broadcast:
    """One message: neighbouring rows, from the process that loads them to those that need them."""

    group: Any
    source: int
    start: int
    stop: int


class RowBroadcast:
    """Sends rows from the process that loads them to the processes that need them.

    Every process of the default process group must create it, also those outside the mesh: PyTorch numbers the groups
    that a process creates, and a process that skipped one would wait forever in the next one.

    Args:
        layout: the mesh; its processes are ranks of the default process group.
        process: this process's rank.
        timeout: time limit of each message; None for torch's own, of minutes.
    """

    def __init__(self, layout: MeshLayout, process: int, timeout: timedelta | None = None) -> None:
        groups: dict[tuple[int, ...], Any] = {}
        for holders in layout.holders.tolist():
            members = tuple(sorted(set(holders)))
            if len(members) > 1 and members not in groups:
                groups[members] = dist.new_group(
                    list(members), timeout=timeout
                )  # by every process, and in the same order
        self._plan = _planned(layout, process, groups)

    def receive(self, rows: NDArray[np.int32]) -> None:
        """Fill in the rows that other processes load, and send those that others need. Blocks until both are done.

        Args:
            rows: `(needed_shards · batch_size, …)`, contiguous, in the order of this process's shards.

        Raises:
            RuntimeError: another process ended, or did not answer within the process group's timeout.
        """
        whole = torch.from_numpy(rows)
        for part in self._plan:
            dist.broadcast(whole[part.start : part.stop], src=part.source, group=part.group)


def _planned(layout: MeshLayout, process: int, groups: dict[tuple[int, ...], Any]) -> list[_Broadcast]:
    """Return this process's messages in the order of the shards, which all processes share; neighbours joined."""
    found: list[_Broadcast] = []
    holders = layout.holders.tolist()
    joined: tuple[tuple[int, ...], int, int] | None = None
    for number, shard in enumerate(layout.loading(process).needed_shards):
        members, source = tuple(sorted(set(holders[shard]))), holders[shard][0]
        if len(members) == 1:
            continue
        start, stop = number * layout.batch_size, (number + 1) * layout.batch_size
        if joined == (members, source, shard - 1):
            start = found.pop().start
        found.append(_Broadcast(groups[members], source, start, stop))
        joined = (members, source, shard)
    return found
