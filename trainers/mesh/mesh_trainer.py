"""The `numpy` and the `torch` trainer on a mesh: several processes, each of which loads and computes its own rows."""

import itertools
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import NoReturn, Self

import numpy as np

from epochal.batching.mesh.mesh_rows import global_batches
from epochal.batching.round_plan import RoundPlan
from epochal.data_providers.protocol import CorruptData, OutOfRange, Rejected, SourceUnavailable, TokenBatch
from epochal.data_providers.tcp.client_connection import DataServerAccess, TicketOrAccess
from epochal.runtime.worker_thread import Worker
from epochal.state.config.model_table import DataType, ModelSpec
from epochal.state.config.state_file import LaterMixes, StateFile
from epochal.state.errors import DataError, InvalidInput, TrainerFailed
from epochal.state.model.computed_class import UNKNOWN_CLASS
from epochal.state.model.tensors import Float32Array, Tensors
from epochal.trainers.architectures import open_model
from epochal.trainers.learner import NOT_FINITE, HoldsInnerState, InnerState, Loss, TentativeInnerState
from epochal.trainers.mesh.launcher import MeshBroken, MeshProcesses, RoundTensors
from epochal.trainers.mesh.mesh_messages import INNER, PARAMETERS, Failed, RoundDone, RoundTask, SentTensor
from epochal.trainers.mesh.mesh_options import MeshOptions
from epochal.trainers.protocol import TrainedRound
from epochal.trainers.torch.micro_batch_sizes import DoesNotFit

log = logging.getLogger(__name__)

DATA_ERRORS: Mapping[str, type[DataError]] = {
    error.kind: error for error in (SourceUnavailable, CorruptData, OutOfRange, Rejected)
}


class MeshTrainer(HoldsInnerState):
    """Trains a model in the processes of a mesh. Make one with `open`.

    Args:
        options: the mesh.
        state: the run's state file.
        spec: the run's model, complete.
        servers: the client's access to data servers, or a function that returns its current ticket for them.
        worker: computes differences; closed by `aclose`.

    Attributes:
        mixes: returns the weights to which the run's mix has changed, as they are known now.
    """

    loads_data = True

    def __init__(
        self, options: MeshOptions, state: StateFile, spec: ModelSpec, servers: TicketOrAccess, worker: Worker
    ) -> None:
        self.name = options.trainer
        self._model = open_model(spec)
        self._spec = spec
        self.vocabulary = self._model.vocabulary
        self._options = options
        self._state = state
        self._servers = servers if isinstance(servers, DataServerAccess) else DataServerAccess(servers)
        self._worker = worker
        self.computed = UNKNOWN_CLASS
        self.mixes: Callable[[], LaterMixes] = lambda: state.later_mixes
        self._processes: MeshProcesses | None = None
        self._fitting_places: int | None = None
        self._inner_state = TentativeInnerState(state.merge.inner_state == "keep")

    @classmethod
    async def open(
        cls, options: MeshOptions, state: StateFile, spec: ModelSpec, servers: TicketOrAccess, worker: Worker
    ) -> Self:
        """Start the processes and return their trainer. Raise `MeshBroken` if they do not start."""
        trainer = cls(options, state, spec, servers, worker)
        trainer._processes = await trainer._start()
        return trainer

    async def initial_parameters(self, seed: bytes) -> Tensors:
        return await self._worker.run(partial(self._model.initial_parameters, seed))

    async def train(
        self, plan: RoundPlan, parameters: Mapping[str, Float32Array], batches: AsyncIterator[TokenBatch]
    ) -> TrainedRound:
        del batches  # each process loads its own
        while True:
            end = _RoundEnd(parameters, self._worker)
            try:
                done = await self._trained(plan, parameters, end)
            except DoesNotFit as error:
                self._halve(plan, error)
                continue
            first = done[0]
            self._inner_state.propose(InnerState(first.steps_taken, end.inner))
            self._log_rows(plan, [found.rows_loaded for found in done])
            loss = Loss(first.nats, first.token_count)
            made = partial(TrainedRound.of, plan.step, end.difference, loss, first.gradient_norm)
            return replace(await self._worker.run(made), sample_tokens=sum(one.sample_tokens for one in done))

    async def _trained(
        self, plan: RoundPlan, parameters: Mapping[str, Float32Array], end: "_RoundEnd"
    ) -> list[RoundDone]:
        """Return each process's answer; the tensors of the round's end go to `end`."""
        state = self._inner_state.newest
        names = tuple(state.tensors)
        ticket, version = self._servers.ticket(), self._servers.document_version()
        task = RoundTask(plan, ticket, state.step_count, names, self._inner_state.is_kept, version, self.mixes())
        start = itertools.chain(
            (SentTensor(PARAMETERS, name, parameters[name]) for name in self._model.shapes),
            (SentTensor(INNER, name, state.tensors[name]) for name in names),
        )
        processes, self._processes = self._processes, None  # until they have answered
        try:
            if processes is None:
                processes = await self._start()
            answers = await processes.train(task, RoundTensors(start, end.take))
        except MeshBroken as error:
            raise TrainerFailed(f"step {plan.step}: {error.message}", step=plan.step) from error
        self._processes = processes
        done = [found for found in answers if isinstance(found, RoundDone)]
        if len(done) < len(answers):
            _raise(plan, [found for found in answers if isinstance(found, Failed)])
        return done

    async def _start(self) -> MeshProcesses:
        started = await MeshProcesses.start(self._options, self._state, self._spec, self._fitting_places)
        self.computed = started.computed
        return started

    def _halve(self, plan: RoundPlan, error: DoesNotFit) -> None:
        """Prepare to repeat the round with smaller micro-batches; raise `TrainerFailed` if none are smaller."""
        if error.fitting_places is None:
            message = (
                f"step {plan.step}: out of memory: {error.message}; use shorter samples (max_seq_len) or more devices"
            )
            raise TrainerFailed(message, step=plan.step) from error
        self._fitting_places = error.fitting_places
        log.warning("micro_batch_halved", extra={"places": error.fitting_places, "reason": error.message})

    def _log_rows(self, plan: RoundPlan, rows_loaded: list[int]) -> None:
        """Log the rows of each process. Many rows that are padded mean that local steps are too small.

        Where the run packs, nothing but the rows is known here.
        """
        fields = {"step": plan.step, "rows": sum(rows_loaded), "rows_loaded": rows_loaded}
        if self._state.model.LLM.data_type is DataType.PRETRAINING:
            size = self._options.layout.global_batch_size
            fields["rows_padded"] = sum(size - batch.row_count for batch in global_batches(plan, size))
        log.info("mesh_round", extra=fields)

    async def aclose(self) -> None:
        if self._processes is not None:
            await self._processes.aclose()
            self._processes = None
        await self._worker.aclose()


class _RoundEnd:
    """The tensors of a round's end, as they arrive: differences of parameters, and the optimizer's state."""

    def __init__(self, start: Mapping[str, Float32Array], worker: Worker) -> None:
        self.difference: Tensors = {}
        self.inner: Tensors = {}
        self._start = start
        self._worker = worker

    async def take(self, tensor: SentTensor) -> None:
        values = tensor.values
        if tensor.part == INNER:
            self.inner[tensor.name] = values
            return
        await self._worker.run(partial(np.subtract, self._start[tensor.name], values, values))
        self.difference[tensor.name] = values


def _raise(plan: RoundPlan, failures: list[Failed]) -> NoReturn:
    """Raise the failure that caused the others; a data error takes precedence."""
    real = [failure for failure in failures if failure.cause != "called-off"] or failures
    first = min(real, key=lambda failure: failure.cause not in DATA_ERRORS)
    if first.cause in DATA_ERRORS:
        raise DATA_ERRORS[first.cause](first.message, batch_id=first.batch_id)
    if first.cause == "input":
        raise InvalidInput(first.message)
    failure = NOT_FINITE if first.cause == NOT_FINITE else "trainer"
    message = first.message.removeprefix(f"step {plan.step}: ")
    raise TrainerFailed(f"step {plan.step}: {message}", step=plan.step, failure=failure)
