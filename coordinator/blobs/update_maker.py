"""Makes the update of each step: adds results up as they are verified, and keeps what the outcome's mean encodes to.

Theory of operation. One task follows the run. While a round is under way it adds each verified result to a sum, in the
order in which the journal has them, with the factor that it will have if every client delivers. When the outcome is
decided, what is missing is added; if the outcome has other results, another order or other factors, the sum is made
again. A small update is made while the witnesses attest: of the outcome that is expected, with which it is kept, and
again if another one is decided. Where results are in an object store and workers are present, they add up and encode,
each its slice (`leased_slices.py`); which results are in the sum is decided here, and here the slices are put together.
The update leads from the coordinator's own replica, which is loaded from a checkpoint and follows the updates, to the
one whose digest the journal names beside it.

Of several coordinators of a run, the one that ticks makes updates. Whoever makes one, the bytes are the same, and the
first that is journalled counts. The rule kept here: nothing that is half done is kept; a maker that fails or is killed
begins again from the run as it is kept, and clients that have waited long enough make the update themselves.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from itertools import islice

from epochal.coordinator.blobs.intake import Intake
from epochal.coordinator.blobs.leased_slices import AddedResult, SharedSlice, SharedSum
from epochal.coordinator.blobs.likenesses import MAX_COMPARED, Likenesses
from epochal.coordinator.blobs.slice_probe import Probe
from epochal.coordinator.machine.outcomes import expected_outcome
from epochal.coordinator.machine.parts.persistent_map import shared
from epochal.coordinator.machine.parts.round import Round
from epochal.coordinator.machine.replays.lottery import exams_of
from epochal.coordinator.machine.run import Run
from epochal.coordinator.machine.stimuli import UpdateMade
from epochal.coordinator.run.service import MadeUpdate
from epochal.coordinator.store.checkpoint_blobs import keep_in_parts, opened_parts
from epochal.runtime.files.spool import READ_BYTES, Spool, SpoolFile
from epochal.runtime.merging.arrival import Arrival
from epochal.runtime.merging.merger import MERGED_IN_MEMORY_BYTES, HeldReplica, Merger
from epochal.runtime.task_errors import one_error
from epochal.state.checkpoint_parts import CheckpointPart, parts_digest, update_part_bytes
from epochal.state.codecs.codec import Block
from epochal.state.codecs.codecs_by_name import codec_named
from epochal.state.config.state_file import StateFile
from epochal.state.documents import CheckpointRef, Outcome, UpdateRef
from epochal.state.errors import EpochalError, InvalidDocument, Refused, StoreBlocked, StoreFailed
from epochal.state.intervals import total_batches
from epochal.state.merging import Diverged, UnsoundArithmetic
from epochal.state.messages.deliveries import MAX_DELIVERED_BYTES
from epochal.state.model.replica import Replica, examined_replica
from epochal.state.model.tensors import TensorLayout
from epochal.state.refusals import Refusal
from epochal.state.results import decode_result, result_size_bound
from epochal.state.slices import blocks_in
from epochal.state.updates import UpdateHeader, UpdateSum, Weight, decode_update
from epochal.state.weights import ENOUGH, Weighed, factor_of, most_batches, number_of, steps_of
from epochal.state.wire import ClientId, Sha256, sha256_hex

log = logging.getLogger(__name__)

RETRY_S = 5.0
"""Time after which a step that could not be taken, for want of room or of a blob, is tried again, and maximum time for
which nothing is looked at."""
ANSWERED_FIRST_S = 0.001
"""Time in which witnesses that wait for a round's last result are answered, before its update is made."""
TOGETHER_BYTES = 1024 * 1024
"""Size of the results that are added in one turn of the worker, which is one result or many small ones."""


@dataclass(slots=True)
class _Sum:
    """The sum of one round's results, of at most `most` batches while it is under way: here, or at workers."""

    step: int
    attempt: int
    total: UpdateSum | SharedSum
    most: Fraction | None = None
    added: list[AddedResult] = field(default_factory=list)
    probe: Probe | None = None


@dataclass(frozen=True, slots=True)
class _Ahead:
    """The update of an outcome that is expected, in a file; `update` if it may be kept together with the outcome."""

    outcome: Outcome
    arrival: Arrival
    made: tuple[SpoolFile, HeldReplica]
    update: UpdateRef | None


class UpdateMaker:
    """Makes the updates of one service's run. Keep `run` running.

    Args:
        intake: of the run's results; knows the model's layout, and the workers.
        merger: adds up and applies.
        spool: where the sum, the update and the coordinator's replica are.
    """

    def __init__(self, intake: Intake, merger: Merger, spool: Spool) -> None:
        self._service = intake.service
        self._merger = merger
        self._spool = spool
        self._layout = intake.layout
        self._worker = intake.worker
        self._slices = intake.slices
        self._changed = asyncio.Event()
        self._lineage = intake.service.run.identity.lineage
        self._held: HeldReplica | None = None
        self._sum: _Sum | None = None
        self._ahead: _Ahead | None = None
        self._likenesses: Likenesses | None = None
        self._diverged_step: int | None = None
        self._warned_of = ""

    async def run(self) -> None:
        """Make updates until cancelled, or until this machine turns out to compute otherwise than others."""
        self._service.update_of = self._update_of
        self._service.readers.on_change(lambda _before, _after: self._changed.set())
        try:
            await self._merger.verify()
            while True:
                self._changed.clear()
                if not await self._advanced():
                    with contextlib.suppress(TimeoutError):  # this coordinator may be the one that ticks by then
                        async with asyncio.timeout(RETRY_S):
                            await self._changed.wait()
        except UnsoundArithmetic as error:
            log.error("updates_not_made", extra={"reason": error.message, "consequence": "clients make them"})
        finally:
            await self._merger.aclose()

    async def _advanced(self) -> bool:
        """Take one step; return whether the next may follow at once. What fails is tried again after a while."""
        try:
            found = await self._step()
        except Diverged as error:
            self._diverged_step, self._sum = self._service.run.progress.replica_step, None
            log.error("run_diverged", extra={"reason": error.message})
            return False
        except UnsoundArithmetic:
            raise
        except EpochalError as error:
            self._sum = None  # a result may be half added
            if error.message != self._warned_of:
                self._warned_of = error.message
                log.warning("update_delayed", extra={"reason": error.message, "consequence": "clients may make it"})
            await asyncio.sleep(RETRY_S)
            return True
        self._warned_of = ""
        return found

    async def _step(self) -> bool:
        """Make the oldest update that is missing, or add the next result; return False if there is nothing to do."""
        run = self._service.run
        checkpoint = run.models.checkpoint
        if checkpoint is None or not (self._service.accepting and self._service.replicas.is_ticking):
            return False
        if run.identity.lineage != self._lineage:
            self._lineage, self._held, self._sum, self._diverged_step = run.identity.lineage, None, None, None
            self._likenesses = self._ahead = None
        ahead = self._ahead
        if ahead is not None and ahead.update is not None and ahead.update in run.models.updates.values():
            await self._end(ahead.outcome, ahead.made[1])
        outcome = _next_without_update(run, checkpoint)
        if outcome is not None:
            if outcome.step == self._diverged_step:
                return False
            await self._make(run, outcome)
            return True
        if run.round is None:
            return False
        return await self._add_next(run, run.round) or await self._make_ahead(run, run.round)

    async def _add_next(self, run: Run, current: Round) -> bool:
        """Add the next verified results of the round under way to its sum; return False if there is none.

        None is before the usual length of results is known, because their factors depend on all of them then; unless
        they are so few that none is too long.
        """
        state, usual, number = run.state_file, current.results.usual, current.number
        if not current.results.verified:
            return False
        if usual is None and state.merge.norm_limit and len(current.tasks.with_work()) >= ENOUGH:
            return False
        if self._sum is None or (self._sum.step, self._sum.attempt) != (number.step, number.attempt):
            self._sum = None  # its room goes first
            self._sum = await self._new_sum(number.step, number.attempt)
            self._sum.most = _most_batches(state, current)
        total = self._sum
        most = total.most
        if most is None:
            return False
        layout, codec = await self._layout(), self._service.merge_at(number.step).codec_name
        held_bytes = (len(current.results.verified) - len(total.added)) * result_size_bound(layout, codec)
        if isinstance(total.total, UpdateSum) and held_bytes < TOGETHER_BYTES:
            return False  # few small ones are added once the round is over

        def verified() -> Iterator[tuple[AddedResult, int]]:
            for client_id, norm in next_to_add(run, current, len(total.added)):
                batches = total_batches(current.tasks.plan.assignments[client_id])
                weighed = Weighed(batches, steps_of(state, batches), norm, client_id in current.tasks.plan.electorate)
                factor = number_of(factor_of(weighed, most, state.merge.norm_limit, usual))
                bound = current.results.commitments[client_id]
                yield AddedResult(client_id, Sha256(bound.result_sha256), Weight(batches, factor)), bound.size_bytes

        found = next(together(verified()), None)
        if found is not None:
            await self._add(total, found)
        return found is not None

    async def _make(self, run: Run, outcome: Outcome) -> None:
        """Make, keep and journal the update of an outcome."""
        start = await self._replica(run, outcome.step - 1)
        if start.digest != outcome.replica_digest:
            self._held = None
            message = f"the coordinator's replica {start.step} is {start.digest}; {outcome.replica_digest} was attested"
            raise Refused(Refusal.REPLICA_DIFFERS, message)
        ahead, self._ahead = self._ahead, None
        if ahead is not None and ahead.outcome == outcome:
            making: asyncio.Future[tuple[SpoolFile, HeldReplica]] = asyncio.get_running_loop().create_future()
            making.set_result(ahead.made)
            await self._keep(outcome.step, ahead.arrival, making)
        else:
            total, arrival = await self._sum_of(outcome), Arrival()
            header = UpdateHeader.of(outcome, self._merger.rule(outcome.step))
            with one_error():
                async with asyncio.TaskGroup() as group:
                    making = group.create_task(self._made(total, header, start.replica, arrival))
                    await self._keep(outcome.step, arrival, making)
                    await asyncio.wait([making])
        await self._end(outcome, making.result()[1])

    async def _end(self, outcome: Outcome, held: HeldReplica) -> None:
        """Go on from the replica after an outcome."""
        self._sum = self._ahead = None
        self._slices.end()
        self._held = held
        await self._tell_likenesses(outcome)

    def _update_of(self, outcome: Outcome) -> MadeUpdate | None:
        """Return an outcome's update, if it was expected."""
        ahead = self._ahead
        if ahead is None or ahead.update is None or ahead.outcome != outcome:
            return None
        return UpdateMade(ahead.update), {Sha256(ahead.update.blob_sha256): ahead.made[0].to_bytes()}

    async def _make_ahead(self, run: Run, current: Round) -> bool:
        """Make the update of the outcome that is expected, once all of a round's work is in; return whether it was."""
        newest = run.models.checkpoint
        if current.missing.pending or newest is None or newest.size_bytes > MERGED_IN_MEMORY_BYTES:
            return False
        await asyncio.sleep(ANSWERED_FIRST_S)
        start = await self._replica(run, current.number.step - 1)
        outcome = expected_outcome(run, current, start.digest)
        if outcome is None or (self._ahead is not None and self._ahead.outcome == outcome):
            return False
        self._sum = total = await self._sum_of(outcome)
        if not isinstance(total.total, UpdateSum):
            return False
        arrival, header = Arrival(), UpdateHeader.of(outcome, self._merger.rule(outcome.step))
        self._ahead = None
        with contextlib.suppress(Diverged):  # which is found again if the outcome is this one
            made = await self._merger.made(total.total, header, start.replica, arrival)
            update = _named(outcome.step, *made) if len(made[0]) <= MAX_DELIVERED_BYTES else None
            self._ahead = _Ahead(outcome, arrival, made, update)
        return self._ahead is not None

    async def _made(
        self, total: _Sum, header: UpdateHeader, start: Replica, arrival: Arrival
    ) -> tuple[SpoolFile, HeldReplica]:
        """Return the update of a sum, and the replica after it."""
        if isinstance(total.total, UpdateSum):
            return await self._merger.made(total.total, header, start, arrival)
        slices = [await self._slice(total.total, part, total.probe) for part in total.total.slices]
        return await self._merger.joined(slices, header, start, arrival)

    async def _sum_of(self, outcome: Outcome) -> _Sum:
        """Return the sum of an outcome's results: the one under way if its results are the outcome's first ones."""
        wanted = _results_of(outcome)
        known = self._sum
        is_its = known is not None and (known.step, known.attempt) == (outcome.step, outcome.attempt)
        if known is None or not is_its or known.added != wanted[: len(known.added)]:
            if is_its:
                log.info("update_summed_anew", extra={"step": outcome.step})
            self._sum = known = None  # its room goes first
            known = await self._new_sum(outcome.step, outcome.attempt)
        sizes = [entry.size_bytes for entry in outcome.entries]
        for results in together(list(zip(wanted, sizes, strict=True))[len(known.added) :]):
            await self._add(known, results)
        return known

    async def _new_sum(self, step: int, attempt: int) -> _Sum:
        layout = await self._layout()
        shared = self._slices.begin(step, self._service.merge_at(step), layout, self._spool)
        if shared is None:
            return _Sum(step, attempt, await self._merger.new_sum(step, layout))
        return _Sum(step, attempt, shared, probe=Probe(layout, shared.merge))

    async def _add(self, total: _Sum, results: Sequence[AddedResult]) -> None:
        if isinstance(total.total, UpdateSum):
            await self._add_to(total.total, results)
        for result in results:
            if isinstance(total.total, SharedSum):
                total.total.add(result)
                if total.probe is not None:
                    async with self._service.blobs.opened(result.sha256) as blob:
                        await self._worker.run(partial(total.probe.add, result.weight, blob))
            total.added.append(result)
            await self._sketch(total, result)

    async def _sketch(self, total: _Sum, result: AddedResult) -> None:
        """Sketch a result where results are verified, so that it can be compared with others."""
        run = self._service.run
        if run.state_file.verify is None:
            return
        layout = await self._layout()
        sketches = self._likenesses = self._likenesses or Likenesses(layout)
        async with self._service.blobs.opened(result.sha256) as blob:

            def work() -> None:
                difference = decode_result(blob.view(), layout)[1]
                sketches.add(
                    (total.step, total.attempt), result.sha256, difference, MAX_COMPARED / max(len(run.members), 1)
                )

            await self._worker.run(work)

    async def _tell_likenesses(self, outcome: Outcome) -> None:
        """Journal how like the results of an outcome are to each other, if they were compared."""
        if self._likenesses is None:
            return
        found = self._likenesses.compared((outcome.step, outcome.attempt), outcome.entries)
        if found is not None:
            with contextlib.suppress(Refused):  # a checkpoint has included the step, or another coordinator told it
                self._check_lineage()
                await self._service.submit(found)

    async def _summed(self, step: int, layout: TensorLayout, results: Sequence[AddedResult]) -> UpdateSum:
        """Return the sum of a step's results over a slice of the model, made here."""
        total = await self._merger.new_sum(step, layout)
        for result in results:
            await self._add_to(total, [result])
        return total

    async def _add_to(self, total: UpdateSum, results: Sequence[AddedResult]) -> None:
        layout = await self._layout()
        async with contextlib.AsyncExitStack() as opened:
            blobs = [await opened.enter_async_context(self._service.blobs.opened(each.sha256)) for each in results]
            views = [(each.weight, blob.view()) for each, blob in zip(results, blobs, strict=True)]
            await self._merger.add(total, views, layout)

    async def _slice(self, total: SharedSum, part: SharedSlice, probe: Probe | None) -> Callable[[], Iterable[Block]]:
        """Return what returns the blocks of a slice, made by a worker or here."""
        codec = codec_named(total.merge.update_codec)
        made = await self._slices.made(total, part)
        if made is not None and probe is not None and not await self._worker.run(partial(probe.allows, part, made)):
            self._slices.refuse(total, part)
            made = None
        if made is None:
            return partial((await self._summed(total.step, part.layout, total.results)).encoded, codec.name)
        return blocks_in(made.view(), part.layout, codec).values

    async def _replica(self, run: Run, step: int) -> HeldReplica:
        """Return the coordinator's replica of a step: the one that is held, moved on by updates, or a checkpoint's."""
        checkpoints = [ref for ref in run.models.checkpoints if ref.step <= step]
        newest = checkpoints[-1]
        held = self._held
        if held is None or not newest.step <= held.step <= step:
            self._held = None
            held = await self._loaded(run, newest)
        while held.step < step:
            held = await self._after(run, held)
        self._held = held
        return held

    async def _after(self, run: Run, held: HeldReplica) -> HeldReplica:
        """Return the next replica, by the kept update, or by the same one made again if that is lost or damaged."""
        update, outcome = run.models.updates[held.step + 1], run.models.outcomes[held.step + 1]
        header, layout = UpdateHeader.of(outcome, self._merger.rule(outcome.step)), held.replica.layout
        blobs = run.models.blobs_of(update)
        try:
            async with opened_parts(self._service.blobs, [sha256 for sha256, _ in blobs]) as file:
                found = await self._merger.applied(held.replica, decode_update(file.view(), header, layout))
        except StoreBlocked:
            raise
        except (Refused, StoreFailed, InvalidDocument, Diverged) as error:
            wrong = error.message
        else:
            if found.digest == update.replica_digest:
                return found
            wrong = f"it leads to replica {found.digest}; {update.replica_digest} was journalled"
        log.warning("update_made_again", extra={"step": outcome.step, "reason": wrong})
        arrival = Arrival()
        _, found = await self._made(await self._sum_of(outcome), header, held.replica, arrival)
        self._sum = None
        if found.digest != update.replica_digest:
            self._held = None
            message = f"replica {found.step} is {found.digest}; {update.replica_digest} was journalled"
            raise Refused(Refusal.REPLICA_DIFFERS, message)
        async for _ in keep_in_parts(self._service.blobs, update.size_bytes, arrival.pieces(), blobs[0][1]):
            pass
        return found

    async def _loaded(self, run: Run, checkpoint: CheckpointRef) -> HeldReplica:
        """Return the replica of a checkpoint, copied to the spool."""
        async with opened_parts(self._service.blobs, [sha256 for sha256, _ in run.models.blobs_of(checkpoint)]) as blob:
            pieces = (blob[start : start + READ_BYTES] for start in range(0, len(blob), READ_BYTES))
            file = await self._worker.run(partial(self._spool.keep, pieces, len(blob)))
        replica = examined_replica(file.view())
        return HeldReplica(replica, checkpoint.replica_digest, file)

    async def _keep(self, step: int, arrival: Arrival, making: asyncio.Future[tuple[SpoolFile, HeldReplica]]) -> None:
        """Keep an update's bytes as they come, and journal it once its replica is made.

        One that somebody journalled first, or that is late, is dropped.
        """
        service, size_bytes = self._service, await arrival.size()
        with contextlib.ExitStack() as taken_in:
            try:
                if size_bytes <= MAX_DELIVERED_BYTES:
                    file, held = await making
                    self._check_lineage()
                    update = _named(step, file, held)
                    await service.submit(UpdateMade(update), {update.blob_sha256: file.to_bytes()})
                    return
                parts: list[CheckpointPart] = []
                await service.maintenance.make_room(size_bytes)
                part_bytes = update_part_bytes(size_bytes, service.run.state_file.blobs.part_bytes)
                async for part in keep_in_parts(service.blobs, size_bytes, arrival.pieces(), part_bytes):
                    taken_in.enter_context(service.maintenance.taking_in(part.sha256))
                    parts.append(part)
                _, held = await making
                self._check_lineage()
                made = UpdateMade(
                    UpdateRef(step, parts_digest(parts), size_bytes, held.digest, len(parts)),
                    tuple(parts) if len(parts) > 1 else (),
                )
                await service.submit(made)
            except Refused as refusal:
                if refusal.kind not in (Refusal.ALREADY_COMMITTED, Refusal.STALE_ROUND):
                    raise
                log.warning("update_not_taken", extra={"step": step, "reason": refusal.message})

    def _check_lineage(self) -> None:
        """Raise `Refused` if the run has gone back since the update was begun: the step may have another outcome."""
        if self._service.run.identity.lineage != self._lineage:
            raise Refused(Refusal.STALE_ROUND, "the run went back meanwhile")


def _named(step: int, file: SpoolFile, held: HeldReplica) -> UpdateRef:
    """Return the reference of an update that is one blob."""
    return UpdateRef(step, sha256_hex(file.to_bytes()), len(file), held.digest)


def _results_of(outcome: Outcome) -> list[AddedResult]:
    """Return what is added to the sum of an outcome, in order."""
    return [
        AddedResult(ClientId(entry.client_id), Sha256(entry.result_sha256), Weight.of(entry))
        for entry in outcome.entries
    ]


def _next_without_update(run: Run, checkpoint: CheckpointRef) -> Outcome | None:
    """Return the oldest outcome after the newest checkpoint that has no update; None if each has one."""
    steps = sorted(step for step in run.models.outcomes if step > checkpoint.step and step not in run.models.updates)
    return run.models.outcomes[steps[0]] if steps else None


def together(results: Iterable[tuple[AddedResult, int]]) -> Iterator[list[AddedResult]]:
    """Yield results that are added in one turn: the next ones, until they have `TOGETHER_BYTES`; sizes come along."""
    found, found_bytes = list[AddedResult](), 0
    for result, size_bytes in results:
        found.append(result)
        found_bytes += size_bytes
        if found_bytes >= TOGETHER_BYTES:
            yield found
            found, found_bytes = [], 0
    if found:
        yield found


def next_to_add(run: Run, current: Round, count: int) -> Iterator[tuple[ClientId, float]]:
    """Return clients and lengths of the verified results after the first so many; exams are left out of a sum."""
    norms = shared(current.results.norms)
    if run.state_file.verify is not None:
        exams = exams_of(run.state_file, run.members, current, current.tasks.with_work())
        if exams:
            return islice((one for one in norms.pairs() if one[0] not in exams), count, None)
    return norms.from_place(count)


def _most_batches(state: StateFile, current: Round) -> Fraction:
    """Return the largest number of batches that counts in the round, if every client delivers."""
    plan, alone = current.tasks.plan, current.tasks.work.isolated_batches()
    entries = [
        Weighed(
            batches := total_batches(given),
            steps_of(state, batches),
            0.0,
            client_id in plan.electorate,
            not alone.isdisjoint(given),
        )
        for client_id, given in plan.assignments.items()
        if given
    ]
    return most_batches(entries, current.tasks.roster.ceiling)
