"""The run as the coordinator holds it: one immutable value, and its snapshot.

Its mappings are never changed in place: `coordinator/machine/handle.py` makes a new `Run`, which shares the others.
Everything here is in the journal's snapshots, so a field that is added needs a default or a new `RULES_VERSION`.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from math import gcd
from typing import Annotated, Any, TypeAlias

from pydantic import Field, TypeAdapter, ValidationError

from epochal.coordinator.machine.instructions import Instruction
from epochal.coordinator.machine.parts.admissions import NO_ADMISSIONS, Admissions
from epochal.coordinator.machine.parts.checkpointing import Checkpointing
from epochal.coordinator.machine.parts.compacted import CompactedJournal
from epochal.coordinator.machine.parts.fast_replace import replace
from epochal.coordinator.machine.parts.member import Member as Member
from epochal.coordinator.machine.parts.member_counts import Numbers, RunData, Tally, tally_of
from epochal.coordinator.machine.parts.persistent_map import Mapped, added, removed
from epochal.coordinator.machine.parts.reliability import Conduct
from epochal.coordinator.machine.parts.round import Round
from epochal.coordinator.machine.stimuli import RULES_VERSION
from epochal.state.checkpoint_parts import CheckpointManifest
from epochal.state.config.model import ModelSpec
from epochal.state.config.state_file import StateFile
from epochal.state.datasets import DatasetDescription
from epochal.state.documents import SHARE_UNITS_PER_BATCH, CheckpointRef, Outcome, Roster, RosterEntry
from epochal.state.errors import OtherRules, StoreFailed
from epochal.state.intervals import BatchId, data_index_count
from epochal.state.messages.audits import RecordedAudit
from epochal.state.messages.evaluations import Evaluation
from epochal.state.phases import RunState
from epochal.state.schedule import InnerSchedule
from epochal.state.shown.notices import Notice
from epochal.state.weights import UsualNorm
from epochal.state.wire import ClientId, Seed, Sha256, document_digest
from epochal.state.wire_document import WireDocument

KEEP_CHECKPOINTS = 2
"""Number of verified checkpoints that are kept, with outcomes and results since the older one, which prove the newer.
Near the blobs' size limit only the newest is kept."""
LOSS_HISTORY_LENGTH = 512
LINEAGE_CHARACTERS = 32


@dataclass(frozen=True, slots=True)
class Suspect:
    """Batches on which clients failed, and why.

    Attributes:
        tried: the last clients that failed on them, oldest first; another one gets them next.
        message: kind and text of the last failure that was believed.
        against: the different members that failed on exactly this batch and had delivered other work lately.
        failures: number of failures on exactly this batch that were believed.
        retry_step: the first step in which they are attempted again.
        from_deliverer: whether the client that made them suspect had delivered other work lately. If not, they are
            carried as soon as anybody delivers.
    """

    batch_id: BatchId
    tried: tuple[ClientId, ...]
    message: str
    against: tuple[ClientId, ...] = ()
    failures: int = 0
    retry_step: int = 0
    from_deliverer: bool = True


@dataclass(frozen=True)
class Run(WireDocument):
    """The whole run. See `RunDocument` for the fields that both have.

    Attributes:
        next_assignment_seed: the last round's seed, which permutes the next one's proven clients; None before a round.
        carried: batches of earlier rounds that no outcome applied, in the order of their next attempts.
        suspects: batches that failed and are attempted alone.
        quarantined: batches that left the run.
        drain_rounds: rounds since `last_step` was reached, which assign carried work only.
        departed: the bad conduct of clients that have left, the latest last.
        train_times: seconds that the last applied rounds took, for the time limit of the next.
        slow_rounds: rounds in a row whose time was over with more than half of their batches missing.
        newcomers_from_s: time from which rounds wait for clients that never delivered, after one did in vain.
        waits_in_vain: number of such waits since a client delivered for the first time, as far as they are counted.
        enough_since_s: since when there are enough members in WaitingForMembers, or enough ready ones in Warmup.
        usual: how long the results of the last applied round were; None before one, or if nothing was learned.
        used_nonces: consumed join nonces and when each expires.
        model: the spec of the run's model, complete, once the run has its first checkpoint.
        cold_start_step: the step of the last cold start: an epoch that began without a client that is warm.
        manifests: of the kept checkpoints that have several parts, by digest.
        outcomes: by step, since the oldest kept checkpoint.
        data_pin: the fingerprint that the operator's command pinned.
        data_votes: number of members with each dataset, by fingerprint, in the order of their turns.
        data_turns: number of turns in which nobody delivered (`coordinator/machine/datasets.py`).
        datasets: descriptions of some of them, by fingerprint.
        evaluations: those that were reported last, in their order.
        finish_after: the step after which the operator's command ends the run; None for `total_steps`.
        admissions: who may join beside those whom the state file names.
        audits: those that were reported last, in their order.
        notices: the newest notice of each kind (`coordinator/machine/notices.py`).
        compacted: the part of the journal that is kept as a proof; None if all of it is kept.
        tally: numbers of members that were counted before; not in snapshots (`numbers`).
    """

    state_file: StateFile
    lineage: str
    coordinator_key: str
    config_sha256: Sha256
    now_s: float
    phase: RunState
    phase_started_s: float
    epoch: int
    step: int
    cursor: int
    epoch_start_batch: int
    epoch_started_s: float
    phase_ends_s: float | None = None
    reason: str = "never started"
    attempt: int = 0
    height: int = 0
    batches_applied: int = 0
    rules_version: int = RULES_VERSION
    next_assignment_seed: Seed | None = None
    usual: UsualNorm | None = None
    carried: tuple[BatchId, ...] = ()
    suspects: tuple[Suspect, ...] = ()
    quarantined: tuple[Suspect, ...] = ()
    drain_rounds: int = 0
    members: Mapped[ClientId, Member] = field(default_factory=dict)
    used_nonces: Mapped[str, float] = field(default_factory=dict)
    invitations_used: Mapping[Sha256, ClientId] = field(default_factory=dict)
    ejected: frozenset[ClientId] = frozenset()
    departed: Mapped[ClientId, Conduct] = field(default_factory=dict)
    train_times: tuple[float, ...] = ()
    slow_rounds: int = 0
    newcomers_from_s: float | None = None
    waits_in_vain: int = 0
    enough_since_s: float | None = None
    pause_pending: bool = False
    blobs_near_bound: bool = False
    rebuild: bool = False
    round: Round | None = None
    checkpointing: Checkpointing | None = None
    checkpoints: tuple[CheckpointRef, ...] = ()
    manifests: Mapping[Sha256, CheckpointManifest] = field(default_factory=dict)
    model: ModelSpec | None = None
    model_sha256: Sha256 | None = None
    cold_start_step: int | None = None
    outcomes: Mapping[int, Outcome] = field(default_factory=dict)
    data_fingerprint: str | None = None
    data_pin: str | None = None
    data_votes: Mapping[str, int] = field(default_factory=dict)
    data_turns: int = 0
    datasets: Mapping[str, DatasetDescription] = field(default_factory=dict)
    losses: tuple[tuple[int, float], ...] = ()
    evaluations: tuple[Evaluation, ...] = ()
    notices: tuple[Notice, ...] = ()
    finish_after: int | None = None
    admissions: Admissions = NO_ADMISSIONS
    audits: tuple[RecordedAudit, ...] = ()
    compacted: CompactedJournal | None = None
    tally: Annotated[Tally | None, Field(exclude=True)] = field(default=None, repr=False, compare=False)

    @property
    def last_step(self) -> int:
        """The last step that takes new data: after it, carried work is attempted, and the run ends."""
        most = self.state_file.config.total_steps
        return most if self.finish_after is None else min(self.finish_after, most)

    @property
    def rates(self) -> InnerSchedule:
        """The learning rates of local steps."""
        schedule, warmup_steps = (
            self.state_file.model.LLM.lr_schedule,
            self.state_file.model.LLM.cold_start_warmup_steps,
        )
        return InnerSchedule(schedule, self.state_file.merge.local_steps, warmup_steps, self.cold_start_step)

    @property
    def replica_step(self) -> int:
        """Number of the replica that everyone should hold."""
        return self.step - 1

    @property
    def checkpoint(self) -> CheckpointRef | None:
        """The newest verified checkpoint."""
        return self.checkpoints[-1] if self.checkpoints else None

    @property
    def epoch_start_data_index(self) -> int:
        """The first data index of the epoch."""
        first = BatchId(self.epoch_start_batch, self.epoch_start_batch)
        return first.to_data_ids(self.state_file.config.data_indices_per_batch).start

    @property
    def data_indices_applied(self) -> int:
        """Number of samples that outcomes applied."""
        return data_index_count(self.batches_applied, self.state_file.config.data_indices_per_batch)

    @property
    def tokens_applied(self) -> int:
        """The tokens of those samples."""
        return self.data_indices_applied * self.state_file.model.LLM.max_seq_len

    @property
    def occasion(self) -> tuple[object, ...]:
        """The values that change when a member may send as many messages as before."""
        return self.epoch, self.step, self.attempt, self.phase

    def available_members(self) -> list[Member]:
        """Return the members that do not rest."""
        return [member for member in self.members.values() if self.is_available(member)]

    def ready_members(self) -> list[Member]:
        """Return the members that hold the model and the run's data, and do not rest."""
        run_data = self.run_data
        return [member for member in self.members.values() if self._is_ready(member, run_data)]

    def numbers(self) -> Numbers:
        """Return numbers of the members as they are now, counted anew only where that cannot be helped."""
        tally = self.tally
        if tally is None or not tally.holds(self.members, self.run_data, self.now_s):
            tally = tally_of(self.members, self.members.values(), self.run_data, self.now_s)
            object.__setattr__(self, "tally", tally)  # it says nothing new about the run
        return tally.numbers

    def with_member(self, member: Member) -> "Run":
        """Return the run with this member, in place of the one with its id if there is one."""
        return self._with_members(added(self.members, member.client_id, member), member.client_id)

    def without_member(self, client_id: ClientId) -> "Run":
        """Return the run without this member."""
        return self._with_members(removed(self.members, client_id), client_id)

    def _with_members(self, members: Mapping[ClientId, Member], changed: ClientId) -> "Run":
        tally = self.tally
        if tally is not None and tally.holds(self.members, self.run_data, self.now_s):
            tally = tally.changed(members, self.members.get(changed), members.get(changed), self.now_s)
        return replace(self, members=members, tally=tally)

    def awaited(self) -> Collection[ClientId]:
        """Return the clients for which the run may wait: in Warmup to be ready, in a round for its results."""
        if self.phase is RunState.WARMUP:
            return _Unready(self.members)
        return () if self.round is None else self.round.pending

    def is_available(self, member: Member) -> bool:
        """Whether the member does not rest."""
        return not member.conduct.is_resting(self.now_s)

    def is_ready(self, member: Member) -> bool:
        """Whether the member holds the model and the data on which the run is agreed, and does not rest."""
        return self._is_ready(member, self.run_data)

    def _is_ready(self, member: Member, run_data: RunData) -> bool:
        return member.ready_step is not None and member.data_fingerprint in run_data and self.is_available(member)

    @property
    def run_data(self) -> RunData:
        """The fingerprints of the data on which the run is agreed, and of the same with more files."""
        known = [found.fingerprint for found in self.state_file.data_generations]
        if self.data_fingerprint not in known:
            return (self.data_fingerprint,)
        return tuple(known[known.index(self.data_fingerprint) :])

    def has_run_data(self, fingerprint: str | None) -> bool:
        """Whether data with this fingerprint are those on which the run is agreed, or the same with more files."""
        return fingerprint in self.run_data


class _Unready(Collection[ClientId]):
    """The members that are not ready; none is looked at before it is asked for."""

    def __init__(self, members: Mapping[ClientId, Member]) -> None:
        self._members = members

    def __contains__(self, client_id: object) -> bool:
        member = self._members.get(client_id)  # type: ignore[call-overload]
        return member is not None and member.ready_step is None

    def __iter__(self) -> Iterator[ClientId]:
        return (member.client_id for member in self._members.values() if member.ready_step is None)

    def __len__(self) -> int:
        return sum(1 for _ in self)


Handled: TypeAlias = tuple[Run, tuple[Instruction, ...]]
"""The run after a stimulus, and what its owner must do after it has kept that run."""


def roster_of(members: Iterable[Member], ceiling: int | None = None) -> Roster:
    """Return the roster of these members with the shares that they have earned, in lowest terms."""
    ordered = sorted(members, key=lambda member: member.client_id)
    common = gcd(*(share_units(member) for member in ordered)) or 1
    return Roster(
        tuple(RosterEntry(member.client_id, share_units(member) // common, member.is_proven) for member in ordered),
        ceiling,
    )


def most_share_units(member: Member) -> int:
    """Return the share that a member claims, in a roster's units."""
    return member.share * SHARE_UNITS_PER_BATCH


def share_units(member: Member) -> int:
    """Return the share of a member in the next roster: what it has earned, at most its claim."""
    return min(member.conduct.earned, most_share_units(member))


def lineage_of(seed: str) -> str:
    """Return a lineage, 16 random bytes in hex, of a fresh seed."""
    return seed[:LINEAGE_CHARACTERS]


def new_run(state_file: StateFile, *, lineage: str, coordinator_key: str, now_s: float) -> Run:
    """Return a run that has never been served, as its `state.toml` starts it.

    Args:
        state_file: a validated, supported state file.
        lineage: 16 random bytes in hex.
        coordinator_key: the coordinator's raw Ed25519 public key in hex.
        now_s: seconds on the coordinator's clock.
    """
    progress, cursor = state_file.progress, state_file.first_batch
    return Run(
        state_file=state_file,
        lineage=lineage,
        coordinator_key=coordinator_key,
        config_sha256=document_digest(config_json(state_file)),
        now_s=now_s,
        phase=RunState.FINISHED if state_file.run_state is RunState.FINISHED else RunState.UNINITIALIZED,
        pause_pending=state_file.run_state is RunState.PAUSED,
        phase_started_s=now_s,
        epoch=progress.epoch,
        step=progress.step,
        cursor=cursor,
        epoch_start_batch=cursor,
        epoch_started_s=now_s,
        data_fingerprint=state_file.config.data_fingerprint,
    )


def with_state_file(run: Run, state_file: StateFile) -> Run:
    """Return the run with an edited state file, and the digest of what clients see of it."""
    return replace(run, state_file=state_file, config_sha256=document_digest(config_json(state_file)))


def config_json(state_file: StateFile) -> Any:
    """Return the state file as clients see it, in plain JSON: without phase, progress and the coordinator's own."""
    of_blobs = {"store", "origins", "checker_wait_s"}
    own = {"run_state": True, "progress": True, "access": True, "run": True, "notify": True}
    hidden: dict[str, Any] = {**own, "blobs": of_blobs}
    if not state_file.data_generations:
        hidden["data_generations"] = True  # as in the journals of runs from before there were any
    shown: dict[str, Any] = state_file.model_dump(mode="json", exclude=hidden)
    blobs = state_file.blobs
    origins = blobs.origins or (() if blobs.store is None else (blobs.store.origin,))
    if origins:
        shown["blobs"]["origins"] = list(origins)
    return shown


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
    if run.rules_version != RULES_VERSION:
        raise OtherRules("the journal", run.rules_version, RULES_VERSION)
    return run
