"""Meshes of jax: the layout of a `jax.sharding.Mesh`, and global arrays of rows that are spread over the hosts.

For your own training loop; runs of Epochal do not use it.
"""

from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from numpy.typing import NDArray

from epochal.batching.mesh.layout import DATA_AXIS, MeshLayout
from epochal.state.errors import InvalidInput

MAX_KEPT_SUMS = 16


def layout_of_jax(mesh: Mesh, batch_axes: Sequence[str], batch_size: int = 1) -> tuple[MeshLayout, int]:
    """Return a mesh's layout, and this process's index. Raises `InvalidInput` if it has no devices or no batch axis."""
    if not isinstance(mesh, Mesh):
        raise InvalidInput(f"a mesh of type {type(mesh).__name__} has no devices; allowed: jax.sharding.Mesh")
    processes = np.array([device.process_index for device in mesh.devices.flat], dtype=np.int64)
    layout = MeshLayout(tuple(mesh.axis_names), processes.reshape(mesh.devices.shape), tuple(batch_axes), batch_size)
    return layout, jax.process_index()


def global_rows(mesh: Mesh, rows: NDArray[Any], batch_size: int, batch_axes: Sequence[str] = (DATA_AXIS,)) -> jax.Array:
    """Return the global batch as one array, from the rows of each process. Every process of the mesh must call it.

    Along the axes that are not batch axes, one device has the rows and the others have zeros; summing them broadcasts.

    Args:
        rows: `(needed_shards · batch_size, …)`, in the order of this process's shards; zeros where another process
            loads them.
        batch_size: number of rows of one shard.

    Returns:
        `(batch_size · shard_count, …)`, sharded over the batch axes and replicated along the others.

    Raises:
        InvalidInput: `rows` has another number of rows, or this process holds no device of the mesh.
    """
    layout, process = layout_of_jax(mesh, batch_axes, batch_size)
    loading = layout.loading(process)
    if not loading.needed_shards:
        raise InvalidInput(f"process {process} holds no device of the mesh, and so no part of its arrays")
    if len(rows) != len(loading.needed_shards) * batch_size:
        raise InvalidInput(f"{len(rows)} rows for {len(loading.needed_shards)} shards of {batch_size}")
    spec = PartitionSpec(layout.other_axes or None, layout.batch_axes)
    stacked = NamedSharding(mesh, spec)
    shape = (layout.replica_count, layout.global_batch_size, *rows.shape[1:])
    replicas = np.unique(np.argwhere(layout.holders == process)[:, 1])
    if _is_block(layout, process, replicas):
        held = np.zeros((len(replicas), *rows.shape), dtype=rows.dtype)
        held[0] = rows if replicas[0] == 0 else 0
        parts = jax.make_array_from_process_local_data(stacked, held, shape)
    else:
        parts = jax.make_array_from_callback(shape, stacked, partial(_part, layout, loading.needed_shards, rows))
    return _sum_of(mesh, layout.batch_axes)(parts)


def _is_block(layout: MeshLayout, process: int, replicas: NDArray[np.int64]) -> bool:
    """Return whether each process holds a full block of shards × replicas, and all blocks have the same size."""
    held = layout.holders == process
    shards = int(held.any(axis=1).sum())
    counts = {int((layout.holders == other).sum()) for other in np.unique(layout.holders)}
    widths = {int((layout.holders == other).any(axis=0).sum()) for other in np.unique(layout.holders)}
    return int(held.sum()) == shards * len(replicas) and len(counts) == len(widths) == 1


def _part(layout: MeshLayout, needed: tuple[int, ...], rows: NDArray[Any], index: tuple[slice, ...]) -> NDArray[Any]:
    """Return one device's part of the stacked array: its shard's rows for the first replica, zeros for the others."""
    first, start = index[0].start or 0, index[1].start or 0
    at = needed.index(start // layout.batch_size) * layout.batch_size
    own = rows[at : at + layout.batch_size]
    return (own if first == 0 else np.zeros_like(own))[None]


@lru_cache(MAX_KEPT_SUMS)
def _sum_of(mesh: Mesh, batch_axes: tuple[str, ...]) -> Any:
    sharding = NamedSharding(mesh, PartitionSpec(batch_axes))
    return jax.jit(lambda parts: parts.sum(axis=0, dtype=parts.dtype), out_shardings=sharding)
