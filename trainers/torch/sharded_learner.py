"""A torch model that the processes of a mesh train together, each with its shards of the parameters.

The rule kept here: every process makes the same calls of the module, because each call gathers and reduces among all of
them. So a process without examples computes on rows in which nothing is predicted, and a failure in one process that
the others cannot know of ends the mesh: the agent starts new processes, with smaller micro-batches if memory ran out.
"""

import math
from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from epochal.batching.micro_batches import Example
from epochal.state.config.model_table import InnerOptimizer
from epochal.state.errors import EpochalError, TrainerFailed
from epochal.state.model.tensors import Float32Array
from epochal.trainers.learner import NOT_FINITE, Loss
from epochal.trainers.protocol import mean_norm
from epochal.trainers.torch.devices import Placement, is_out_of_memory, reason_of
from epochal.trainers.torch.micro_batch_sizes import DoesNotFit, MicroBatchSize, grouped
from epochal.trainers.torch.objective import BatchLoss, Objective
from epochal.trainers.torch.optimizer import FIRST, SECOND, TorchOptimizer
from epochal.trainers.torch.sharding import ShardedModule, norm_over, shard_of, sharded
from epochal.trainers.torch.torch_options import TorchOptions

_NO_EXAMPLE = Example(np.zeros(1, np.uint32))
"""One in which nothing is predicted."""


@runtime_checkable
class ShardableModel(Protocol):
    """A model that the processes of a mesh can train together."""

    def sharded_learner(
        self, mesh: DeviceMesh, optimizer: InnerOptimizer | None, fitting_places: int | None
    ) -> "ShardedLearner":
        """Return this process's part of it.

        Args:
            mesh: the processes, from `sharding.device_mesh`.
            optimizer: None leaves the parameters as they are.
            fitting_places: the most places of a micro-batch that may fit into memory; None if nothing is known.
        """
        ...


class ShardedLearner:
    """One process's part of a torch model; `epochal.trainers.mesh.rounds.MeshLearner` defines the calls.

    Losses stay on the device until the end of the round.

    Args:
        build: returns the module, with its buffers on the CPU.
        objective: what is minimised.
        options: how torch computes; `device` is decided, and `compiles` is not carried out.
        mesh: the processes.
        optimizer: None leaves the parameters as they are.
        fitting_places: as in `ShardableModel.sharded_learner`.
    """

    def __init__(
        self,
        build: Callable[[], torch.nn.Module],
        objective: Objective,
        options: TorchOptions,
        mesh: DeviceMesh,
        optimizer: InnerOptimizer | None,
        fitting_places: int | None,
    ) -> None:
        self._build = build
        self._objective = objective
        self._mesh = mesh
        self._settings = optimizer
        self._placement = Placement.of(options)
        self.computed = self._placement.computed
        places = objective.places_at_a_time(self._placement.device.type)
        self._size = MicroBatchSize(options.micro_batch, places, fitting_places)
        self._sharded: ShardedModule | None = None
        self._optimizer = TorchOptimizer({})
        self._examples: list[Example] = []
        self._moments: dict[str, torch.Tensor] = {}
        self._found: list[tuple[int, torch.Tensor | float, torch.Tensor | None]] = []
        self._token_count = 0

    def open(self) -> None:
        if self._sharded is None:
            self._sharded = sharded(self._build, self._placement, self._mesh)
            self._optimizer = TorchOptimizer(self._sharded.local, norm_over(self._mesh))

    def receive(self, part: str, name: str, values: Float32Array | None) -> None:
        module = self._module
        if part == "parameters":
            shard_of(name, module.parameters[name].shape, values, module.local[name], self._mesh)
            return
        if not self._moments:
            self._optimizer.restore(0, {})  # frees the moments before
        if name not in self._optimizer.shapes:
            raise TrainerFailed(f"{name!a} is not a moment of this model's optimizer")
        parameter = _parameter_of(name)
        moment = self._moments[name] = torch.empty_like(module.local[parameter], requires_grad=False)
        shard_of(name, module.parameters[parameter].shape, values, moment, self._mesh)

    def begin(self, step_count: int) -> None:
        moments, self._moments = self._moments, {}
        self._optimizer.restore(step_count, moments)
        self._examples, self._found, self._token_count = [], [], 0

    def add(self, examples: Sequence[Example]) -> None:
        self._objective.sizes(examples)  # refuses what the model cannot compute on, before all compute together
        self._examples += examples

    def step(self, number: int, learning_rate: float) -> None:
        examples, self._examples = self._examples, []
        nats, token_count = self._loss(examples)
        norm = None
        if token_count and self._settings is not None:
            self._module.gradients_to_local()
            with torch.no_grad():
                norm = self._optimizer.step(self._settings, learning_rate, token_count)
            for one in self._module.local.values():
                one.grad = None
        self._found.append((number, nats, norm))
        self._token_count += token_count

    def finish(self) -> tuple[Loss, float | None]:
        rows = [[float(nats), 0.0 if norm is None else float(norm)] for _, nats, norm in self._found]
        sums = torch.tensor(rows, dtype=torch.float64).reshape(-1, 2)
        dist.all_reduce(sums)
        total, norms = 0.0, list[float]()
        for (number, _, step_norm), (nats, norm) in zip(self._found, sums.tolist(), strict=True):
            for name, value in (("the loss", nats), ("the norm of the gradient", norm)):
                if not math.isfinite(value):
                    raise TrainerFailed(f"local step {number + 1}: {name} is {value}", failure=NOT_FINITE)
            total += nats
            norms += [] if step_norm is None else [float(step_norm)]  # every process has that of all shards
        return Loss(total, self._token_count), mean_norm(norms)

    @property
    def step_count(self) -> int:
        return self._optimizer.step_count

    @property
    def inner_names(self) -> Sequence[str]:
        return sorted(self._optimizer.moments)

    def whole(self, part: str, name: str) -> Float32Array | None:
        with torch.no_grad():
            if part == "parameters":
                return self._module.whole(name, self._module.local[name])
            return self._module.whole(_parameter_of(name), self._optimizer.moments[name])

    @property
    def _module(self) -> ShardedModule:
        assert self._sharded is not None, "open first"
        return self._sharded

    def _loss(self, examples: Sequence[Example]) -> tuple[torch.Tensor | float, int]:
        """Return the loss of this process's examples, and the tokens of all processes; add up the gradient.

        Raises:
            DoesNotFit: this process has not enough memory; the others do not know.
            RuntimeError: this process failed; the others do not know.
        """
        sizes = self._objective.sizes(examples)
        longest = max(sizes, default=0)
        rows = self._size.rows(sizes) if longest else 1
        groups = grouped(sizes, rows * longest)
        count = _over_all(len(groups), dist.ReduceOp.MAX)
        nats: torch.Tensor | float = 0.0
        token_count = 0
        try:
            for place in range(count):
                chosen = [examples[one] for one in groups[place]] if place < len(groups) else [_NO_EXAMPLE]
                found = self._computed(chosen, is_last=place == count - 1)
                nats = nats + found.nats.detach()
                token_count += found.token_count
        except EpochalError as error:
            raise RuntimeError(error.message) from error
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            message = (
                f"a micro-batch of {rows} rows of {longest} places on {self._placement.device}: {reason_of(error)}"
            )
            raise DoesNotFit(message, rows // 2 * longest or None) from error
        return nats, _over_all(token_count, dist.ReduceOp.SUM)

    def _computed(self, examples: Sequence[Example], *, is_last: bool) -> BatchLoss:
        """Return the loss of one micro-batch, and add its gradient. Shards are reduced now, replicas at the last."""
        module = self._module.module
        batch = self._placement.copied(self._objective.batch(examples))
        module.set_requires_all_reduce(is_last)
        with torch.set_grad_enabled(self._settings is not None), self._placement.computing():
            found = self._objective.loss(module, batch)
        if self._settings is not None:
            found.nats.backward()
        return found


def _parameter_of(moment: str) -> str:
    """Return the parameter to which a moment belongs."""
    return moment.removeprefix(FIRST).removeprefix(SECOND)


def _over_all(value: int, operation: dist.ReduceOp) -> int:
    """Return the sum, or the maximum, of every process's value."""
    found = torch.tensor([value])
    dist.all_reduce(found, op=operation)
    return int(found.item())
