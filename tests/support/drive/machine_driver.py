"""Drives the coordinator's machine by hand: members do exactly what a test tells them, and the test moves the clock."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import replace
from functools import wraps
from typing import Any, ParamSpec

import pytest

from epochal.coordinator.insight.projection import Projection
from epochal.coordinator.machine import stimuli
from epochal.coordinator.machine.handle import handle
from epochal.coordinator.machine.instructions import Instruction, OutcomeDecided, PhaseChanged, Rewound
from epochal.coordinator.machine.parts.checkpointers import current_checkpointer
from epochal.coordinator.machine.parts.conduct import Conduct
from epochal.coordinator.machine.parts.round import Round
from epochal.coordinator.machine.provisional_round import complete_look
from epochal.coordinator.machine.run import Run, new_run, parse_snapshot, snapshot_bytes
from epochal.coordinator.machine.shares import Sharing
from epochal.coordinator.machine.views import document_of
from epochal.state.codecs.codecs_by_name import SPOKEN
from epochal.state.config.state_file import StateFile
from epochal.state.documents import CheckpointRef, RunDocument, UpdateRef
from epochal.state.errors import Refused
from epochal.state.intervals import BatchId, coalesce, subtract, total_batches
from epochal.state.messages.blob_messages import CheckVerdict
from epochal.state.messages.requests import (
    Attestation,
    Capabilities,
    CheckpointReport,
    ReadyReport,
    ResultCommitment,
    ResultMetrics,
)
from epochal.state.phase_names import RunState
from epochal.state.share_ceiling import largest_part
from epochal.state.wire import Blake3, ClientId, Seed, Sha256, client_id_of, sha256_hex
from tests.support.data.states import state_file

P = ParamSpec("P")
READ_AGAIN_EVERY = 4
"""A snapshot is read back after every such stimulus, and after each that does more than to add to the state."""
METRICS = ResultMetrics(loss=2.0, tokens=16, train_s=0.1)


def digest_of(text: str) -> Sha256:
    return sha256_hex(text.encode())


def client(number: int) -> ClientId:
    return client_id_of(bytes([number]) * 32)


@contextlib.contextmanager
def refused(kind: str) -> Iterator[None]:
    """Expect that a stimulus is refused for this reason."""
    with pytest.raises(Refused) as error:
        yield
    assert error.value.kind == kind


def check_kept(run: Run) -> None:
    """Check that what is kept beside the run while it changes is what counting everything anew gives."""
    numbers, available, ready = run.numbers(), run.available_members(), run.ready_members()
    awaited = [member for member in available if member.readiness.step is None and not member.readiness.was_late]
    assert (numbers.available, numbers.ready) == (len(available), len(ready))
    assert numbers.ready_before == sum(member.readiness.was_ready for member in ready)
    assert (numbers.awaited, numbers.awaited_before) == (
        len(awaited),
        sum(member.readiness.was_ready for member in awaited),
    )
    current, making = run.round, run.models.checkpointing
    if current is not None:
        assert current.missing.decisive_pending == sum(
            client_id in current.tasks.plan.electorate for client_id in current.missing.pending
        )
        assert current.results.verified_bits == current.tasks.plan.bits_of(current.results.verified)
        assert current.results.digests is not None
        assert set(current.results.digests) == {report.result_sha256 for report in current.results.commitments.values()}
    if making is not None and making.plan is not None:
        assert replace(making, plan=None).planned() == making.plan


class Driver:
    """A run under test. Every stimulus goes through `send`, which also checks the ledger and collects instructions."""

    def __init__(self, state_file: StateFile) -> None:
        self.now_s = 1000.0
        self.seeds = 0
        self.instructions: list[Instruction] = []
        self.makes_updates = True
        self.outcomes: list[tuple[int, tuple[BatchId, ...]]] = []
        self.known: tuple[Run, RunDocument] | None = None
        self.run: Run = new_run(state_file, lineage="ab" * 8, coordinator_key="cd" * 32, now_s=self.now_s)
        self.send(stimuli.CoordinatorStarted())
        if state_file.access.genesis == "operator":
            self.provide_genesis()

    @property
    def applied(self) -> list[BatchId]:
        """The batches of every outcome of the run's present branch."""
        return [batch for _, batches in self.outcomes for batch in batches]

    @property
    def round(self) -> Round:
        assert self.run.round is not None
        return self.run.round

    def checkpointer(self) -> ClientId:
        writer = current_checkpointer(self.run.models, self.run.members)
        assert writer is not None
        return writer

    def projection(self) -> Projection:
        """Return what is shown and recorded of the run."""
        found = Projection()
        found.take(self.instructions, 1)
        return found

    def send(self, stimulus: stimuli.Stimulus) -> tuple[Instruction, ...]:
        self.seeds += 1
        stamped = stimuli.Stamped(stimulus, self.now_s, Seed(digest_of(f"seed {self.seeds}")))
        before = self.run.round
        self.run, instructions = handle(self.run, stamped)
        self.instructions += instructions
        for instruction in instructions:
            if isinstance(instruction, OutcomeDecided) and instruction.outcome is not None:
                batches = tuple(batch for entry in instruction.outcome.entries for batch in entry.assignment)
                self.outcomes.append((instruction.step, batches))
            if isinstance(instruction, Rewound):
                self.outcomes = [one for one in self.outcomes if one[0] <= instruction.mark.step]
            if isinstance(instruction, PhaseChanged) and instruction.after is RunState.ROUND_TRAIN:
                self._check_roster()
        assert ledger_gaps(self.run, self.applied) is None
        check_kept(self.run)
        self._check_ahead(before)
        document = document_of(self.run, 1)
        assert document_of(self.run, 1, self.known) == document
        self.known = self.run, document
        if instructions or self.seeds % READ_AGAIN_EVERY == 0:
            read_again = parse_snapshot(snapshot_bytes(self.run))
            assert read_again == self.run
            assert (read_again.round and read_again.round.tasks.plan) == (self.run.round and self.run.round.tasks.plan)
        for instruction in instructions:
            if self.makes_updates and isinstance(instruction, OutcomeDecided) and instruction.outcome is not None:
                self.make_update(instruction.step)
        return instructions

    def make_update(self, step: int) -> None:
        """The coordinator has made the update of a step."""
        update = UpdateRef(step, digest_of(f"update {step}"), 10, digest_of(f"replica {step}"))
        self.send(stimuli.UpdateMade(update))
        self.seeds -= 1  # the next stimulus has the seed that it has without updates

    def _check_ahead(self, before: Round | None) -> None:
        """Check that the next round that is named as one begins is what all the rules of its end give, or stays."""
        current = self.run.round
        if current is not None and self.run.state_file.merge.delay:
            is_same = before is not None and before.tasks.plan is current.tasks.plan
            assert not is_same or before is None or before.ahead is None or current.ahead is before.ahead
            return
        if current is None or self.run.clock.phase is not RunState.ROUND_TRAIN:
            return
        if before is None or before.tasks.plan is not current.tasks.plan:
            assert current.ahead == complete_look(self.run, current)

    def _check_roster(self) -> None:
        """Check that the shares are the batches, within their bounds if they allow, and that nobody rests.

        A promised roster was drawn earlier.
        """
        current = self.run.round
        if current is None or self.run.state_file.merge.delay:
            return
        entries, bounds, trusted = current.tasks.roster.clients, [], set()
        for entry in entries:
            member = self.run.members.by_id[entry.client_id]
            assert self.run.is_ready(member)
            bounds.append(min(member.claim, member.conduct.earned))
            if entry.proven:
                trusted.add(Sharing.of(member, self.run.state_file.verify).trusted)
        proven = [number for number, entry in enumerate(entries) if entry.proven]
        shares, whole = [entries[number].share for number in proven], total_batches(current.tasks.work.shared)
        most = largest_part(shares, whole, current.tasks.roster.ceiling) if proven else 0
        if len(trusted) < 2 and sum(min(bounds[number], int(most)) for number in proven) > sum(shares):
            assert all(entries[number].share <= bounds[number] for number in proven)
        if not current.tasks.work.isolated and len(proven) in (0, len(entries)):
            counts = {one: total_batches(given) for one, given in current.tasks.plan.assignments.items()}
            assert counts == {entry.client_id: entry.share for entry in entries}

    def pass_time(self, seconds: float) -> None:
        self.now_s += seconds
        self.send(stimuli.Ticked())

    def join(self, *numbers: int, **fields: Any) -> None:
        for number in numbers:
            key, nonce = (bytes([number]) * 32).hex(), f"nonce {self.seeds}"
            self.send(
                stimuli.ClientJoined(client(number), key, Capabilities(codecs=SPOKEN), nonce, self.now_s + 60, **fields)
            )

    def replica_digest(self) -> Blake3:
        return digest_of(f"replica {self.run.progress.replica_step}")

    def provide_genesis(self) -> None:
        """The operator provides the first checkpoint."""
        blob = digest_of(f"blob of replica {self.run.progress.replica_step}")
        provided = CheckpointRef(self.run.progress.replica_step, blob, 100, self.replica_digest())
        self.send(stimuli.GenesisProvided(provided, self.run.state_file.model.LLM.spec))

    def make_checkpoint(self) -> None:
        """The elected checkpointer claims and delivers; everyone else claims the same digest."""
        making = self.run.models.checkpointing
        assert making is not None
        writer = self.checkpointer()
        blob = digest_of(f"blob of replica {making.step}")
        self.send(stimuli.CheckpointReported(writer, CheckpointReport(making.step, self.replica_digest(), blob, 100)))
        self.send(stimuli.CheckpointHeld(writer, CheckpointRef(making.step, blob, 100, self.replica_digest())))
        for member in making.planned().clients:
            if self.run.models.checkpointing is not None and member != writer and member in self.run.members:
                self.send(
                    stimuli.CheckpointReported(member, CheckpointReport(making.step, self.replica_digest(), None, 0))
                )

    def ready(self, *clients: ClientId, data_fingerprint: str = "data") -> None:
        for client_id in clients:
            report = ReadyReport(self.run.progress.replica_step, self.replica_digest(), data_fingerprint)
            self.send(stimuli.ClientBecameReady(client_id, report))

    def warm_up(self) -> None:
        assert self.run.clock.phase is RunState.WARMUP
        if self.run.models.checkpoint is None:
            self.make_checkpoint()
        self.ready(*self.run.members.by_id)

    def deliver(self, *clients: ClientId, name: str = "result") -> None:
        """These clients commit to a result each, and their bytes are verified."""
        current = self.round
        for client_id in clients:
            result = digest_of(f"{name} {client_id} {current.number.step} {current.number.attempt}")
            commitment = ResultCommitment(current.number.step, current.number.attempt, result, 10, METRICS)
            self.send(stimuli.ResultReceived(client_id, commitment))
            self.verify(client_id, commitment)

    def commit_ahead(self, *clients: ClientId, name: str = "ahead") -> None:
        """These clients, bound to their results of this round, bind themselves to one of the next."""
        step = self.round.number.step + 1
        for client_id in clients:
            result = digest_of(f"{name} {client_id} {step}")
            self.send(stimuli.ResultReceived(client_id, ResultCommitment(step, 0, result, 10, METRICS)))

    def deliver_eager(self, *clients: ClientId, name: str = "ahead") -> None:
        """These clients deliver results for which they began before the round, each from its own last result."""
        current = self.round
        assert current.tasks.starts is not None
        for client_id in clients:
            result = digest_of(f"{name} {client_id} {current.number.step}")
            commitment = ResultCommitment(current.number.step, current.number.attempt, result, 10, METRICS)
            self.send(stimuli.ResultReceived(client_id, commitment))
            self.verify(client_id, commitment, current.tasks.starts.replica_digest)

    def verify(self, client_id: ClientId, commitment: ResultCommitment, replica: Blake3 | None = None) -> None:
        """The bytes of this result came, and break no rule."""
        verdict = CheckVerdict(replica or self.replica_digest(), 1.0)
        self.send(stimuli.ResultReceived(client_id, commitment, verdict))

    def reject(self, client_id: ClientId, commitment: ResultCommitment, rule: str = "finite") -> None:
        """The bytes of this result came, and break this rule."""
        self.send(stimuli.ResultReceived(client_id, commitment, CheckVerdict(rule=rule)))

    def attest(self, *clients: ClientId, replica_digest: Blake3 | None = None) -> None:
        """These witnesses say that they hold every verified result."""
        for client_id in clients:
            current = self.round
            held = sum(1 << current.tasks.plan.positions[delivered] for delivered in current.results.verified)
            digest = replica_digest or self.replica_digest()
            attestation = Attestation(current.number.step, current.number.attempt, digest, f"{held:x}")
            self.send(stimuli.AttestationReceived(client_id, attestation))
            if self.run.round is None or (self.run.progress.step, self.run.progress.attempt) != (
                current.number.step,
                current.number.attempt,
            ):
                break

    def next_round(self) -> None:
        """Play everything up to the next RoundTrain: checkpoints, rests, and Warmup with every member."""
        for _ in range(1000):
            match self.run.clock.phase:
                case RunState.ROUND_TRAIN:
                    return
                case RunState.WARMUP:
                    self.warm_up()
                case RunState.COOLDOWN:
                    self.make_checkpoint()
                case _:
                    self.pass_time(5)
        raise AssertionError(f"no round begins; the run is in {self.run.clock.phase}: {self.run.clock.reason}")

    def play_round(self) -> None:
        """Everyone in the roster delivers and attests."""
        current = self.round
        self.deliver(*(client_id for client_id, assigned in current.tasks.plan.assignments.items() if assigned))
        self.attest(*current.tasks.plan.witnesses)

    def play_round_of(self, *numbers: int) -> None:
        """These clients, and nobody else, deliver and attest."""
        current, present = self.round, {client(number) for number in numbers}
        self.deliver(*(who for who in self.workers() if who in present))
        self.attest(*(who for who in current.tasks.plan.witnesses if who in present))

    def play_epoch(self, seconds_per_round: float) -> None:
        """Rounds in which everyone delivers, until Cooldown."""
        while self.run.clock.phase is RunState.ROUND_TRAIN:
            self.now_s += seconds_per_round
            self.play_round()

    def conduct(self, number: int) -> Conduct:
        return self.run.members.by_id[client(number)].conduct

    def workers(self, *without: int) -> list[ClientId]:
        """The clients that have work in the round, without these."""
        away = {client(number) for number in without}
        return [who for who, parts in self.round.tasks.plan.assignments.items() if parts and who not in away]

    def in_phase(self, phase: RunState) -> bool:
        return self.run.clock.phase is phase

    def phases(self) -> list[str]:
        return [item.after.value for item in self.instructions if isinstance(item, PhaseChanged)]


def played_once(begin: Callable[P, Driver]) -> Callable[P, Driver]:
    """Return a function that plays and checks once, for equal arguments, what `begin` plays: many tests begin alike.

    Each of its callers has a driver of its own, which is where the one that was played was then.
    """
    played: dict[str, Driver] = {}

    @wraps(begin)
    def begun(*args: P.args, **kwargs: P.kwargs) -> Driver:
        name = f"{args} {kwargs}"
        if name not in played:
            played[name] = begin(*args, **kwargs)
        driver = copy(played[name])
        driver.instructions, driver.outcomes = [*driver.instructions], [*driver.outcomes]
        return driver

    return begun


@played_once
def in_warmup(*numbers: int, **overrides: Any) -> Driver:
    """Return a driver whose run is in Warmup with these clients."""
    driver = Driver(state_file(**overrides))
    driver.join(*numbers)
    driver.pass_time(2)
    return driver


@played_once
def in_round(*numbers: int, **overrides: Any) -> Driver:
    """Return a driver whose run is in its first RoundTrain with these clients."""
    driver = in_warmup(*numbers, **overrides)
    driver.warm_up()
    return driver


def ledger_gaps(run: Run, applied: Sequence[BatchId]) -> str | None:
    """Return which batches are counted twice, missing or too many, as a message, or None.

    Args:
        run: the run, in any phase.
        applied: the batches of every outcome since the run's first batch, in any order, coalesced or not.
    """
    in_round = () if run.round is None else run.round.tasks.work.shared
    parts = (
        *applied,
        *run.work.carried,
        *(item.batch_id for item in run.work.suspects),
        *(item.batch_id for item in run.work.quarantined),
        *run.work.skipped,
        *in_round,
    )
    merged = tuple(coalesce(parts))
    if total_batches(parts) != total_batches(merged):
        return f"batches are counted twice among {sorted(parts)}"
    first = run.state_file.first_batch
    whole = (BatchId(first, run.work.cursor - 1),) if run.work.cursor > first else ()
    if merged == whole:
        return None
    missing = subtract(whole, merged)
    if missing:
        return f"batches {missing[0]} below the cursor are neither applied nor carried nor quarantined"
    extra = subtract(merged, whole)
    return f"batches {extra[0]} lie outside [{first}, {run.work.cursor})" if extra else None
