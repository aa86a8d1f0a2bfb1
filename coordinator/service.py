"""The one owner of a run: takes stimuli from a bounded queue, persists, then publishes, then answers.

Theory of operation. Callers `submit` a stimulus and wait. One task takes whatever has queued up (a group), lets the
machine handle each, appends one journal record for all that changed something (one fsync, however many joins), and only
then shows the new run and its document to anyone and answers the group. A store that fails poisons the service: it
accepts nothing more, publishes nothing that it could not keep, and says so in `failure`.

Readers never wait for the writer: `run` and `published` are immutable values, replaced after each commit.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

from coordinator.liveness import Liveness
from coordinator.machine.handle import handle
from coordinator.machine.instructions import (
    BatchesQuarantined,
    Instruction,
    MembershipChanged,
    OutcomeDecided,
    PhaseChanged,
    SegmentEnded,
    SweepBlobs,
)
from coordinator.machine.records import encode_record, encode_snapshot, replay
from coordinator.machine.run import Run, config_json, lineage_of, new_run
from coordinator.machine.stimuli import (
    BlobsNearedBound,
    ClientsFellSilent,
    ConfigChanged,
    CoordinatorStarted,
    RunRestored,
    Stamped,
    Stimulus,
    Ticked,
)
from coordinator.machine.views import document_of
from coordinator.maintenance import Maintenance
from coordinator.publication import Published, RoundDocuments, TokenRate, results_page, standing_of, status_of
from coordinator.store.open import Store
from runtime.broadcast import Broadcast
from runtime.clock import Clock, RunClock
from state.config.changes import runtime_changes
from state.config.state_file import StateFile
from state.documents import Outcome, RunDocument
from state.errors import EpochalError, InvalidInput, Refused, StoreFailed
from state.messages import ResultsPage, RunStatus, Standing
from state.phases import RunState
from state.refusals import Refusal
from state.wire import ClientId, Seed, Sha256, canonical_json

log = logging.getLogger(__name__)

MAX_QUEUED_STIMULI = 4096
MAX_GROUP = 1024
TICK_S = 0.1
"""How often deadlines and silence are looked at. Nothing else waits for a tick."""
BLOBS_NEAR_BOUND_PERCENT = 80
MAX_SEGMENT_RECORDS = 20_000
"""A segment that grows beyond this is followed by another within the epoch, so that a start replays a bounded tail."""


@dataclass(frozen=True, slots=True)
class GroupKept:
    """One journal record was written, of `stimulus_count` stimuli, in `append_s` seconds."""

    stimulus_count: int
    append_s: float


ServiceEvent: TypeAlias = Instruction | GroupKept
"""What a service tells whoever watches it."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    stimulus: Stimulus
    answer: asyncio.Future[None]


@dataclass(frozen=True, slots=True)
class ServiceOptions:
    """What a service is made of.

    Attributes:
        source: the state file's name, for messages.
        coordinator_key: raw Ed25519 public key, hex.
        new_seed: fresh random bytes in hex; a simulation brings its own.
    """

    store: Store
    clock: Clock
    coordinator_key: str
    source: str = "state.toml"
    new_seed: Callable[[], str] = lambda: secrets.token_hex(32)


def _ignore(_: ServiceEvent) -> None:
    """Watch nothing."""


class CoordinatorService:
    """Owns a run. Use `open`, then keep `serve` running in a task group."""

    def __init__(self, parts: ServiceOptions, run: Run, version: int, sequence: int) -> None:
        self.blobs = parts.store.blobs
        self._parts = parts
        self._journal = parts.store.journal
        self._clock = RunClock(parts.clock, not_before_s=run.now_s)
        self._queue: asyncio.Queue[_Waiting] = asyncio.Queue(MAX_QUEUED_STIMULI)
        self._sequence = sequence
        self._records_in_segment = 0
        self._liveness = Liveness(self._clock.now_s())
        self._news = Broadcast()
        self._results_news = Broadcast()
        self._documents = RoundDocuments()
        self._rate = TokenRate()
        self._edited: StateFile | None = None
        self._is_restored = False
        self._maintenance = Maintenance(parts.store, lambda: self.run, self.fail)
        self._readers_released = False
        self.run = run
        self.published = Published.of(document_of(run, version))
        self.accepting = False
        self.failure: str | None = None
        self.started = asyncio.Event()
        self._watcher: Callable[[ServiceEvent], None] = _ignore
        self._documents.remember(run)

    @classmethod
    async def open(
        cls, parts: ServiceOptions, state_file: StateFile, *, is_restored: bool = False
    ) -> "CoordinatorService":
        """The service of the run that the store holds, or of a new one.

        Args:
            parts: store, clock and key.
            state_file: the validated state file. Where the store holds the run already, its edited fields are applied
                if they may change while a run goes on.
            is_restored: what the store holds is a backup. Clients that have seen later documents follow it then.

        Raises:
            InvalidInput: the state file differs from the kept run in a field that may not change, or allows fewer bytes
                of blobs than are held; or there is no run that could have been restored.
            StoreFailed: the journal is damaged, or was written under other rules.
        """
        segment = await parts.store.journal.load()
        if segment is None:
            if is_restored:
                raise InvalidInput("--restored: the store holds no run; restore the backup first")
            now_s = parts.clock.wall_s()
            lineage = lineage_of(parts.new_seed())
            run = new_run(state_file, lineage=lineage, coordinator_key=parts.coordinator_key, now_s=now_s)
            service = cls(parts, run, version=0, sequence=0)
            await parts.store.journal.open_segment(encode_snapshot(0, service.published.document, run))
        else:
            if parts.store.torn_bytes:
                log.warning("journal_torn_record_dropped", extra={"torn_bytes": parts.store.torn_bytes})
            replayed = replay(segment)
            service = cls(parts, replayed.run, replayed.document.version, replayed.sequence)
            service._records_in_segment = len(segment.records)
            service._refuse_fixed_changes(state_file)
            service._is_restored = is_restored
        return service

    async def serve(self) -> None:
        """Handle stimuli until cancelled. Nothing is answered before the start itself is kept."""
        start: list[Stimulus] = [CoordinatorStarted()]
        if self._is_restored:
            start.append(RunRestored(lineage_of(self._parts.new_seed())))
        if self._edited is not None:
            start.append(ConfigChanged(self._edited))
        loop = asyncio.get_running_loop()
        group = [_Waiting(stimulus, loop.create_future()) for stimulus in start]
        await self._commit(group)
        for waiting in group:
            waiting.answer.result()
        self.accepting = True
        self.started.set()
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._commit_groups())
                tasks.create_task(self._tick())
                tasks.create_task(self._maintenance.run())
        finally:
            self.accepting = False

    def _refuse_fixed_changes(self, state_file: StateFile) -> None:
        applied, refused = runtime_changes(self.run.state_file, state_file)
        if refused:
            lines = "\n".join(f"  {change}" for change in refused)
            raise InvalidInput(
                f"{self._parts.source} differs from the kept run where it may not change any more:\n{lines}",
                source=self._parts.source,
            )
        most, held = state_file.blobs.max_total_bytes, self.blobs.total_bytes
        if most < min(held, self.run.state_file.blobs.max_total_bytes):
            raise InvalidInput(
                f"{self._parts.source}: blobs.max_total_bytes is {most}, and the run holds {held} bytes; allowed: "
                f"{held} or more",
                source=self._parts.source,
            )
        for change in applied:
            log.info("config_change_applied", extra={"change": str(change)})
        if applied:
            self._edited = state_file

    # Writing

    async def submit(self, stimulus: Stimulus) -> None:
        """Hand in a stimulus and wait until the run with it is kept and published.

        Raises:
            Refused: the machine refuses it, or `overloaded`, or `store-failed`.
        """
        if self.failure is not None:
            raise Refused(Refusal.STORE_FAILED, f"the coordinator cannot keep anything more: {self.failure}")
        waiting = _Waiting(stimulus, asyncio.get_running_loop().create_future())
        try:
            self._queue.put_nowait(waiting)
        except asyncio.QueueFull:
            raise Refused(Refusal.OVERLOADED, f"{MAX_QUEUED_STIMULI} messages wait already; try again soon") from None
        await waiting.answer

    async def _commit_groups(self) -> None:
        while True:
            group = [await self._queue.get()]
            while len(group) < MAX_GROUP and not self._queue.empty():
                group.append(self._queue.get_nowait())
            await self._commit(group)

    async def _commit(self, group: list[_Waiting]) -> None:
        run, kept, instructions, answers = self._handle_group(group)
        try:
            if self.failure is not None:
                raise StoreFailed(self.failure)
            if kept:
                await self._persist(run, kept, instructions)
        except StoreFailed as error:
            self.fail(error)
            refusal = Refused(Refusal.STORE_FAILED, f"the coordinator cannot keep anything more: {error}")
            answers = [(waiting, refusal) for waiting, _ in answers]
        for waiting, problem in answers:
            if waiting.answer.done():
                continue
            if problem is None:
                waiting.answer.set_result(None)
            else:
                waiting.answer.set_exception(problem)
        if self.failure is None:
            for instruction in instructions:
                self._carry_out(instruction)

    def _handle_group(
        self, group: list[_Waiting]
    ) -> tuple[Run, list[Stamped], list[Instruction], list[tuple[_Waiting, Exception | None]]]:
        run = self.run
        kept: list[Stamped] = []
        instructions: list[Instruction] = []
        answers: list[tuple[_Waiting, Exception | None]] = []
        for waiting in group:
            try:
                stimulus = Stamped(waiting.stimulus, self._clock.now_s(), Seed(self._parts.new_seed()))
                after, more = handle(run, stimulus)
            except EpochalError as error:
                answers.append((waiting, error))
                continue
            if after is not run:
                kept.append(stimulus)
                instructions += more
                run = after
            answers.append((waiting, None))
        return run, kept, instructions, answers

    async def _persist(self, run: Run, kept: list[Stamped], instructions: list[Instruction]) -> None:
        document = document_of(run, self.published.version)
        if document != self.published.document:
            document = replace(document, version=document.version + 1)
        sequence = self._sequence + 1
        started_s = self._clock.now_s()
        await self._journal.append(encode_record(sequence, document, tuple(kept)))
        self._watcher(GroupKept(len(kept), self._clock.now_s() - started_s))
        self._sequence = sequence
        self._records_in_segment += 1
        ended = any(isinstance(instruction, SegmentEnded) for instruction in instructions)
        if ended or self._records_in_segment >= MAX_SEGMENT_RECORDS:
            await self._journal.open_segment(encode_snapshot(sequence, document, run))
            self._records_in_segment = 0
        self._publish(run, document)

    def _publish(self, run: Run, document: RunDocument) -> None:
        before, self.run = self.run, run
        if run.round is not before.round or run.phase is not before.phase:
            self._documents.remember(run)
            self._results_news.notify()
        if document.version != self.published.version:
            self.published = Published.of(document)
            self._news.notify()

    def fail(self, error: StoreFailed) -> None:
        """Stop accepting: something could not be kept. Also called by whoever sees a blob fail."""
        if self.failure is None:
            self.failure = str(error)
            self.accepting = False
            log.critical("store_failed", extra={"reason": self.failure})

    def watch(self, watcher: Callable[[ServiceEvent], None]) -> None:
        """Tell `watcher` of every instruction that is carried out and every record that is written, once it is."""
        self._watcher = watcher

    def _carry_out(self, instruction: Instruction) -> None:
        self._watcher(instruction)
        match instruction:
            case PhaseChanged(before=before, after=after, reason=reason):
                log.info("phase_changed", extra={"before": before.value, "after": after.value, "reason": reason})
                self._maintenance.state_file_changed()
            case OutcomeDecided(step=step, attempt=attempt, outcome=outcome, reason=reason):
                applied = 0 if outcome is None else len(outcome.entries)
                self._rate.add(self._clock.now_s(), self.run.tokens_applied)
                log.info(
                    "outcome_decided",
                    extra={"step": step, "attempt": attempt, "applied_results": applied, "reason": reason},
                )
            case BatchesQuarantined(batch_id=batch_id, tried=tried, message=message):
                log.warning("batches_quarantined", extra={"batch_id": str(batch_id), "tried": tried, "reason": message})
            case MembershipChanged(client_id=client_id, change=change):
                log.info("membership_changed", extra={"client_id": client_id, "change": change})
            case SweepBlobs():
                self._maintenance.sweep()
            case SegmentEnded(epoch=epoch):
                log.debug("segment_ended", extra={"epoch": epoch})

    async def save_state_file(self) -> None:
        """Bring the kept `state.toml` up to date, if the phase has changed since and anything can be kept.

        Raises:
            StoreFailed: it could not be written.
        """
        if self.failure is None:
            await self._maintenance.save_state_file()

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            if self.failure is not None:
                continue
            now_s = self._clock.now_s()
            silent = self._liveness.silent(self.run.members.keys(), now_s, self.run.state_file.config.client_timeout_s)
            bound = self.run.state_file.blobs.max_total_bytes * BLOBS_NEAR_BOUND_PERCENT // 100
            try:
                if silent:
                    await self.submit(ClientsFellSilent(silent))
                if self.blobs.total_bytes > bound:
                    await self.note_blobs_near_bound()
                if self.run.phase not in (RunState.FINISHED, RunState.PAUSED):
                    await self.submit(Ticked())
            except Refused as error:
                log.warning("tick_refused", extra={"kind": error.kind})

    async def note_blobs_near_bound(self) -> None:
        """End the epoch early, so that its checkpoint makes room. Raises what `submit` does."""
        if not self.run.blobs_near_bound:
            await self.submit(BlobsNearedBound(self.blobs.total_bytes))

    # Reading

    def release_readers(self) -> None:
        """Answer everyone who waits, because the service stops."""
        self._readers_released = True
        self._news.close()
        self._results_news.close()

    def now_s(self) -> float:
        """Seconds on the run's clock."""
        return self._clock.now_s()

    def heard(self, client_id: ClientId) -> None:
        """A request of this member arrived."""
        self._liveness.heard(client_id, self._clock.now_s())

    async def wait_published(self, after: int, lineage: str | None, timeout_s: float) -> Published | None:
        """What is published, once its version is above `after` or its lineage another; None if nothing came."""
        if self.published.is_news(after, lineage):
            return self.published
        try:
            async with asyncio.timeout(timeout_s):
                await self._news.wait()
        except TimeoutError:
            return None
        return self.published if self.published.is_news(after, lineage) else None

    async def wait_results(self, step: int, attempt: int, after: int, timeout_s: float) -> ResultsPage:
        """The round's verified results from number `after` on, as soon as there is one, or all are in, or time is over.

        Raises:
            Refused: `stale-round`.
        """
        deadline_s = self._clock.now_s() + timeout_s
        while True:
            page = results_page(self.run, step, attempt, after)
            remaining_s = deadline_s - self._clock.now_s()
            if page.results or page.complete or remaining_s <= 0 or self._readers_released:
                return page
            try:
                async with asyncio.timeout(remaining_s):
                    await self._results_news.wait()
            except TimeoutError:
                return results_page(self.run, step, attempt, after)

    def immutable(self, sha256: Sha256) -> bytes | None:
        """The canonical JSON of a roster, a work list or the configuration of this digest, if it is of late."""
        if sha256 == self.run.config_sha256:
            return canonical_json(config_json(self.run.state_file))
        return self._documents.get(sha256)

    def outcome(self, step: int) -> Outcome | None:
        """The outcome of a step since the oldest kept checkpoint."""
        return self.run.outcomes.get(step)

    def standing(self, client_id: ClientId) -> Standing:
        """What has arrived of a client's messages."""
        return standing_of(self.run, client_id)

    def status(self) -> RunStatus:
        """What an operator asks."""
        return status_of(
            self.run,
            self.published.version,
            now_s=self._clock.now_s(),
            liveness=self._liveness,
            tokens_per_s=self._rate.per_s(),
            blob_bytes=self.blobs.total_bytes,
            journal_bytes=self._parts.store.journal_bytes,
        )

    @property
    def queued_count(self) -> int:
        """How many stimuli wait."""
        return self._queue.qsize()
