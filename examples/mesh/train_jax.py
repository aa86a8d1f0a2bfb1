"""One host of a jax mesh: loads its rows, and assembles global arrays. Started once per host by the launch scripts.

    python train_jax.py COORDINATOR HOST HOSTS MESH LAYOUT FOLDER

MESH is as in `data=2,tensor=2`. LAYOUT says which devices a host has: those of one `tensor` place (`tensor`), of one
`data` place (`data`), or of another `tensor` place in each row (`diagonal`).
"""

import asyncio
import os
import sys
from pathlib import Path

import numpy as np
from mesh_example import BATCH_SIZE, Host
from numpy.typing import NDArray

from epochal import RowArrays, compute_batch_size, layout_of_mesh, parse_mesh


def main(coordinator: str, host: int, hosts: int, mesh_text: str, order: str, folder: Path) -> None:
    sizes = parse_mesh(mesh_text)
    data, tensor = sizes["data"], sizes["tensor"]
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={data * tensor // hosts}"
    os.environ["JAX_PLATFORMS"] = "cpu"
    import jax
    from jax.experimental import multihost_utils
    from jax.sharding import Mesh

    from epochal import global_rows

    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(
        coordinator, hosts, host, initialization_timeout=60, coordinator_bind_address=coordinator
    )
    devices = np.array(sorted(jax.devices(), key=lambda device: (device.process_index, device.id)))
    grid = devices.reshape(data, tensor) if order == "data" else devices.reshape(tensor, data).T
    if order == "diagonal":
        grid = np.array([np.roll(row, at) for at, row in enumerate(grid)])
    mesh = Mesh(grid, ("data", "tensor"))

    should_load, local_shards = compute_batch_size(mesh)
    layout, process = layout_of_mesh(mesh, batch_size=BATCH_SIZE)
    this = Host(layout, process)
    this.introduce(should_load, local_shards)

    def assemble(rows: RowArrays) -> NDArray[np.int32]:
        array = global_rows(mesh, rows.data, BATCH_SIZE)
        assert array.shape == (layout.global_batch_size, rows.data.shape[1])
        for part in array.addressable_shards:  # replicated along `tensor`, cut along `data`
            assert part.data.shape[0] == BATCH_SIZE
        return np.array(multihost_utils.process_allgather(array, tiled=True))

    asyncio.run(this.run(folder, assemble))
    jax.distributed.shutdown()


if __name__ == "__main__":
    coordinator, host, hosts, mesh_text, order, folder = sys.argv[1:]
    main(coordinator, int(host), int(hosts), mesh_text, order, Path(folder))
