"""A module whose parameters are sharded over processes, by FSDP2 (`torch.distributed.fsdp.fully_shard`).

Each tensor is cut along its first dimension as `torch.chunk` cuts it, and each process of a row of the mesh holds one
part. The module is built without memory for its parameters, so that a process never holds more of them than its shards
and the layer that it computes. Every process of the mesh must call the functions here that exchange, in the same order.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from epochal.state.errors import InvalidInput
from epochal.state.model.tensors import Float32Array
from epochal.trainers.torch.devices import Placement, copied_out, copy_in, without_parameters
from epochal.trainers.torch.torch_options import TorchOptions

FIRST = 0
"""The process that exchanges whole tensors with the agent."""
_REPLICAS, _SHARDS = "replicas", "shards"
_NEEDED = ("set_force_sum_reduction_for_comms", "set_reduce_scatter_unused_params")
_TESTED_WITH = "2.13"


def check_devices(options: TorchOptions, process_count: int) -> bool:
    """Return whether the processes of a mesh compute on CUDA devices, one each; otherwise they do on the CPU.

    Raises:
        InvalidInput: this machine has fewer CUDA devices than the mesh has processes, or torch is too old.
    """
    if not all(hasattr(FSDPModule, name) for name in _NEEDED):
        raise InvalidInput(
            f"--mesh with --trainer torch needs FSDP2 as torch {_TESTED_WITH} has it; this is torch {torch.__version__}"
        )
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if options.device == "cpu" or (options.device == "auto" and not count):
        return False
    if process_count > count:
        raise InvalidInput(
            f"a mesh of {process_count} processes; allowed: one for each CUDA device, of which this machine has {count}"
            "; or --device cpu"
        )
    return True


def device_of(options: TorchOptions, process: int, process_count: int) -> torch.device:
    """Return the device of a process of the mesh. Raises as `check_devices`."""
    return torch.device("cuda", process) if check_devices(options, process_count) else torch.device("cpu")


def use_device(device: torch.device) -> None:
    """Make a CUDA device the calling thread's current one, which `fully_shard` takes; each begins with cuda:0."""
    if device.type == "cuda":
        torch.cuda.set_device(device)


def device_mesh(device_type: str, grid: Sequence[Sequence[int]], timeout_s: float) -> DeviceMesh:
    """Connect the processes of a mesh. Every process calls this at once.

    Args:
        device_type: `cpu` or `cuda`.
        grid: the processes' numbers: each row holds all shards in order, and the rows repeat them.
        timeout_s: time limit of each operation.
    """
    own = dist.get_rank()
    groups = []
    for lines in (zip(*grid, strict=True), grid):
        for line in map(list, lines):  # every process makes all groups, in the same order
            group = dist.new_group(line, timeout=timedelta(seconds=timeout_s))
            groups += [group] if own in line else []
    return DeviceMesh.from_group(groups, device_type, mesh=torch.tensor(grid), mesh_dim_names=(_REPLICAS, _SHARDS))


@dataclass(frozen=True, slots=True, eq=False)
class ShardedModule:
    """This process's part of a module.

    Attributes:
        module: on its device; call it together with the other processes.
        parameters: its sharded parameters, by name.
        local: this process's shards of them, the same memory, as tensors of their own that an optimizer can change.
    """

    module: FSDPModule
    parameters: dict[str, DTensor]
    local: dict[str, torch.Tensor]

    def gradients_to_local(self) -> None:
        """Move the gradients of the parameters to the shards."""
        for name, one in self.parameters.items():
            self.local[name].grad = None if one.grad is None else one.grad.to_local()
            one.grad = None

    def whole(self, name: str, local: torch.Tensor) -> Float32Array | None:
        """Return a tensor that is cut like this parameter, in the first process; None in the others. Exchanges.

        Args:
            name: of the parameter.
            local: this process's part.
        """
        like = self.parameters[name]
        sharded = DTensor.from_local(
            local.detach(), like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride()
        )
        found = sharded.full_tensor()
        return copied_out(found) if dist.get_rank() == FIRST else None


def sharded(build: Callable[[], torch.nn.Module], placement: Placement, mesh: DeviceMesh) -> ShardedModule:
    """Return a module's part of this process, with parameters of any value.

    Each block (an element of a list of layers) is gathered for itself, the rest with the whole module.

    Args:
        build: returns the module, with its buffers on the CPU.
        placement: where and how this process computes.
        mesh: from `device_mesh`.
    """
    with torch.random.fork_rng(devices=[]), without_parameters():
        module = build()
    module.train()
    policy = MixedPrecisionPolicy()
    if placement.autocast_type is not None:
        policy = replace(policy, param_dtype=placement.autocast_type, reduce_dtype=torch.float32)
    for block in blocks_of(module):
        fully_shard(block, mesh=mesh, mp_policy=policy)
    root: FSDPModule = fully_shard(module, mesh=mesh, mp_policy=policy)
    for part in module.modules():
        if isinstance(part, FSDPModule):  # gradients are sums, which only the whole step's tokens divide
            part.set_gradient_divide_factor(1.0)
            part.set_force_sum_reduction_for_comms(True)
    root.set_reduce_scatter_unused_params(True)  # such as experts that no token of one process reached
    device = placement.device
    module._apply(lambda one: torch.empty_like(one, device=device) if one.is_meta else one.to(device))
    parameters: dict[str, DTensor] = dict(sorted(module.named_parameters()))
    local = {
        name: one.detach().to_local().requires_grad_(one.requires_grad)  # a leaf, which shares the memory
        for name, one in parameters.items()
    }
    return ShardedModule(root, parameters, local)


def blocks_of(module: torch.nn.Module) -> list[torch.nn.Module]:
    """Return the elements of the module's outermost lists of modules, without those that share parameters."""
    found = list(dict.fromkeys(_elements(module)))
    inside = {part for block in found for part in block.modules()}
    uses = Counter(one for part in module.modules() if part not in inside for one in part.parameters(recurse=False))
    for block in found:
        uses.update(set(block.parameters()))
    return [block for block in found if any(True for _ in block.parameters()) and _are_own(block, uses)]


def shard_of(name: str, shape: Sequence[int], values: Float32Array | None, to: torch.Tensor, mesh: DeviceMesh) -> None:
    """Give every process its shard of a tensor. Exchanges.

    Args:
        name: of the tensor, for messages.
        shape: the whole tensor's.
        values: float32, of this shape and writable, in the first process; None in the others.
        to: this process's shard, which is overwritten.
        mesh: from `device_mesh`.
    """
    whole = np.empty(shape, np.float32) if values is None else values
    if whole.shape != tuple(shape):
        raise RuntimeError(f"{name!a} arrived with the shape {whole.shape} instead of {tuple(shape)}")
    dist.broadcast(torch.from_numpy(whole), src=FIRST)
    shards = torch.from_numpy(whole).chunk(mesh.size(1), dim=0)
    number = mesh.get_local_rank(_SHARDS)
    if number < len(shards):
        copy_in(to, shards[number].numpy())


def norm_over(mesh: DeviceMesh) -> Callable[[Sequence[torch.Tensor]], torch.Tensor]:
    """Return a function that computes the common L2 norm of tensors from each process's shards. It exchanges."""
    group = mesh.get_group(_SHARDS)

    def norm(shards: Sequence[torch.Tensor]) -> torch.Tensor:
        square: torch.Tensor = torch.nn.utils.get_total_norm(shards, foreach=True).square()
        dist.all_reduce(square, group=group)
        return square.sqrt()

    return norm


def _elements(module: torch.nn.Module) -> Iterator[torch.nn.Module]:
    for child in module.children():
        if isinstance(child, torch.nn.ModuleList):
            yield from child
        else:
            yield from _elements(child)


def _are_own(block: torch.nn.Module, uses: Counter[torch.nn.Parameter]) -> bool:
    return all(uses[one] == 1 for one in block.parameters())
