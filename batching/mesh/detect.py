"""The layout of a mesh that jax or PyTorch made: `compute_batch_size` for a training loop of a user's own.

No run of Epochal goes through here: its clients spread a mesh over processes themselves (`layout.spread_over`).
"""

from collections.abc import Sequence
from typing import Any

from batching.mesh.layout import DATA_AXIS, MeshLayout
from state.errors import InvalidInput


def compute_batch_size(mesh: Any, batch_axes: Sequence[str] = (DATA_AXIS,)) -> tuple[bool, int]:
    """`(should_load, local_shards)` of this process, for a `jax.sharding.Mesh` or a `torch.distributed` `DeviceMesh`.

    No collective: every process computes it from the mesh.

    Raises:
        InvalidInput: it is neither, or has no such axis.
    """
    layout, process = layout_of_mesh(mesh, batch_axes)
    return layout.compute_batch_size(process)


def layout_of_mesh(mesh: Any, batch_axes: Sequence[str] = (DATA_AXIS,), batch_size: int = 1) -> tuple[MeshLayout, int]:
    """The layout of jax's or PyTorch's mesh, and this process's number in it. Raises what `compute_batch_size` does."""
    package = type(mesh).__module__.partition(".")[0]
    if package in ("jax", "jaxlib"):
        from batching.mesh import jax_mesh

        return jax_mesh.layout_of_jax(mesh, batch_axes, batch_size)
    if package == "torch":
        from batching.mesh import torch_mesh

        return torch_mesh.layout_of_torch(mesh, batch_axes, batch_size)
    raise InvalidInput(f"a mesh of type {type(mesh).__name__}; allowed: jax.sharding.Mesh, torch's DeviceMesh")
