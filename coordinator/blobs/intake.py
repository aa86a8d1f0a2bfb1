"""The one way of an announced blob: its bytes are held, checked, and then counted.

Held: the store compares size and digest (`check_content` in `coordinator/store/blobs.py`). Checked: by the rules of
results and checkpoints (`state/blob_checks.py`). Counted: a stimulus says so to the machine.

The bytes come from one of three sources: with the commitment (`inline_results.py`), by upload (`uploads.py`), or by an
object store (`from_object_store.py`).

The rule kept here: only a member that announced a blob may deliver it, and only well-formed bytes count. Others are
deleted unless the run needs the same ones for something else, so that no bad delivery costs another client its blob.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Protocol

from epochal.coordinator.blobs.announced import announced, is_delivered
from epochal.coordinator.blobs.checkpoint_intake import CheckpointIntake, check_size
from epochal.coordinator.blobs.leased_slices import LeasedSlices
from epochal.coordinator.machine.journal_records import NO_BLOBS
from epochal.coordinator.machine.stimuli import ResultReceived, StateRevealed
from epochal.coordinator.machine.views import ExpectedBlob, ExpectedPart, ExpectedState
from epochal.coordinator.run.genesis import LayoutOf, unknown_layout
from epochal.coordinator.run.service import CoordinatorService
from epochal.runtime.worker_thread import Worker
from epochal.state.blob_checks import verdict_on
from epochal.state.errors import Refused, StoreFailed
from epochal.state.messages.blob_messages import NO_ROOM, CheckVerdict, ExpectedResult
from epochal.state.messages.requests import ResultCommitment
from epochal.state.messages.round_times import milliseconds
from epochal.state.model.tensors import TensorLayout
from epochal.state.refusals import Refusal
from epochal.state.replays.inner_states import inner_state_size_bound
from epochal.state.results import result_size_bound
from epochal.state.wire import ClientId, Sha256

MAX_CHECKS = 2
"""Maximum number of blobs that are checked at a time: each is read once more, a piece at a time."""


class Source(Protocol):
    """Where the bytes of an announced blob come from."""

    @property
    def with_record(self) -> Mapping[Sha256, bytes]:
        """The bytes, if the record that counts them holds them; else nothing."""

    async def hold(self, expected: ExpectedBlob) -> CheckVerdict | None:
        """Hold the blob's bytes durably; return the verdict on a result that was checked on the way.

        With None, the held bytes are still to be checked. Bytes that break a rule need not be held.

        Raises:
            Refused: the bytes did not come, are others than announced, or find no room.
            StoreFailed: the medium fails.
        """


class Intake:
    """Takes the announced blobs of one service.

    Args:
        layout_of: names and shapes that the first checkpoint of a model must have.

    Attributes:
        service: the run's.
        worker: checks the bytes.
        checking: held while a blob is checked.
        checkpoints: takes those, and knows their form.
        slices: of updates, which workers make of the results.
    """

    def __init__(self, service: CoordinatorService, worker: Worker, layout_of: LayoutOf = unknown_layout) -> None:
        self.service = service
        self.worker = worker
        self.checking = asyncio.Semaphore(MAX_CHECKS)
        self.slices = LeasedSlices(service.now_s, self._stored_at, worker)
        self.checkpoints = CheckpointIntake(service, worker, layout_of, self.checking)

    async def _stored_at(self, sha256: Sha256) -> tuple[str, int] | None:
        """Return the URL of a blob in the object store, and its size; None if it is not there."""
        blobs = self.service.blobs
        size_bytes, url = await blobs.size(sha256), await blobs.signed_get(sha256)
        return None if size_bytes is None or url is None else (url, size_bytes)

    async def layout(self) -> TensorLayout:
        """Return names and shapes of the run's tensors, which every result and checkpoint must have.

        Raises as `CheckpointIntake.form` does.
        """
        return (await self.checkpoints.form()).layout

    async def check_result_size(self, commitment: ResultCommitment) -> None:
        """Raise `Refused` (`blob-too-large`) if a result or its states are larger than the model implies.

        Else as `layout` does.
        """
        codec = self.service.merge_at(commitment.step).codec_name
        layout = await self.layout()
        check_size("result", commitment.size_bytes, result_size_bound(layout, codec))
        for file in () if commitment.states is None else commitment.states.files():
            check_size("inner state", file.size_bytes, inner_state_size_bound(layout))

    def expected(self, client_id: ClientId, sha256: Sha256) -> ExpectedBlob | None:
        """Return the blob that this member announced and may deliver now; None if it was delivered and counted before.

        Raises:
            Refused: `not-committed`, `late-result`, `result-invalid` or `unauthorized`: it may deliver no such blob.
        """
        run = self.service.run
        return None if is_delivered(run, client_id, sha256) else announced(run, client_id, sha256)

    async def take(self, expected: ExpectedBlob, source: Source) -> None:
        """Hold, check and count an announced blob.

        Raises:
            Refused: `result-invalid`, if it breaks a rule (the context's `rule` says which); as `Source.hold`, and as
                `CoordinatorService.submit`.
            StoreFailed: the medium fails.
        """
        if isinstance(expected, ExpectedPart):
            async with self.noting_no_room(expected):
                await source.hold(expected)
            await self.checkpoints.take_part(expected)
            return
        if isinstance(expected, ExpectedState):
            with self.service.maintenance.taking_in(expected.sha256):
                async with self.noting_no_room(expected):
                    await source.hold(expected)
                await self.service.submit(StateRevealed(expected.client_id, expected.sha256))
            return
        verdict = None
        try:
            with self.service.maintenance.taking_in(expected.sha256):
                async with self.noting_no_room(expected):
                    found = await source.hold(expected)
                verdict = found or await self._verdict_on_held(expected)
                await self._count(expected, verdict, source.with_record)
            if verdict.rule is not None:
                message = f"the result breaks rule {verdict.rule!r}: {verdict.message}"
                raise Refused(Refusal.RESULT_INVALID, message, rule=verdict.rule)
        except Refused:
            if verdict is not None:  # the bytes may be held, and are not counted
                await self.service.maintenance.drop_unless_needed(expected.sha256, self.service.run)
            raise

    async def _count(
        self, expected: ExpectedResult, verdict: CheckVerdict, with_record: Mapping[Sha256, bytes] = NO_BLOBS
    ) -> None:
        received = ResultReceived(expected.client_id, expected.commitment, verdict)
        await self.service.submit(received, with_record)

    async def _verdict_on_held(self, expected: ExpectedResult) -> CheckVerdict:
        layout, began_s = await self.layout(), self.service.now_s()
        async with self.checking, self.service.blobs.opened(expected.sha256) as data:
            verdict = await self.worker.run(partial(verdict_on, expected, layout, data))
        return self.timed(verdict, began_s)

    def timed(self, verdict: CheckVerdict, began_s: float) -> CheckVerdict:
        """Return a verdict with the time that the check took, waits included."""
        return replace(verdict, took_ms=milliseconds(self.service.now_s() - began_s))

    async def make_room(self, expected: ExpectedBlob) -> int:
        """Make room if there is some to be made; return how much must stay free beside the blob.

        Results leave room for a checkpoint: without one, no blob would ever be swept again.
        """
        is_result = isinstance(expected, ExpectedResult)
        spare_bytes = (await self.checkpoints.form()).size_bound if is_result else 0
        await self.service.maintenance.make_room(expected.size_bytes + spare_bytes)
        return spare_bytes

    @contextlib.asynccontextmanager
    async def noting_no_room(self, expected: ExpectedBlob) -> AsyncIterator[None]:
        """End the epoch early if a blob finds no room. Its sender is not blamed; the refusal passes through."""
        try:
            yield
        except Refused as refusal:
            if refusal.kind is Refusal.BLOBS_FULL:
                if isinstance(expected, ExpectedResult):
                    with contextlib.suppress(Refused):  # the round is over: nobody is blamed any more
                        await self._count(expected, CheckVerdict(rule=NO_ROOM, message=refusal.message))
                await self.service.note_blobs_near_bound()
            raise

    @contextlib.contextmanager
    def failures_noted(self) -> Iterator[None]:
        """Note a failure of the store, and raise it as a refusal."""
        try:
            yield
        except StoreFailed as error:
            self.service.note_failure(error)
            raise self.service.health.refusal() from error
