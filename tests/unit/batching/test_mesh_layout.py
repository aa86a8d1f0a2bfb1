"""Who loads what: the source's tables, and every layout against a plain reading of the rule."""

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochal.batching.mesh.detect import compute_batch_size
from epochal.batching.mesh.layout import MeshLayout, parse_mesh, spread_over
from epochal.state.errors import InvalidInput


def layout(processes: Any, axes: tuple[str, ...] = ("data", "tensor"), **options: Any) -> MeshLayout:
    return MeshLayout(axes, np.array(processes, dtype=np.int64), **{"batch_size": 4, **options})


# The source's tables of batch size adaptation; rows are `data`, columns `tensor`, entries processes

BY_TENSOR_4 = [[0, 1, 2, 3]] * 4
BY_DATA_4 = [[host] * 4 for host in range(4)]


@pytest.mark.parametrize(
    ("processes", "shards", "global_batch", "saved"),
    [
        ([[0, 1]], [1, 0], 4, 2),
        ([[0], [1]], [1, 1], 8, 1),
        ([[0, 1], [0, 1]], [2, 0], 8, 2),
        ([[0, 0], [1, 1]], [1, 1], 8, 1),
        (BY_TENSOR_4, [4, 0, 0, 0], 16, 4),
        (BY_DATA_4, [1, 1, 1, 1], 16, 1),
        ([[0, 0], [0, 0]], [2], 8, 1),
        ([[3, 1], [0, 1]], [1, 0, 0, 1], 8, 2),
    ],
)
def test_tables_of_the_source(processes: Any, shards: list[int], global_batch: int, saved: float) -> None:
    mesh = layout(processes)
    assert mesh.global_batch_size == global_batch
    assert mesh.io_saved == saved
    for process, local_shards in enumerate(shards):
        loading = mesh.loading(process)
        assert mesh.compute_batch_size(process) == (local_shards > 0, local_shards)
        assert loading.local_batch_size == 4 * local_shards
        assert loading.should_load == (local_shards > 0)


def test_rows_are_loaded_here_and_received_there() -> None:
    mesh = layout([[0, 1], [0, 1]])
    host, other = mesh.loading(0), mesh.loading(1)
    assert (host.loaded_shards, host.loaded_rows, host.received_from) == ((0, 1), ((0, 8),), {})
    assert (other.loaded_rows, other.needed_shards) == ((), (0, 1))
    assert other.received_from == {0: 0, 1: 0}
    apart = layout([[0], [1], [0]]).loading(0)
    assert apart.loaded_rows == ((0, 4), (8, 12))


def test_process_outside_the_mesh_has_no_part() -> None:
    outside = layout([[0, 1]]).loading(7)
    assert (outside.should_load, outside.local_shards, outside.local_batch_size) == (False, 0, 0)
    assert (outside.needed_shards, outside.loaded_rows, outside.received_from) == ((), (), {})


@st.composite
def layouts(draw: st.DrawFn) -> MeshLayout:
    axes = draw(st.permutations(["data", "tensor", "fsdp", "pipeline"]))[: draw(st.integers(1, 4))]
    shape = tuple(draw(st.integers(1, 4)) for _ in axes)
    processes = draw(
        st.lists(st.integers(0, 5), min_size=int(np.prod(shape)), max_size=int(np.prod(shape)))  # uneven hosts too
    )
    batch_axes = tuple(draw(st.permutations(axes))[: draw(st.integers(1, len(axes)))])
    held = np.array(processes, dtype=np.int64).reshape(shape)
    return MeshLayout(tuple(axes), held, batch_axes, draw(st.integers(1, 5)))


@given(layouts())
def test_every_layout_is_the_rule_read_plainly(mesh: MeshLayout) -> None:
    sizes = [mesh.processes.shape[mesh.axes.index(axis)] for axis in mesh.batch_axes]
    loaded_by: dict[int, set[int]] = {}
    needed_by: dict[int, set[int]] = {}
    for coordinate in itertools.product(*map(range, mesh.processes.shape)):
        place = dict(zip(mesh.axes, coordinate, strict=True))
        shard = 0
        for axis, size in zip(mesh.batch_axes, sizes, strict=True):
            shard = shard * size + place[axis]
        process = int(mesh.processes[coordinate])
        needed_by.setdefault(process, set()).add(shard)
        if all(place[axis] == 0 for axis in mesh.other_axes):
            loaded_by.setdefault(process, set()).add(shard)
    all_rows: list[int] = []
    for process in range(7):
        loading = mesh.loading(process)
        loaded, needed = loaded_by.get(process, set()), needed_by.get(process, set())
        assert set(loading.loaded_shards) == loaded
        assert set(loading.needed_shards) == needed
        assert set(loading.received_from) == needed - loaded
        for shard, source in loading.received_from.items():
            assert shard in loaded_by[source]
        rows = [row for start, stop in loading.loaded_rows for row in range(start, stop)]
        assert rows == [
            row for shard in sorted(loaded) for row in range(shard * mesh.batch_size, (shard + 1) * mesh.batch_size)
        ]
        assert loading.local_batch_size == len(rows) == mesh.batch_size * loading.local_shards
        all_rows += rows
    assert sorted(all_rows) == list(range(mesh.global_batch_size)), "every row is loaded once, by one process"
    assert mesh.io_saved == sum(map(len, needed_by.values())) / mesh.shard_count


@given(layouts(), st.data())
def test_rows_are_spread_evenly_over_devices_and_processes(mesh: MeshLayout, data: st.DataObject) -> None:
    count = data.draw(st.integers(0, mesh.global_batch_size))
    devices = mesh.row_devices(count)
    assert devices.tolist() == sorted(devices.tolist())
    assert len(devices) == count
    of_shards = np.bincount(devices // mesh.replica_count, minlength=mesh.shard_count)
    assert of_shards.max() <= mesh.batch_size
    if count == mesh.global_batch_size:
        assert set(of_shards.tolist()) == {mesh.batch_size}
    if mesh.batch_size % mesh.replica_count:
        return  # a full shard passes a row on
    of_devices = np.bincount(devices, minlength=mesh.holders.size)
    assert of_devices.max() - of_devices.min() <= 1
    owners = np.bincount(mesh.holders.ravel()[devices], minlength=6)
    held = np.bincount(mesh.holders.ravel(), minlength=6)
    for number in set(held.tolist()) - {0}:
        alike = owners[held == number]
        assert alike.max() - alike.min() <= 1, "processes with equally many devices"
    if count >= np.count_nonzero(held):
        assert (owners[held > 0] > 0).all(), "no process is idle"


@pytest.mark.parametrize(
    ("processes", "count", "wanted"),
    [
        ([[0], [1]], 3, [0, 0, 1]),
        ([[0], [1]], 1, [0]),
        ([[0], [0], [1], [1]], 2, [0, 1]),
        ([[0, 1], [0, 1]], 2, [0, 1]),
        ([[0, 0, 0], [1, 1, 1]], 5, [0, 0, 0, 1, 1]),
    ],
)
def test_few_rows_go_to_different_processes(processes: Any, count: int, wanted: list[int]) -> None:
    mesh = layout(processes)
    assert mesh.holders.ravel()[mesh.row_devices(count)].tolist() == wanted


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: layout([[0]], ("data", "data")), "different names"),
        (lambda: layout([0]), "a mesh of shape"),
        (lambda: layout([[-1, 0]]), "processes from 0"),
        (lambda: layout([[0, 0]], batch_axes=("dat",)), "batch axes dat; allowed: different ones of data, tensor"),
        (lambda: layout([[0, 0]], batch_size=0), "batch size of 0 per shard"),
        (lambda: parse_mesh("data"), "allowed: NAME=SIZE"),
        (lambda: parse_mesh("data=2,data=2"), "each name once"),
        (lambda: parse_mesh("data=0"), "allowed: NAME=SIZE"),
        (lambda: parse_mesh("data=2,"), "allowed: NAME=SIZE"),
        (lambda: parse_mesh("data=1048577"), "more than 1048576 devices"),
        (lambda: parse_mesh("data=" + "9" * 5000), "allowed: NAME=SIZE"),
        (lambda: spread_over({"data": 2}, 3, 1), "3 processes for a mesh of 2 devices; allowed: 1 to 2"),
        (lambda: spread_over({"tensor": 2}, 1, 1), "one must be a batch axis: data"),
        (lambda: compute_batch_size([[0]]), "a mesh of type list; allowed: jax.sharding.Mesh"),
    ],
)
def test_mistakes_are_named(make: Any, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        make()


def test_mesh_of_the_command_line_is_spread_in_order() -> None:
    sizes = parse_mesh("data=2, tensor=2")
    assert sizes == {"data": 2, "tensor": 2}
    assert spread_over(sizes, 2, 1).processes.tolist() == [[0, 0], [1, 1]]
    assert spread_over(sizes, 3, 1).processes.tolist() == [[0, 0], [1, 2]]
    assert spread_over({"tensor": 2, "data": 2}, 2, 1).loading(0).local_shards == 2
    assert spread_over({"data": 2, "fsdp": 2, "tensor": 2}, 8, 3).global_batch_size == 12
