"""The `numpy` trainer on a mesh: a client of several processes, each of which loads and computes its own rows."""

import logging
from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial
from typing import NoReturn, Self

from batching.mesh.rows import global_batches
from batching.round_plan import RoundPlan
from data_providers.protocol import CorruptData, OutOfRange, Rejected, SourceUnavailable, TokenBatch
from runtime.worker_thread import Worker
from state.config.model import ModelSpec
from state.config.state_file import StateFile
from state.errors import DataError, InvalidInput, TrainerFailed
from state.tensors import Float32Array, Tensors
from trainers.architectures import open_model
from trainers.learner import Loss, TentativeInnerState
from trainers.mesh.launcher import MeshBroken, MeshProcesses
from trainers.mesh.messages import Failed, RoundDone, RoundTask, decode_body, encode_body
from trainers.mesh.options import MeshOptions
from trainers.protocol import TrainedRound

log = logging.getLogger(__name__)

DATA_ERRORS: Mapping[str, type[DataError]] = {
    error.kind: error for error in (SourceUnavailable, CorruptData, OutOfRange, Rejected)
}


class MeshTrainer:
    """Trains a model in the processes of a mesh. Make one with `open`.

    Args:
        options: the mesh.
        state: the run's state file.
        spec: the run's model, complete.
        ticket: returns the client's current ticket for data servers.
        worker: encodes messages to the processes; closed by `aclose`.
    """

    name = "numpy"
    loads_data = True

    def __init__(
        self, options: MeshOptions, state: StateFile, spec: ModelSpec, ticket: Callable[[], str], worker: Worker
    ) -> None:
        self._model = open_model(spec)
        self._spec = spec
        self.vocabulary = self._model.vocabulary
        self._options = options
        self._state = state
        self._ticket = ticket
        self._worker = worker
        self._processes: MeshProcesses | None = None
        self._inner_state = TentativeInnerState(state.merge.inner_state == "keep")

    @classmethod
    async def open(
        cls, options: MeshOptions, state: StateFile, spec: ModelSpec, ticket: Callable[[], str], worker: Worker
    ) -> Self:
        """Start the processes and return their trainer. Raise `MeshBroken` if they do not start."""
        trainer = cls(options, state, spec, ticket, worker)
        trainer._processes = await MeshProcesses.start(options, state, spec)
        return trainer

    async def initial_parameters(self, seed: bytes) -> Tensors:
        return await self._worker.run(partial(self._model.initial_parameters, seed))

    async def train(
        self, plan: RoundPlan, parameters: Mapping[str, Float32Array], batches: AsyncIterator[TokenBatch]
    ) -> TrainedRound:
        del batches  # each process loads its own
        self._inner_state.roll_back()
        state = self._inner_state.committed
        task = RoundTask(plan, self._ticket(), state.step_count, self._inner_state.is_kept)
        body = await self._worker.run(partial(encode_body, parameters, state))
        processes, self._processes = self._processes, None  # until they have answered
        try:
            if processes is None:
                processes = await MeshProcesses.start(self._options, self._state, self._spec)
            answers, answer = await processes.train(task, body)
        except MeshBroken as error:
            raise TrainerFailed(f"step {plan.step}: {error.message}", step=plan.step) from error
        self._processes = processes
        done = [found for found in answers if isinstance(found, RoundDone)]
        if len(done) < len(answers):
            _raise(plan, [found for found in answers if isinstance(found, Failed)])
        end, after = await self._worker.run(partial(decode_body, answer, done[0].steps_taken))
        self._inner_state.propose(after)
        self._log_rows(plan, [found.rows_loaded for found in done])
        return TrainedRound.between(plan.step, parameters, end, Loss(done[0].nats, done[0].token_count))

    def commit_inner_state(self) -> None:
        self._inner_state.commit()

    def roll_back_inner_state(self) -> None:
        self._inner_state.roll_back()

    def _log_rows(self, plan: RoundPlan, rows_loaded: list[int]) -> None:
        """Log the rows that each process loaded, and the padded ones: many mean that local steps are too small."""
        size = self._options.layout.global_batch_size
        padded = sum(size - batch.row_count for batch in global_batches(plan, size))
        rows = plan.sequence_count
        log.info(
            "mesh_round", extra={"step": plan.step, "rows": rows, "rows_loaded": rows_loaded, "rows_padded": padded}
        )

    async def aclose(self) -> None:
        if self._processes is not None:
            await self._processes.aclose()
            self._processes = None
        await self._worker.aclose()


def _raise(plan: RoundPlan, failures: list[Failed]) -> NoReturn:
    """Raise the failure that caused the others; a data error takes precedence."""
    real = [failure for failure in failures if failure.cause != "called-off"] or failures
    first = min(real, key=lambda failure: failure.cause not in DATA_ERRORS)
    if first.cause in DATA_ERRORS:
        raise DATA_ERRORS[first.cause](first.message, batch_id=first.batch_id)
    if first.cause == "input":
        raise InvalidInput(first.message)
    raise TrainerFailed(f"step {plan.step}: {first.message}", step=plan.step)
