"""The Warmup step: get the run's model, or make it where members are elected for that, and report readiness."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from epochal.coordinator_client.session import CoordinatorSession
from epochal.data_providers.providers.local_places import allowed_path
from epochal.run_manager.context import FollowedConfig
from epochal.run_manager.readiness import Readiness
from epochal.run_manager.replica.keeper import ReplicaKeeper
from epochal.run_manager.steps.checkpoint import CheckpointPublisher
from epochal.run_manager.trainer_opening import TrainerOpening
from epochal.runtime.merging.merger import HeldReplica
from epochal.runtime.permissions import Permissions
from epochal.runtime.worker_thread import Worker
from epochal.state.config.model_table import LocalCheckpoint
from epochal.state.config.state_file import StateFile
from epochal.state.documents import RunDocument
from epochal.state.model.replica import replica_digest
from epochal.trainers.first_parameters import make_first_model
from epochal.trainers.packages import check_may_open
from epochal.trainers.sources.open_model import open_source


@dataclass(frozen=True, slots=True)
class WarmupStep:
    """The Warmup step. Its worker makes the first model, with these permissions for the files that it names."""

    session: CoordinatorSession
    config: FollowedConfig
    readiness: Readiness
    keeper: ReplicaKeeper
    opening: TrainerOpening
    publisher: CheckpointPublisher
    worker: Worker
    permissions: Permissions

    async def start(self, document: RunDocument) -> None:
        """Publish the first checkpoint if this client is elected to, else wait for the replica and report readiness.

        Raises:
            Refused: `fingerprint-differs`, which is final; other refusals end with the next document.
            InvalidInput: this client must load the initial parameters, and its file does not hold them.
        """
        self.readiness.owe()
        if document.checkpoint is not None:
            await self.readiness.keep(document.step - 1)
        elif document.checkpointer == self.session.client_id:
            held = await self._initial_replica(document.step - 1)
            await self.publisher.publish_first(held)

    async def _initial_replica(self, step: int) -> HeldReplica:
        """Make or load the run's first replica. Only this client does so; the others take it as it is."""
        if self.keeper.held is not None and self.keeper.held.step == step:
            return self.keeper.held
        await self.opening.opened()  # so that two threads do not import the same libraries
        held = await self.worker.run(partial(_first_held, self.config.state, step, self.permissions))
        self.keeper.adopt(held)
        return held


def _first_held(state: StateFile, step: int, permissions: Permissions) -> HeldReplica:
    llm = state.model.LLM
    if isinstance(llm.checkpoint, LocalCheckpoint):
        allowed_path(Path(llm.checkpoint.path), permissions)
    check_may_open(llm.spec, permissions)
    source = None if llm.is_made_from_seed else open_source(llm.checkpoint, permissions)
    replica = make_first_model(state, step, source=source).replica
    return HeldReplica(replica, replica_digest(replica))
