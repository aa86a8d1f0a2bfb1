"""The one owner of a run: takes stimuli from a bounded queue, persists, then publishes, then answers.

Theory of operation. Callers `submit` a stimulus and wait. One task takes everything in the queue (a group), lets the
machine handle each stimulus, appends one journal record for all that changed something (one fsync, however many joins),
and only then shows the new run and its document and answers the group. While the store is blocked (`store_health.py`)
the service accepts nothing and publishes nothing, and goes on once a record can be kept again; the time until then is
an outage, which ends no phase. After a failure of the store it accepts nothing more. If another coordinator of the run
appended first, its records are replayed and the group is handled again (`coordinator/run/run_journal.py`). Others of
the run are in `coordinator/run/replicas.py`, readers and their waiting in `coordinator/run/publication.py`.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from typing import TypeAlias

from epochal.coordinator.machine.handle import handle
from epochal.coordinator.machine.instructions import Instruction, OutcomeDecided, PhaseChanged, SegmentEnded, SweepBlobs
from epochal.coordinator.machine.journal_records import NO_BLOBS
from epochal.coordinator.machine.records import Kept
from epochal.coordinator.machine.run import Run
from epochal.coordinator.machine.stimuli import (
    BlobsNearedBound,
    ClientsFellSilent,
    CoordinatorStarted,
    Stamped,
    Stimulus,
    Ticked,
    UpdateMade,
)
from epochal.coordinator.machine.views import blobs_needed
from epochal.coordinator.proof.compaction import Compaction
from epochal.coordinator.proof.kept_blobs import LostBlobs
from epochal.coordinator.run.later_versions import OlderCopy
from epochal.coordinator.run.liveness import HasGone, Liveness
from epochal.coordinator.run.lost_records import catch_up
from epochal.coordinator.run.maintenance import Maintenance
from epochal.coordinator.run.opening import OpenedRun, ServiceOptions, open_run
from epochal.coordinator.run.publication import Published, Readers
from epochal.coordinator.run.replicas import Following, Replicas
from epochal.coordinator.run.service_events import GroupKept, ServiceEvent
from epochal.coordinator.run.stimulus_queue import HandledGroup, StimulusQueue, Waiting
from epochal.coordinator.run.store_health import StoreHealth
from epochal.coordinator.store.sql.recorded_blobs import DROPPED_AT_A_TIME
from epochal.state.config.state_file import MergeConfig, StateFile
from epochal.state.documents import Outcome
from epochal.state.errors import EpochalError, Refused, StoreBlocked, StoreConflict, StoreFailed
from epochal.state.phase_names import RunState
from epochal.state.refusals import Refusal
from epochal.state.wire import ClientId, Seed, Sha256

log = logging.getLogger(__name__)

MadeUpdate: TypeAlias = tuple[UpdateMade, Mapping[Sha256, bytes]]
TICK_S = 0.1
"""Time between two checks of deadlines and silence. Nothing else waits for a tick."""
MAX_COMMIT_ATTEMPTS = 16
"""Maximum number of times a group is handled because other coordinators appended first; one always succeeds."""


class CoordinatorService:
    """Owns a run. Use `open`, then keep `serve` running in a task group."""

    def __init__(self, options: ServiceOptions, opened: OpenedRun) -> None:
        self.blobs = options.store.blobs
        self._options = options
        self._journal = journal = opened.journal
        self._clock = opened.clock(options)
        self.recorded_blobs = options.store.recorded_blobs
        self._queue = StimulusQueue()
        self._opening = opened.stimuli
        self.liveness = Liveness(self._clock.now_s())
        self.health = StoreHealth()
        self.lost_blobs = LostBlobs(lambda: self.run)
        self._writing = asyncio.Lock()  # held while records are appended or read: the run goes on one step at a time
        following = Following(
            known=lambda: journal.sequence,
            catch_up=self.catch_up,
            now_s=self._clock.now_s,
            note_failure=self.note_failure,
            problem=lambda: self.health.problem,
            members=lambda: self.run.members.by_id,
            recount_blobs=self.blobs.recount,
        )
        self.replicas = Replicas(options.store, self.liveness, following)
        self.older_copy = OlderCopy(self)
        self.maintenance = Maintenance(
            options.store, lambda: self.run, self.note_failure, self.catch_up, self._drop_blobs
        )
        self._follower = options.follower
        self._compaction = Compaction(
            options.store, lambda: self.run, self.submit, options.worker, options.follower.fold
        )
        self.readers = Readers(journal.run, journal.published, self._clock)
        self.is_serving = False
        self.update_of: Callable[[Outcome], MadeUpdate | None] = lambda _: None
        """Returns an outcome's update and its bytes, if they are there when it is decided."""
        self.started = asyncio.Event()
        self._watchers: list[Callable[[ServiceEvent], None]] = []

    @classmethod
    async def open(
        cls, options: ServiceOptions, state_file: StateFile, *, is_restored: bool = False
    ) -> "CoordinatorService":
        """Return the service of the run that the store holds, or of a new one. Raises as `open_run` does."""
        return cls(options, await open_run(options, state_file, is_restored=is_restored))

    async def serve(self) -> None:
        """Handle stimuli until cancelled. Nothing is answered before the start has been kept."""
        loop = asyncio.get_running_loop()
        group = [Waiting(stimulus, loop.create_future(), NO_BLOBS) for stimulus in self._opening]
        async with self.replicas.taking_part():
            await self._serve(group)

    async def _serve(self, group: list[Waiting]) -> None:
        await self._commit(group)
        if self.health.reason is not None:
            raise StoreFailed(self.health.reason)
        for waiting in group:
            waiting.answer.result()
        with contextlib.suppress(StoreBlocked):  # it stays a backup, and the next start asks for --restored again
            await self._options.store.note_served()
        self.is_serving = True
        self.started.set()
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._commit_groups())
                tasks.create_task(self._tick())
                tasks.create_task(self.maintenance.run())
                tasks.create_task(self._compaction.run())
                tasks.create_task(self._follower.run())
                tasks.create_task(self._go_on_when_unblocked())
        finally:
            self.is_serving = False

    @property
    def accepting(self) -> bool:
        """Whether messages are accepted: the run is loaded, and the store keeps them."""
        return self.is_serving and self.health.problem is None

    @property
    def run(self) -> Run:
        """The run as it is kept."""
        return self.readers.run

    def merge_at(self, step: int) -> MergeConfig:
        """Return how the run merges in a step."""
        run = self.run
        is_under_way = run.round is not None and run.round.number.step == step
        return (run.state_file if is_under_way else run.identity.state_file.at(step)).merge

    @property
    def published(self) -> Published:
        """The document that the run publishes."""
        return self.readers.published

    # Writing

    async def submit(self, stimulus: Stimulus, blobs: Mapping[Sha256, bytes] = NO_BLOBS) -> None:
        """Queue a stimulus, and wait until the run with it is kept and published.

        Args:
            stimulus: a message, or news of the coordinator's own.
            blobs: small blobs that the run needs if it changes by the stimulus, kept in the same transaction.

        Raises:
            Refused: the machine refuses it, or `overloaded`, or `store-failed`.
        """
        if self.health.problem is not None:
            raise self.health.refusal()
        with self.recorded_blobs.arriving(sum(map(len, blobs.values()))):
            await self._queue.submit(stimulus, blobs)

    async def _commit_groups(self) -> None:
        while True:
            await self._commit(await self._queue.next_group())

    async def catch_up(self, until: int | None = None) -> bool:
        """Show what others have appended, unless record `until` is known; return whether there was any.

        Raises:
            StoreFailed: the journal cannot be read, now or at all.
        """
        if self._options.store.replication is None:
            return False
        async with self._writing:
            return (until is None or until > self._journal.sequence) and await self._catch_up()

    async def _catch_up(self) -> bool:
        def watch(run: Run, instructions: tuple[Instruction, ...], kept: Kept) -> None:
            self.liveness.take_changes(run, instructions)
            if self._journal.load_count == load_count:  # else records are replayed again
                self._follower.take(instructions, kept)

        load_count = self._journal.load_count
        is_news = await catch_up(self._journal, self._options, self._clock, self._execute, watch)
        if self._journal.load_count != load_count:
            self._follower.read_again()
        if is_news:
            self.readers.show(self._journal.run, self._journal.published)
        return is_news

    async def _drop_blobs(self, held: frozenset[Sha256]) -> frozenset[Sha256]:
        """Delete some of these blobs of the journal's that the run as it is kept does not need; return which.

        Raise `StoreConflict` if another coordinator appended first: then nothing is deleted.
        """
        async with self._writing:
            unneeded = sorted(held - blobs_needed(self._journal.run))[:DROPPED_AT_A_TIME]
            if unneeded:
                await self.recorded_blobs.drop(unneeded, self._journal.sequence)
        return frozenset(unneeded)

    async def _commit(self, group: list[Waiting]) -> None:
        instructions: list[Instruction] = []
        try:
            async with self._writing:
                handled = await self._keep(group)
            answers, instructions = handled.answers, handled.instructions
        except StoreFailed as error:
            self.note_failure(error)
            answers = [(waiting, self.health.refusal()) for waiting in group]
        except StoreConflict as error:
            refusal = Refused(Refusal.OVERLOADED, f"other coordinators of the run appended first each time: {error}")
            answers = [(waiting, refusal) for waiting in group]
        for waiting, problem in answers:
            if problem is None and not waiting.answer.done():
                waiting.answer.set_result(None)
            elif problem is not None and not waiting.answer.done():
                waiting.answer.set_exception(problem)
        self.liveness.take_changes(self.run, instructions)
        for instruction in instructions:
            self._execute(instruction)

    async def _keep(self, group: list[Waiting]) -> HandledGroup:
        """Handle the group, keep and publish the result; after a conflict, repeat this with the other's run.

        Raises:
            StoreConflict: other coordinators appended first `MAX_COMMIT_ATTEMPTS` times; nothing of the group is kept.
            StoreBlocked: nothing of the group is kept.
            StoreFailed: something may not have been kept, now or before.
        """
        for attempt in range(1, MAX_COMMIT_ATTEMPTS + 1):
            if self.health.failure is not None:
                raise StoreFailed(self.health.failure)
            handled = self._handle_group(group)
            is_refused = not self.replicas.is_alone and any(problem is not None for _, problem in handled.answers)
            try:
                if handled.stimuli:
                    await self._persist(handled)
                elif is_refused and await self._catch_up():  # a refusal holds for the run as it is kept
                    continue
                break
            except StoreConflict as error:
                log.info("commit_conflict", extra={"attempt": attempt, "reason": str(error)})
                await self._catch_up()
                if attempt == MAX_COMMIT_ATTEMPTS:
                    raise
        return handled

    def _handle_group(self, group: list[Waiting]) -> HandledGroup:
        run = self.run
        kept, instructions = list[Stamped](), list[Instruction]()
        blobs: dict[Sha256, bytes] = {}
        answers: list[tuple[Waiting, Exception | None]] = []

        def take(stimulus: Stimulus, needed: Mapping[Sha256, bytes]) -> None:
            nonlocal run
            stamped = Stamped(stimulus, self._clock.now_s(), Seed(self._options.new_seed()))
            after, more = handle(run, stamped)
            if after is not run:
                kept.append(stamped)
                blobs.update(needed)
                instructions.extend(more)
                run = after

        for waiting in group:
            if isinstance(waiting.stimulus, ClientsFellSilent) and not self.replicas.is_ticking:
                answers.append((waiting, None))  # who ticks now knows whom others heard since
                continue
            try:
                take(waiting.stimulus, waiting.blobs)
            except EpochalError as error:
                answers.append((waiting, error.with_traceback(None)))  # whose frames hold the error
                continue
            answers.append((waiting, None))
        for decided in tuple(instructions):
            if isinstance(decided, OutcomeDecided) and decided.outcome is not None:
                made = self.update_of(decided.outcome)
                if made is not None:  # kept with its outcome, in one transaction
                    take(*made)
        return HandledGroup(run, tuple(kept), blobs, instructions, answers)

    async def _persist(self, handled: HandledGroup) -> None:
        ended = any(isinstance(instruction, SegmentEnded) for instruction in handled.instructions)
        started_s = self._clock.now_s()
        await self._journal.append(handled.run, handled.stimuli, ends_segment=ended, blobs=handled.blobs)
        self.recorded_blobs.note(handled.blobs)
        self._tell(GroupKept(self._clock.now_s() - started_s))
        try:
            await self._journal.open_due_segment()
        except StoreBlocked as blocked:  # the record is kept, and the segment stays due
            self.note_failure(blocked)
        self.readers.show(handled.run, self._journal.published)

    def note_failure(self, error: StoreFailed) -> None:
        """Stop accepting, for now or for ever: something could not be kept. Also called when keeping a blob fails."""
        self.health.note(error, self._clock.now_s())
        if self.health.failed.is_set():
            self.readers.release()

    async def _go_on_when_unblocked(self) -> None:
        """Accept messages again once what could not be kept would fit, and a record is kept."""
        while not self.health.failed.is_set():
            await self.health.blocked.wait()
            await asyncio.sleep(self._options.store.place.retry_s)
            block_count = self.health.block_count
            try:
                self.health.check_hold(self._clock.now_s())
                self.older_copy.check()
                await self._options.store.check_room(self.health.needed_bytes)
                await self.replicas.meet()
                await self._queue.submit(CoordinatorStarted(), NO_BLOBS)
            except StoreFailed as error:
                self.note_failure(error)
            except Refused as refusal:
                log.debug("store_still_blocked", extra={"kind": refusal.kind})
            else:
                if self.health.block_count == block_count:
                    self.health.end_hold(self._clock.now_s())
                    self.maintenance.repeat()
            if self.health.is_full:
                await self.maintenance.make_room_on_disk()

    def watch(self, watcher: Callable[[ServiceEvent], None]) -> None:
        """Call `watcher` with every instruction before it is executed, and every record after it is written."""
        self._watchers.append(watcher)

    def _tell(self, event: ServiceEvent) -> None:
        for watcher in self._watchers:
            watcher(event)

    def _execute(self, instruction: Instruction) -> None:
        self._tell(instruction)
        self._follower.take((instruction,), self._journal.kept)
        match instruction:
            case PhaseChanged(before, after):
                self.maintenance.phase_changed(before, after)
            case SweepBlobs():
                self.maintenance.sweep()
            case SegmentEnded():
                self._compaction.due()

    async def save_state_file(self) -> None:
        """Bring the kept `state.toml` up to date, unless the store has failed.

        Raises:
            StoreFailed: it could not be written.
        """
        if self.health.failure is None:
            await self.maintenance.save_state_file()

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            if not self.accepting or not self.replicas.is_ticking:
                continue
            now_s, members = self._clock.now_s(), self.run.members.by_id.keys()
            silent = self.liveness.lost(members, self.run.awaited(), now_s, self.run.state_file.config.client_timeout_s)
            try:
                if silent:
                    await self.submit(ClientsFellSilent(silent))
                if not await self.maintenance.stays_below_bound():
                    await self.note_blobs_near_bound()
                if self.run.clock.phase not in (RunState.FINISHED, RunState.PAUSED):
                    await self.submit(Ticked())
            except Refused as error:
                log.warning("tick_refused", extra={"kind": error.kind})

    async def note_blobs_near_bound(self) -> None:
        """Let a due sweep make room, else end the epoch early, whose checkpoint does. Raises as `submit` does."""
        if not self.maintenance.makes_room() and not self.run.models.blobs_near_bound:
            newest = self.run.models.checkpoint
            await self.submit(BlobsNearedBound(self.blobs.total_bytes, None if newest is None else newest.step))

    # Reading

    def now_s(self) -> float:
        """Return seconds on the run's clock."""
        return self._clock.now_s()

    def heard(self, client_id: ClientId) -> None:
        """Record that a request of this member arrived."""
        self.liveness.heard(client_id, self._clock.now_s())

    def waiting(self, client_id: ClientId | None, has_gone: HasGone) -> contextlib.AbstractContextManager[None]:
        """Note that a request waits for news, as `Liveness.waiting_reader`."""
        return self.liveness.waiting_reader(client_id, has_gone, self._clock.now_s)

    def key_free_in_s(self, client_id: ClientId) -> float:
        """Return the seconds until another process may use this member's key, as `Liveness.free_in_s`."""
        return self.liveness.free_in_s(client_id, self._clock.now_s())

    @property
    def journal_bytes(self) -> int:
        """Size of the journal."""
        return self._options.store.journal.size_bytes

    @property
    def queued_count(self) -> int:
        """Number of queued stimuli."""
        return len(self._queue)
