"""The run as the coordinator holds it: one immutable value of a few parts, and its snapshot.

A stimulus makes a new `Run` with the parts that it changes, and shares the others (`coordinator/machine/handle.py`);
each part (`coordinator/machine/parts`) has the functions that change it. Everything here is in the journal's snapshots.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TypeAlias

from pydantic import TypeAdapter, ValidationError

from epochal.coordinator.machine.composed import Composed
from epochal.coordinator.machine.instructions import Instruction
from epochal.coordinator.machine.parts.agreed_data import AgreedData
from epochal.coordinator.machine.parts.member import Member
from epochal.coordinator.machine.parts.member_counts import Numbers
from epochal.coordinator.machine.parts.phase_clock import PhaseClock
from epochal.coordinator.machine.parts.round import Round
from epochal.coordinator.machine.parts.run_identity import RunIdentity, config_json
from epochal.coordinator.machine.parts.run_members import RunMembers
from epochal.coordinator.machine.parts.run_models import RunModels
from epochal.coordinator.machine.parts.run_pace import RunPace
from epochal.coordinator.machine.parts.run_progress import RunProgress
from epochal.coordinator.machine.parts.run_work import RunWork
from epochal.coordinator.machine.stimuli import RULES_VERSION
from epochal.state.config.state_file import StateFile
from epochal.state.errors import OtherRules, StoreFailed
from epochal.state.intervals import BatchId, data_index_count
from epochal.state.phase_names import RunState
from epochal.state.schedule import InnerSchedule, trained_tokens
from epochal.state.wire import ClientId, document_digest
from epochal.state.wire_document import WireDocument

Part: TypeAlias = (
    RunIdentity | PhaseClock | RunProgress | RunWork | RunMembers | RunPace | RunModels | AgreedData | Round
)
"""A part of a run."""


@dataclass(frozen=True)
class Run(Composed, WireDocument):
    """The whole run.

    Attributes:
        identity: its state file, its names, and the proof of the compacted part of its journal.
        clock: what time it is, and since when and until when the run is in its phase.
        progress: its epoch and step, and where it ends.
        work: the batches that are applied, and those that are still to be.
        members: its clients.
        pace: how long its last rounds took.
        models: its checkpoints, and the outcomes since.
        data: the data on which it is agreed.
        round: the round under way; None if there is none.
    """

    identity: RunIdentity
    clock: PhaseClock
    progress: RunProgress
    work: RunWork
    members: RunMembers = field(default_factory=RunMembers)
    pace: RunPace = field(default_factory=RunPace)
    models: RunModels = field(default_factory=RunModels)
    data: AgreedData = field(default_factory=AgreedData)
    round: Round | None = None

    def with_parts(self, *parts: Part) -> "Run":
        """Return the run with these parts in place of its own; the run itself if they are its own."""
        return self._with(_NAMES, parts)

    @property
    def state_file(self) -> StateFile:
        """The state file as the run follows it now: in a round, with the changes up to that round's step."""
        return self.identity.in_force or self.identity.state_file

    @property
    def last_step(self) -> int:
        """The last step that takes new data: after it, carried work is attempted, and the run ends."""
        return self.progress.last_step(self.state_file.config.total_steps)

    @property
    def rates(self) -> InnerSchedule:
        """The learning rates of local steps."""
        return InnerSchedule.of(self.identity.state_file, self.models.cold_start_step)

    @property
    def epoch_start_data_index(self) -> int:
        """The first data index of the epoch."""
        first = BatchId(self.progress.epoch_start_batch, self.progress.epoch_start_batch)
        return first.to_data_ids(self.state_file.config.data_indices_per_batch).start

    @property
    def data_indices_applied(self) -> int:
        """Number of samples that outcomes applied."""
        return data_index_count(self.work.batches_applied, self.state_file.config.data_indices_per_batch)

    @property
    def tokens_applied(self) -> int:
        """The tokens of those samples, without padding, as their clients counted them."""
        return self.work.tokens_applied

    def likely_tokens(self, batches: int) -> int:
        """Return the tokens of batches that nobody has trained on yet: as many as those applied had, on average."""
        work = self.work
        if not work.batches_applied:
            return trained_tokens(self.state_file, batches, None)
        return batches * work.tokens_applied // work.batches_applied

    @property
    def occasion(self) -> tuple[object, ...]:
        """The values that change when a member may send as many messages as before."""
        progress = self.progress
        return progress.epoch, progress.step, progress.attempt, self.clock.phase

    def available_members(self) -> list[Member]:
        """Return the members that do not rest."""
        return self.members.available(self.clock.now_s)

    def ready_members(self) -> list[Member]:
        """Return the members that hold the model and the run's data, and do not rest."""
        return self.members.ready(self.data.fingerprint, self.clock.now_s)

    def numbers(self) -> Numbers:
        """Return numbers of the members as they are now."""
        return self.members.numbers(self.data.fingerprint, self.clock.now_s)

    def awaited(self) -> Collection[ClientId]:
        """Return the clients for which the run may wait: in Warmup to be ready, in a round for its results."""
        if self.clock.phase is RunState.WARMUP:
            return _Unready(self.members.by_id)
        return () if self.round is None else self.round.missing.pending

    def is_available(self, member: Member) -> bool:
        """Whether the member neither rests nor leaves."""
        return member.is_available(self.clock.now_s)

    def is_ready(self, member: Member) -> bool:
        """Whether the member holds the model and the data on which the run is agreed, and does not rest."""
        return member.is_ready(self.data.fingerprint, self.clock.now_s)


_NAMES: dict[type, str] = {
    RunIdentity: "identity",
    PhaseClock: "clock",
    RunProgress: "progress",
    RunWork: "work",
    RunMembers: "members",
    RunPace: "pace",
    RunModels: "models",
    AgreedData: "data",
    Round: "round",
}
"""The field of a run that holds each kind of part."""


class _Unready(Collection[ClientId]):
    """The members that are not ready, found only as they are iterated."""

    def __init__(self, members: Mapping[ClientId, Member]) -> None:
        self._members = members

    def __contains__(self, client_id: object) -> bool:
        member = self._members.get(client_id)  # type: ignore[call-overload]
        return member is not None and member.readiness.step is None

    def __iter__(self) -> Iterator[ClientId]:
        return (member.client_id for member in self._members.values() if member.readiness.step is None)

    def __len__(self) -> int:
        return sum(1 for _ in self)


Handled: TypeAlias = tuple[Run, tuple[Instruction, ...]]
"""The run after a stimulus, and what its owner must do after it has kept that run."""


def new_run(state_file: StateFile, *, lineage: str, coordinator_key: str, now_s: float) -> Run:
    """Return a run that has never been served, as its `state.toml` starts it.

    Args:
        state_file: a validated, supported state file.
        lineage: 16 random bytes in hex.
        coordinator_key: the coordinator's raw Ed25519 public key in hex.
        now_s: seconds on the coordinator's clock.
    """
    progress, cursor = state_file.progress, state_file.first_batch
    is_finished, is_paused = state_file.run_state is RunState.FINISHED, state_file.run_state is RunState.PAUSED
    phase = RunState.FINISHED if is_finished else RunState.UNINITIALIZED
    return Run(
        identity=RunIdentity(state_file, document_digest(config_json(state_file)), lineage, coordinator_key),
        clock=PhaseClock(now_s, phase, phase_started_s=now_s, epoch_started_s=now_s),
        progress=RunProgress(progress.epoch, progress.step, epoch_start_batch=cursor, pause_pending=is_paused),
        work=RunWork(cursor),
        data=AgreedData(state_file.config.data_fingerprint),
    )


@lru_cache(maxsize=1)
def _run_adapter() -> TypeAdapter[Run]:
    return TypeAdapter(Run)


def snapshot_bytes(run: Run) -> bytes:
    """Return the whole run as JSON."""
    return _run_adapter().dump_json(run)


def parse_snapshot(body: bytes) -> Run:
    """Return the run that `snapshot_bytes` wrote.

    Raises:
        StoreFailed: it is not a snapshot, or was written under other rules.
    """
    try:
        run = _run_adapter().validate_json(body)
    except ValidationError as error:
        raise StoreFailed(f"the journal's snapshot cannot be read: {error.errors(include_input=False)[:3]}") from error
    if run.identity.rules_version != RULES_VERSION:
        raise OtherRules("the journal", run.identity.rules_version, RULES_VERSION)
    return run
