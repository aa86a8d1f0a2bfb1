"""The layout of a mesh of jax or PyTorch: `compute_batch_size`, for your own training loop.

Runs of Epochal do not use it: their clients spread a mesh over processes themselves (`layout.spread_over`).
"""

from collections.abc import Sequence
from typing import Any

from epochal.batching.mesh.layout import DATA_AXIS, MeshLayout
from epochal.state.errors import InvalidInput


def compute_batch_size(mesh: Any, batch_axes: Sequence[str] = (DATA_AXIS,)) -> tuple[bool, int]:
    """Return whether this process loads data, and how many shards of the global batch it loads.

    Without communication: every process computes it from the mesh. A process's local batch size is its number of shards
    times the rows of a shard.

    Args:
        mesh: a `jax.sharding.Mesh`, or the `DeviceMesh` of `torch.distributed`.
        batch_axes: names of the axes along which rows differ, the outermost first.

    Returns:
        `(should_load, local_shards)`; `(False, 0)` for a process that receives all of its rows.

    Raises:
        InvalidInput: as `layout_of_mesh`.
    """
    layout, process = layout_of_mesh(mesh, batch_axes)
    return layout.compute_batch_size(process)


def layout_of_mesh(mesh: Any, batch_axes: Sequence[str] = (DATA_AXIS,), batch_size: int = 1) -> tuple[MeshLayout, int]:
    """Return the layout of jax's or PyTorch's mesh, and this process's number in it.

    Raises:
        InvalidInput: the mesh is of another type, or has no such axis; the caller's fault.
    """
    package = type(mesh).__module__.partition(".")[0]
    if package in ("jax", "jaxlib"):
        from epochal.batching.mesh import jax_mesh

        return jax_mesh.layout_of_jax(mesh, batch_axes, batch_size)
    if package == "torch":
        from epochal.batching.mesh import torch_mesh

        return torch_mesh.layout_of_torch(mesh, batch_axes, batch_size)
    raise InvalidInput(f"a mesh of type {type(mesh).__name__}; allowed: jax.sharding.Mesh, torch's DeviceMesh")
