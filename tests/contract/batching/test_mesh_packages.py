"""Meshes of jax and PyTorch: what `compute_batch_size` says of them, in one process and for any rank."""

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from epochal.batching.mesh.detect import compute_batch_size, layout_of_mesh
from epochal.batching.mesh.layout import MeshLayout
from epochal.state.errors import InvalidInput
from tests.support.drive.other_process import OtherProcess, other_process
from tests.support.heavy import need_module


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[OtherProcess]:
    """A process for packages that keep state of their own."""
    with other_process() as process:
        yield process


def torch_ranks(shape: tuple[int, ...], axes: tuple[str, ...], batch_axes: tuple[str, ...]) -> list[tuple[bool, int]]:
    """What each rank is told of a `DeviceMesh`; one rank more than the mesh has."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import DeviceMesh
    from torch.testing._internal.distributed.fake_pg import FakeStore

    found = []
    size = int(np.prod(shape))
    for rank in range(size + 1):
        dist.init_process_group("fake", rank=rank, world_size=size + 1, store=FakeStore())
        mesh = DeviceMesh("cpu", np.arange(size).reshape(shape).tolist(), mesh_dim_names=axes)
        found.append(compute_batch_size(mesh, batch_axes))
        dist.destroy_process_group()
    return found


@pytest.mark.parametrize(
    ("shape", "axes", "batch_axes"),
    [
        ((1, 2), ("data", "tensor"), ("data",)),
        ((2, 1), ("data", "tensor"), ("data",)),
        ((2, 2), ("data", "tensor"), ("data",)),
        ((4, 4), ("data", "tensor"), ("data",)),
        ((2, 3, 2), ("replica", "fsdp", "tensor"), ("replica", "fsdp")),
        ((2, 2, 2, 2), ("pipeline", "data", "tensor", "fsdp"), ("fsdp", "data")),
    ],
)
async def test_torch_mesh_of_a_rank_per_device(
    elsewhere: OtherProcess, shape: tuple[int, ...], axes: tuple[str, ...], batch_axes: tuple[str, ...]
) -> None:
    need_module("torch")
    found = await elsewhere.ask(torch_ranks, shape, axes, batch_axes)
    other = [number for number, axis in enumerate(axes) if axis not in batch_axes]
    for rank, place in enumerate(np.ndindex(*shape)):
        loads = all(place[number] == 0 for number in other)
        assert found[rank] == (loads, int(loads)), place
    assert found[-1] == (False, 0), "it holds no device"


def torch_rows(rank: int, store: str) -> tuple[list[list[int]], int]:
    """What a rank has after a broadcast in an uneven mesh of three ranks, and what four add up in a later group."""
    import os
    import socket
    from datetime import timedelta

    import torch
    import torch.distributed as dist

    from epochal.batching.mesh.torch_mesh import RowBroadcast

    os.environ["GLOO_SOCKET_IFNAME"] = next(name for _, name in socket.if_nameindex() if name.startswith("lo"))
    bound = timedelta(seconds=30)
    dist.init_process_group("gloo", store=dist.FileStore(store, 4), rank=rank, world_size=4, timeout=bound)
    layout = MeshLayout(("data", "tensor"), np.array([[0, 1], [0, 2]]), batch_size=1)
    rows = np.zeros((len(layout.loading(rank).needed_shards), 2), dtype=np.int32)
    if rank == 0:
        rows[:] = [[5, 5], [6, 6]]  # process 0 loads both shards
    RowBroadcast(layout, rank).receive(rows)
    total = torch.ones(1)
    dist.all_reduce(total, group=dist.new_group([0, 1, 2, 3]))
    dist.destroy_process_group()
    return rows.tolist(), int(total.item())


@pytest.mark.nightly
async def test_torch_rows_reach_an_uneven_mesh_and_pass_a_process_outside(tmp_path: Path) -> None:
    need_module("torch")
    with contextlib.ExitStack() as stack:
        ranks = [stack.enter_context(other_process()) for _ in range(4)]
        async with asyncio.TaskGroup() as group:
            asked = [
                group.create_task(process.ask(torch_rows, rank, str(tmp_path / "store")))
                for rank, process in enumerate(ranks)
            ]
    assert [task.result() for task in asked] == [([[5, 5], [6, 6]], 4), ([[5, 5]], 4), ([[6, 6]], 4), ([], 4)]


def jax_alone() -> list[tuple[tuple[bool, int], int, float, list[list[int]]]]:
    import os

    os.environ |= {"XLA_FLAGS": "--xla_force_host_platform_device_count=8", "JAX_PLATFORMS": "cpu"}
    import jax
    from jax.sharding import Mesh

    from epochal.batching.mesh.jax_mesh import global_rows

    found = []
    for shape, axes, batch_axes in (
        ((2, 4), ("data", "tensor"), ("data",)),
        ((2, 2, 2), ("fsdp", "tensor", "data"), ("data", "fsdp")),
        ((8, 1), ("data", "tensor"), ("data",)),
    ):
        mesh = Mesh(np.array(jax.devices()[::-1]).reshape(shape), axes)
        layout, process = layout_of_mesh(mesh, batch_axes, 3)
        rows = np.arange(layout.global_batch_size * 2, dtype=np.int32).reshape(-1, 2)
        array = global_rows(mesh, rows, 3, batch_axes)
        assert (np.asarray(array) == rows).all()
        assert {part.data.shape for part in array.addressable_shards} == {(3, 2)}
        held = sorted(int(np.asarray(part.data)[0, 0]) // 6 for part in array.addressable_shards)
        shards = [held.count(shard) for shard in range(layout.shard_count)]
        assert set(shards) == {layout.replica_count}, "each shard on every device along the other axes"
        found.append((compute_batch_size(mesh, batch_axes), process, layout.io_saved, [shards]))
        with pytest.raises(InvalidInput, match="2 rows for"):
            global_rows(mesh, rows[:2], 3, batch_axes)
    with pytest.raises(InvalidInput, match="AbstractMesh has no devices"):
        compute_batch_size(mesh.abstract_mesh)
    with pytest.raises(InvalidInput, match="batch axes model; allowed: different ones of data, tensor"):
        compute_batch_size(mesh, ("model",))
    return found


async def test_jax_mesh_of_one_process_loads_all_and_assembles_any_order(elsewhere: OtherProcess) -> None:
    need_module("jax")
    found = await elsewhere.ask(jax_alone)
    assert [(loads, process, saved) for loads, process, saved, _ in found] == [
        ((True, 2), 0, 1.0),
        ((True, 4), 0, 1.0),
        ((True, 8), 0, 1.0),
    ]


def test_something_else_is_no_mesh() -> None:
    with pytest.raises(InvalidInput, match=r"a mesh of type dict; allowed: jax\.sharding\.Mesh, torch's DeviceMesh"):
        compute_batch_size({"data": 2})
