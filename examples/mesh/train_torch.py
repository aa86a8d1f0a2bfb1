"""One rank of a torch mesh: loads its rows, and receives the others'. Started by `torchrun`, a process per device.

torchrun --nproc-per-node DEVICES train_torch.py MESH FOLDER
"""

import asyncio
import sys
from datetime import timedelta
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from mesh_example import BATCH_SIZE, Host
from numpy.typing import NDArray
from torch.distributed.device_mesh import init_device_mesh

from epochal import RowArrays, RowBroadcast, compute_batch_size, layout_of_mesh, parse_mesh


def main(mesh_text: str, folder: Path) -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    sizes = parse_mesh(mesh_text)
    mesh = init_device_mesh("cpu", tuple(sizes.values()), mesh_dim_names=tuple(sizes))

    should_load, local_shards = compute_batch_size(mesh)
    layout, rank = layout_of_mesh(mesh, batch_size=BATCH_SIZE)
    this = Host(layout, rank)
    this.introduce(should_load, local_shards)
    broadcast = RowBroadcast(layout, rank)

    def assemble(rows: RowArrays) -> NDArray[np.int32]:
        broadcast.receive(rows.data)
        along_data = mesh.get_group("data")  # only to check: a rank computes on its own shard alone
        shards = [torch.empty_like(torch.from_numpy(rows.data)) for _ in range(sizes["data"])]
        dist.all_gather(shards, torch.from_numpy(rows.data), group=along_data)
        return torch.cat(shards).numpy()

    asyncio.run(this.run(folder, assemble))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
