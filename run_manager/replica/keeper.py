"""The replica of this client: built from checkpoint and outcomes, kept up to date, dropped if it differs from the rest.

Theory of operation. The run document asks for replica `document.step − 1`; `apply_state` makes the document the aim.
One task (`run`) moves towards that replica one step at a time: it loads the verified checkpoint, or applies the next
update. Between two steps it reads the aim again, so a document that arrives meanwhile neither restarts the work nor
waits for it. The machine's steps wait with `at`. A blob that a document names and the coordinator lacks is requested
again, and one warning says that the run waits for it. An update that does not come in time, or is not what it must be,
is made here, from the outcome's results: the bytes are the same.

The rules kept here: an update is applied only to the replica whose digest its outcome's quorum attested; a replica that
differs from what the update leads to is dropped and rebuilt, never repaired; and one that still differs after several
rebuilds ends this client, because its arithmetic differs.
"""

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Protocol

from epochal.run_manager.events import Observer, OutcomeMerged, ReplicaDistrusted, ReplicaHeld
from epochal.run_manager.exchange import Exchange
from epochal.run_manager.replica.checkpoint_download import CheckpointDownload
from epochal.runtime.broadcast import Broadcast
from epochal.runtime.files.spool import Spool, SpoolFile
from epochal.runtime.merging.arrival import Arrival
from epochal.runtime.merging.merger import HeldReplica, Merger
from epochal.runtime.task_errors import one_error
from epochal.runtime.worker_thread import Worker
from epochal.state.documents import CheckpointRef, Outcome, OwnOutcome, RunDocument, UpdateRef
from epochal.state.errors import Desync, InvalidDocument, Refused
from epochal.state.model.replica import Replica, examine_checkpoint, examined_replica
from epochal.state.model.tensors import TensorLayout
from epochal.state.refusals import Refusal
from epochal.state.shown.spool_room import REPLICAS_OF_A_ROUND
from epochal.state.updates import UpdateHeader, UpdateSum, Weight
from epochal.state.wire import document_digest

log = logging.getLogger(__name__)

MAX_REBUILDS_PER_STEP = 3
MISSING_RETRY_S = 10.0
"""Time after which something that the coordinator lacks, and that the run needs, is asked for again."""
LACKING = (
    "nobody can build the model: the run waits until the coordinator's operator puts it back from a backup, or the run "
    "moves on without it"
)


class UpdateRequests(Protocol):
    """The requests of a coordinator that name what replicas apply. They are repeated by themselves."""

    async def outcome(self, step: int) -> Outcome:
        """Return the outcome of a step. Raises `Refused` (`not-found`) if none is kept."""
        ...

    async def own_outcome(self, step: int) -> OwnOutcome:
        """Return what this member needs of the outcome of a step. Raises `Refused` (`not-found`) if none is kept."""
        ...

    async def update(self, step: int) -> UpdateRef:
        """Return the update of a step. Raises `Refused` (`not-found`) if none is kept."""
        ...


class ReplicaKeeper:
    """Holds this client's replica. Keep `run` running in a task group.

    Args:
        requests: the coordinator.
        download: fetches checkpoints and updates.
        exchange: fetches the results of an update that does not come.
        merger: applies updates, and makes those that do not come.
        spool: where new replicas are written.
        worker: checks checkpoints, off the event loop.
        check_checkpoint: raises `InvalidDocument` if a checkpoint's replica must not be held; it ends this client.
        on_outcome: called with every outcome applied, before `at` returns the replica.
        observer: receives `ReplicaHeld`, `ReplicaDistrusted` and `OutcomeMerged`.
        update_wait_s: `merge.update_wait_s`.
    """

    def __init__(
        self,
        requests: UpdateRequests,
        download: CheckpointDownload,
        exchange: Exchange,
        merger: Merger,
        spool: Spool,
        worker: Worker,
        check_checkpoint: Callable[[Replica], None],
        on_outcome: Callable[[OwnOutcome], None],
        observer: Observer,
        update_wait_s: float,
    ) -> None:
        self._requests = requests
        self._download = download
        self._exchange = exchange
        self._merger = merger
        self._spool = spool
        self._worker = worker
        self._check_checkpoint = check_checkpoint
        self._on_outcome = on_outcome
        self._observer = observer
        self._update_wait_s = update_wait_s
        self._aim: RunDocument | None = None
        self._held: HeldReplica | None = None
        self._rebuilt_for: tuple[str, int, int] | None = None
        self._distrusted: tuple[int, int] = (-1, 0)
        self._missing: int | None = None
        self._outcome: OwnOutcome | None = None
        """The last one that was asked for."""
        self._awaited: tuple[int, float] | None = None
        """The step whose update was waited for last, and until when, on the event loop's clock."""
        self._waits_until_s: float | None = None
        """Until when an update is waited for now."""
        self._lacking: tuple[str, int] | None = None
        """The blob that the coordinator lacked at the last attempt, and its step."""
        self._warned_of: tuple[str, int] | None = None
        self._history = 0
        self._changed = Broadcast()

    @property
    def held(self) -> HeldReplica | None:
        """The replica that is held now, of any step."""
        return self._held

    async def apply_state(self, document: RunDocument) -> None:
        """Move towards the replica that this document asks for."""
        self._aim = document
        self._missing = None
        self._changed.notify()

    def adopt(self, held: HeldReplica) -> None:
        """Hold the run's initial replica, which this client made."""
        self._hold(held, "initial")

    def distrust(self, reason: str) -> None:
        """Drop the replica, to rebuild it from checkpoint and outcomes.

        Raises:
            Desync: the same replica was rebuilt `MAX_REBUILDS_PER_STEP` times; this machine's arithmetic differs from
                that of the others. Do not retry.
        """
        if self._held is None:
            return
        step, count = self._held.step, 1
        if self._distrusted[0] == step:
            count += self._distrusted[1]
        self._distrusted = (step, count)
        if count > MAX_REBUILDS_PER_STEP:
            raise Desync(f"replica {step} was rebuilt {count - 1} times and still differs: {reason}", step=step)
        self._drop(reason)

    def forget(self) -> None:
        """Drop the replica because the run's history changed."""
        self._history += 1
        self._aim = self._outcome = None  # the next document says what to aim at
        self._distrusted = (-1, 0)
        self._drop("the run's history changed")

    async def at(self, step: int) -> HeldReplica:
        """Return replica `step`, as soon as it is held and the run document does not ask for a rebuild of it."""
        while (held := await self.at_unless_passed(step)) is None:
            await self._changed.wait()
        return held

    async def at_unless_passed(self, step: int) -> HeldReplica | None:
        """Return replica `step` as `at`, or None as soon as a later one is held, so that it will not be again."""
        while True:
            held, aim = self._held, self._aim
            if held is not None and held.step > step:
                return None
            if held is not None and held.step == step and (aim is None or not self._must_rebuild(held, aim)):
                return held
            await self._changed.wait()

    async def outcome(self, step: int) -> OwnOutcome:
        """Return what this client needs of the outcome of a step. Raises `Refused`.

        The last one that was asked for is not requested again.
        """
        found = self._outcome
        if found is None or found.step != step:
            found = self._outcome = await self._requests.own_outcome(step)
        return found

    async def run(self) -> None:
        """Move towards the aim, until cancelled.

        Raises:
            Desync: see `distrust`.
            InvalidDocument, InvalidResult, Diverged: the run's own blobs cannot be applied to any replica.
        """
        while True:
            changed, aim = self._changed.next, self._aim
            self._lacking = self._waits_until_s = None
            if aim is None or not await self._advance(aim):
                await self._wait_for(changed)

    async def _wait_for(self, changed: asyncio.Event) -> None:
        """Wait for the change; for an update, or for a blob that the coordinator lacks, only a while; warn once."""
        until_s = self._waits_until_s
        if self._lacking is not None:
            until_s = asyncio.get_running_loop().time() + MISSING_RETRY_S
        try:
            async with asyncio.timeout_at(until_s):
                await changed.wait()
        except TimeoutError:
            if self._lacking is not None and self._warned_of != self._lacking:
                what, step = self._warned_of = self._lacking
                log.warning("coordinator_lacks", extra={"what": what, "step": step, "consequence": LACKING})
            self._missing = None

    async def _advance(self, aim: RunDocument) -> bool:
        """Take one step towards the aim; return False if none is possible before something changes."""
        held = self._held
        if held is None:
            self._rebuilt_for = _rebuild_of(aim)
        elif self._must_rebuild(held, aim):
            self._rebuilt_for = _rebuild_of(aim)
            self._drop("the run asks for a rebuild, or for another replica of this step")
            return True
        elif held.step == aim.step - 1:
            return False
        if aim.checkpoint is not None and (held is None or not aim.checkpoint.step <= held.step <= aim.step - 1):
            return await self._load(aim.checkpoint)
        if held is None or held.step > aim.step - 1:
            return False
        if self._missing == held.step + 1:
            self._lacking = ("results or outcome", self._missing)
            return False
        return await self._apply_next(held, aim)

    def _must_rebuild(self, held: HeldReplica, aim: RunDocument) -> bool:
        if _rebuild_of(aim) not in (None, self._rebuilt_for):
            return True
        checkpoint = aim.checkpoint
        return checkpoint is not None and checkpoint.step == held.step and checkpoint.replica_digest != held.digest

    async def _load(self, checkpoint: CheckpointRef) -> bool:
        history = self._history
        try:
            self._spool.check_room(REPLICAS_OF_A_ROUND * checkpoint.size_bytes, "the run's model")
            file = await self._download.fetch(checkpoint)
        except Refused as refusal:
            if refusal.kind is not Refusal.NOT_FOUND:
                raise
            log.info("checkpoint_not_found", extra={"step": checkpoint.step, "reason": refusal.message})
            self._lacking = ("checkpoint", checkpoint.step)
            return False
        held = await self._worker.run(partial(self._parse_checkpoint, file))
        if (held.step, held.digest) != (checkpoint.step, checkpoint.replica_digest):
            raise InvalidDocument(
                f"the checkpoint of step {checkpoint.step} holds replica {held.step} with digest {held.digest}, "
                f"not {checkpoint.replica_digest}"
            )
        if history == self._history:
            self._hold(held, "checkpoint")
        return True

    def _parse_checkpoint(self, file: SpoolFile) -> HeldReplica:
        found = examine_checkpoint(file)
        replica = examined_replica(file.view())
        self._check_checkpoint(replica)
        self._spool.drop_pages()
        return HeldReplica(replica, found.replica_digest)

    async def _apply_next(self, held: HeldReplica, aim: RunDocument) -> bool:
        """Apply the next update; return False if it is still waited for."""
        step = held.step + 1
        try:
            outcome = await self.outcome(step)
            if step == aim.step - 1 and aim.last_outcome_sha256 not in (None, outcome.outcome_sha256):
                self._outcome = None
                raise Refused(Refusal.NOT_FOUND, "the outcome is not the one that the run document names")
            if outcome.replica_digest != held.digest:
                if self._held is held:
                    self.distrust(f"the outcome of step {step} was attested on {outcome.replica_digest}")
                return True
            named = await self._named_update(step, aim)
            if named is None and self._is_awaited(step):
                return False
            merged, merge_s = await self._merged(outcome, named, held.replica)
        except Refused as refusal:
            if refusal.kind is not Refusal.NOT_FOUND:
                raise
            log.info("outcome_not_found", extra={"step": step, "reason": refusal.message})
            self._missing = step
            return True
        self._observer(OutcomeMerged(step, merge_s))
        if self._held is held:
            self._awaited = None
            self._on_outcome(outcome)
            self._hold(merged, "outcome")
            if named is not None and merged.digest != named.replica_digest:
                self.distrust(f"the update of step {step} leads to {named.replica_digest}")
        return True

    async def _named_update(self, step: int, aim: RunDocument) -> UpdateRef | None:
        """Return the update of a step, if it is made."""
        if step == aim.step - 1:
            return aim.update
        try:
            return await self._requests.update(step)
        except Refused as refusal:
            if refusal.kind is not Refusal.NOT_FOUND:
                raise
            return None

    def _is_awaited(self, step: int) -> bool:
        """Return whether there is still time for the update of a step to come; the first call begins to wait."""
        now_s = asyncio.get_running_loop().time()
        if self._awaited is None or self._awaited[0] != step:
            self._awaited = (step, now_s + self._update_wait_s)
        if now_s >= self._awaited[1]:
            return False
        self._waits_until_s = self._awaited[1]
        return True

    async def _merged(self, own: OwnOutcome, named: UpdateRef | None, start: Replica) -> tuple[HeldReplica, float]:
        """Return the replica after an outcome, and the time that it took once all bytes were there.

        Its update is fetched, and applied meanwhile, or made here of its results.
        """
        codec, now_s = self._merger.rule(own.step).codec, asyncio.get_running_loop().time
        header = UpdateHeader(own.run_id, own.step, own.outcome_sha256, codec)
        if named is not None:
            try:
                return await self._fetched_and_applied(named, header, start)
            except (Refused, InvalidDocument) as error:
                if isinstance(error, Refused) and error.kind is not Refusal.NOT_FOUND:
                    raise
                log.warning("update_unusable", extra={"step": own.step, "reason": error.message})
        else:
            log.warning("update_late", extra={"step": own.step, "waited_s": self._update_wait_s})
        outcome = await self._requests.outcome(own.step)
        if document_digest(outcome) != own.outcome_sha256:
            self._outcome = None
            raise Refused(Refusal.NOT_FOUND, "the outcome has changed meanwhile")
        total = await self._summed(outcome, start.layout)
        began_s = now_s()
        _, merged = await self._merger.made(total, header, start)
        return merged, now_s() - began_s

    async def _summed(self, outcome: Outcome, layout: TensorLayout) -> UpdateSum:
        """Return the sum of an outcome's results, fetched one after the other: the spool holds it and one of them."""
        total = await self._merger.new_sum(outcome.step, layout)
        for entry in outcome.entries:
            file = await self._exchange.fetch(entry.result_sha256, entry.size_bytes)
            await self._merger.add(total, [(Weight.of(entry), file.view())], layout)
            self._exchange.forget([entry.result_sha256])
        return total

    async def _fetched_and_applied(
        self, named: UpdateRef, header: UpdateHeader, start: Replica
    ) -> tuple[HeldReplica, float]:
        arrival, now_s = Arrival(), asyncio.get_running_loop().time
        with one_error():
            async with asyncio.TaskGroup() as group:
                applying = group.create_task(self._merger.applied_on_arrival(start, arrival, header))
                await self._download.fetch(named, arrival)
                arrived_s = now_s()
                await asyncio.wait([applying])
        return applying.result(), now_s() - arrived_s

    def _drop(self, reason: str) -> None:
        if self._held is not None:
            step, self._held = self._held.step, None
            log.warning("replica_dropped", extra={"step": step, "reason": reason})
            self._observer(ReplicaDistrusted(step, reason))
            self._changed.notify()

    def _hold(self, held: HeldReplica, origin: str) -> None:
        self._held = held
        self._changed.notify()
        self._observer(ReplicaHeld(held.step, held.digest, origin))


def _rebuild_of(document: RunDocument) -> tuple[str, int, int] | None:
    """Return the round for which the run document asks everybody to rebuild, if it does."""
    head = document.round
    return (document.lineage, head.step, head.attempt) if document.rebuild and head is not None else None
