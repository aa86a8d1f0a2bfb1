"""Uploads of the bytes that members announced: results and checkpoints are received, checked, and then counted.

The rule kept here: only a member that announced a blob may deliver it, and only well-formed bytes count. Others are
deleted unless the run needs the same ones for something else, so that no bad delivery costs another client its blob.

An upload ends when the run waits for it no longer: with its round, or with its sender's membership. Its minimum rate
and its place are those of `coordinator/blobs/transfers.py`. One whose connection breaks waits for its rest
(`coordinator/blobs/resumable_uploads.py`).
"""

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from functools import partial
from typing import TypeVar

from epochal.coordinator.blobs.announced import announced, expectations, is_delivered, refusal_of
from epochal.coordinator.blobs.recent_results import RecentResults
from epochal.coordinator.blobs.result_checks import ResultChecks, check_size, delete_unless_needed
from epochal.coordinator.blobs.resumable_uploads import BlobBody, ResumableUploads
from epochal.coordinator.blobs.transfers import MIN_BYTES_PER_S, PlaceCounts, Places, Transfer
from epochal.coordinator.machine.run import Run
from epochal.coordinator.machine.stimuli import CheckpointHeld, CheckpointRejected, ResultFoundNoRoom
from epochal.coordinator.machine.views import ExpectedBlob, checkpoint_blobs
from epochal.coordinator.run.genesis import GenesisRules, LayoutOf, unknown_layout
from epochal.coordinator.run.service import CoordinatorService
from epochal.coordinator.store.blobs import OpenBlob
from epochal.coordinator.store.checkpoint_blobs import digest_of_parts, keep_in_parts, opened_parts
from epochal.runtime.worker_thread import Worker
from epochal.state.checkpoint_parts import CheckpointPart, parts_digest
from epochal.state.documents import CheckpointRef
from epochal.state.errors import InvalidDocument, Refused, StoreFailed
from epochal.state.messages.blob_messages import UploadProgress
from epochal.state.messages.requests import CheckpointReport
from epochal.state.model.replica import (
    CheckpointForm,
    check_layout,
    check_momentum,
    checkpoint_form,
    examine_checkpoint,
)
from epochal.state.model.tensors import Readable, TensorLayout
from epochal.state.refusals import Refusal
from epochal.state.wire import ClientId, Sha256

MAX_UPLOADS = 512
"""Maximum number of blobs received at a time; each takes up to half a megabyte of memory. Others wait unread."""
MAX_UPLOADS_PER_CLIENT = 4
"""A client uploads one blob at a time; the rest is for connections that broke unnoticed."""

T = TypeVar("T")


class Uploads:
    """Takes announced blobs for one service.

    Args:
        worker: checks the bytes.
        layout_of: names and shapes that the first checkpoint of a model must have.
    """

    def __init__(self, service: CoordinatorService, worker: Worker, layout_of: LayoutOf = unknown_layout) -> None:
        self._service = service
        self._worker = worker
        self._layout_of = layout_of
        self._form: CheckpointForm | None = None
        self._receiving_genesis = asyncio.Lock()
        self._reading_layout = asyncio.Lock()
        self._places = Places(PlaceCounts(MAX_UPLOADS, MAX_UPLOADS_PER_CLIENT), service.now_s)
        self._receiving: dict[Transfer, Sha256] = {}
        self._resumable = ResumableUploads(self._take, service.note_failure)
        service.maintenance.paused = self._resumable
        self.results = ResultChecks(service, worker, self.layout)
        self.recent = RecentResults(service.blobs, service.recorded_blobs)
        self._taking_checkpoint = asyncio.Lock()
        service.readers.on_change(self._end_unexpected)

    @property
    def running_count(self) -> int:
        """Number of blobs that are being received."""
        return self._places.running_count

    async def aclose(self) -> None:
        """End the uploads that wait for their rest."""
        await self._resumable.aclose()

    async def layout(self) -> TensorLayout:
        """Return the names and shapes of the run's tensors, which every result and checkpoint must have.

        Raises as `form` does.
        """
        return (await self.form()).layout

    async def form(self) -> CheckpointForm:
        """Return which values the run's checkpoints have. It is that of any step's.

        It is read once, from a checkpoint: a later checkpoint is only accepted if it has the same.

        Raises:
            Refused: `not-now`, when the run has no checkpoint yet.
        """
        checkpoint = self._service.run.models.checkpoint
        if checkpoint is None:
            raise Refused(Refusal.NOT_NOW, "the run has no checkpoint yet")
        async with self._reading_layout:
            if self._form is None:
                async with self._opened(checkpoint_blobs(self._service.run, checkpoint)) as data:
                    self._form = await self._worker.run(partial(checkpoint_form, data))
        return self._form

    async def progress(self, client_id: ClientId, sha256: Sha256) -> UploadProgress:
        """Return how much of an announced blob has arrived from this member. A request that sends some now ends.

        Raises:
            Refused: as `expected`; `overloaded`, if all of it has arrived and its check takes long.
        """
        if self.expected(client_id, sha256) is None:
            return UploadProgress(0, delivered=True)
        received = self._resumable.received_bytes(client_id, sha256)
        if await self._resumable.finish(client_id, sha256):
            return UploadProgress(received, delivered=True)
        self.expected(client_id, sha256)  # its check may have refused it
        return UploadProgress(self._resumable.received_bytes(client_id, sha256))

    async def receive(self, client_id: ClientId, sha256: Sha256, body: BlobBody) -> None:
        """Take an announced blob, check it, and count it. A blob that was delivered before is accepted unread.

        Args:
            client_id: a member, authenticated.
            sha256: the digest that it announced.
            body: the bytes, or those that have not arrived before.

        Raises:
            Refused: `not-committed`, `late-result`, `blob-mismatch`, `blob-too-large`, `blobs-full`, `result-invalid`
                (the context's `rule` says why), `body-timeout` (too slow), `overloaded`, `unauthorized` (the member has
                left), `store-failed`, `offset-differs` (other bytes follow), and as reading the body raises.
        """
        await self._resumable.finish(client_id, sha256)
        expected = self.expected(client_id, sha256)
        if expected is None:
            return
        if self._service.health.problem is not None:
            raise self._service.health.refusal()
        start = body.start_in(expected.size_bytes)
        try:
            async with self._places.place(client_id, self._needed_bytes_per_s(expected)) as transfer:
                self._receiving[transfer] = sha256
                try:
                    if await self._is_held(expected):
                        await self._service.blobs.receive(expected.sha256, expected.size_bytes, _no_pieces())
                        self._service.heard(client_id)
                        await self.take_held(expected)
                    else:
                        await self._resumable.receive(expected, transfer, _moved_by(transfer, body.pieces), start)
                finally:
                    del self._receiving[transfer]
        except StoreFailed as error:
            self._service.note_failure(error)
            raise self._service.health.refusal() from error

    def expected(self, client_id: ClientId, sha256: Sha256) -> ExpectedBlob | None:
        """Return the blob that this member announced and may deliver now; None if it was delivered and counted before.

        Raises:
            Refused: `not-committed`, `late-result`, `result-invalid` or `unauthorized`: it may deliver no such blob.
        """
        run = self._service.run
        return None if is_delivered(run, client_id, sha256) else announced(run, client_id, sha256)

    async def take_held(self, expected: ExpectedBlob) -> None:
        """Check an announced blob that is held, and count it. Raises `Refused` and `StoreFailed` as `receive`."""
        if expected.claim is not None:
            await self._take_part(expected, expected.claim)
        else:
            await self.results.take_held(expected)

    async def check_checkpoint_size(self, size_bytes: int) -> None:
        """Raise `Refused` (`blob-too-large`) if an announced checkpoint of this size is too large for the run."""
        if self._service.run.models.checkpoint is None:
            await self.check_first_size(size_bytes)
        else:
            check_size("checkpoint", size_bytes, (await self.form()).size_bound)

    async def check_first_size(self, size_bytes: int) -> None:
        """Raise `Refused` (`blob-too-large`) if a first checkpoint of this size is too large for the run."""
        await self._worker.run(partial(self._genesis_rules.check_size, size_bytes))

    @property
    def _genesis_rules(self) -> GenesisRules:
        run = self._service.run
        return GenesisRules.of(run.state_file, run.progress.replica_step, self._layout_of)

    async def receive_genesis(
        self, sha256: Sha256, body: AsyncIterator[bytes], length_bytes: int | None
    ) -> CheckpointRef:
        """Take the run's first checkpoint from its operator, check it, and return its reference.

        Args:
            sha256: the digest of the bytes.
            body: the bytes.
            length_bytes: their number.

        Raises:
            Refused: `not-now` if the run has another first checkpoint, `result-invalid` (the context's `rule` says
                why), `invalid-parameter` without a length, and as `receive` does.
        """
        if length_bytes is None:
            raise Refused(Refusal.INVALID_PARAMETER, "a first checkpoint needs a Content-Length header")
        async with self._receiving_genesis:
            run = self._service.run
            if run.models.checkpoints:
                first = run.models.checkpoints[0]
                if await digest_of_parts(self._service.blobs, checkpoint_blobs(run, first)) != sha256:
                    raise Refused(Refusal.NOT_NOW, f"the run has a first checkpoint already, of replica {first.step}")
                return first
            await self.check_first_size(length_bytes)
            parts: list[CheckpointPart] = []
            try:
                await self._keep_genesis(sha256, body, length_bytes, parts)
                async with self._opened([(part.sha256, part.size_bytes) for part in parts]) as data:
                    provided = await self._worker.run(partial(self._genesis_rules.check, data, tuple(parts)))
                await self._service.submit(provided)
            except InvalidDocument as error:
                raise Refused(Refusal.RESULT_INVALID, error.message, **error.context) from error
            except StoreFailed as error:
                self._service.note_failure(error)
                raise self._service.health.refusal() from error
            finally:
                for part in parts:
                    await delete_unless_needed(self._service, part.sha256, self._service.run)
        return provided.checkpoint

    def _needed_bytes_per_s(self, expected: ExpectedBlob) -> float:
        """Return the minimum rate of an upload: a lower one than usual is enough if the blob arrives within the phase.

        So members that share a slow link are not harmed.
        """
        run = self._service.run
        if run.clock.phase_ends_s is None:
            return MIN_BYTES_PER_S
        return min(MIN_BYTES_PER_S, expected.size_bytes / max(1.0, run.clock.phase_ends_s - self._service.now_s()))

    def _end_unexpected(self, before: Run, run: Run) -> None:
        """End the uploads that the run waits for no longer."""
        if expectations(run) == expectations(before) and run.members.by_id is before.members.by_id:
            return
        for client_id, sha256 in self._resumable.under_way():
            if (refusal := refusal_of(run, client_id, sha256)) is not None:
                self._resumable.end(client_id, sha256, refusal)
        for transfer, sha256 in self._receiving.items():
            if (refusal := refusal_of(run, transfer.client_id, sha256)) is not None:
                transfer.end(refusal)

    async def _take(self, expected: ExpectedBlob, body: AsyncIterator[bytes]) -> None:
        """Receive the bytes, check and count them. Whoever sends them may leave after the last."""
        await self._keep(expected, body)
        self._service.heard(expected.client_id)
        await self.take_held(expected)

    async def _keep(self, expected: ExpectedBlob, body: AsyncIterator[bytes]) -> None:
        """Receive the bytes."""
        spare_bytes = await self.make_room(expected)
        pieces = self._service.maintenance.with_room(body, expected.size_bytes, spare_bytes)
        kept = self._service.blobs.receive(expected.sha256, expected.size_bytes, pieces, spare_bytes)
        await self.ending_epoch_when_full(expected, kept)

    async def make_room(self, expected: ExpectedBlob) -> int:
        """Make room if there is some to be made; return how much must stay free beside the blob.

        Results leave room for a checkpoint: without one, no blob would ever be swept again.
        """
        spare_bytes = (await self.form()).size_bound if expected.kind == "result" else 0
        await self._service.maintenance.make_room(expected.size_bytes + spare_bytes)
        return spare_bytes

    async def ending_epoch_when_full(self, expected: ExpectedBlob, step: Awaitable[T]) -> T:
        """Return what a step returns that needs room for a blob.

        If it finds none, the epoch ends early, its sender is not blamed, and what it raises passes through.
        """
        try:
            return await step
        except Refused as refusal:
            if refusal.kind == Refusal.BLOBS_FULL:
                if expected.kind == "result":
                    sender, step_number, attempt = expected.client_id, expected.step, expected.attempt
                    with contextlib.suppress(Refused):  # the round is over: nobody is blamed any more
                        await self._service.submit(ResultFoundNoRoom(sender, step_number, attempt, expected.sha256))
                await self._service.note_blobs_near_bound()
            raise

    async def _is_held(self, expected: ExpectedBlob) -> bool:
        return await self._service.blobs.size(expected.sha256) == expected.size_bytes

    def _opened(self, blobs: Sequence[tuple[Sha256, int]]) -> AbstractAsyncContextManager[OpenBlob]:
        """Open a checkpoint of these blobs, by digest and size."""
        return opened_parts(self._service.blobs, [sha256 for sha256, _ in blobs])

    async def _keep_genesis(
        self, sha256: Sha256, body: AsyncIterator[bytes], size_bytes: int, kept: list[CheckpointPart]
    ) -> None:
        """Receive the operator's first checkpoint; add its parts to `kept`, also those before a failure."""
        blobs, part_bytes = self._service.blobs, self._service.run.state_file.blobs.part_bytes
        if size_bytes <= part_bytes:
            kept.append(CheckpointPart(sha256, size_bytes))
            await blobs.receive(sha256, size_bytes, body)
            return
        whole = hashlib.sha256()
        async for part in keep_in_parts(blobs, size_bytes, body, part_bytes, whole.update):
            kept.append(part)  # noqa: PERF401 - those before a failure must be known
        if whole.hexdigest() != sha256:
            message = f"the checkpoint hashes to {whole.hexdigest()}; {sha256} was announced"
            raise Refused(Refusal.BLOB_MISMATCH, message)

    async def _take_part(self, expected: ExpectedBlob, claim: CheckpointReport) -> None:
        """Check a checkpoint if all of its parts have arrived; one check of it suffices."""
        async with self._taking_checkpoint:
            making = self._service.run.models.checkpointing
            held = None if making is None else making.held.get(expected.client_id)
            if held is not None and held.blob_sha256 == claim.blob_sha256:
                return
            for sha256, size_bytes in claim.blobs():
                if await self._service.blobs.size(sha256) != size_bytes:
                    return
            async with self.results.checking:
                await self._take_checkpoint(expected, claim)

    async def _take_checkpoint(self, expected: ExpectedBlob, claim: CheckpointReport) -> None:
        blobs = claim.blobs()
        parts = tuple(CheckpointPart(sha256, size_bytes) for sha256, size_bytes in blobs)
        digest = parts_digest(parts)
        form = None if self._service.run.models.checkpoint is None else await self.form()
        rules = self._genesis_rules

        def check(data: Readable) -> CheckpointRef:
            if form is None:
                return rules.check(data, parts).checkpoint
            found = examine_checkpoint(data)
            if found.form.step != expected.step:
                raise InvalidDocument(
                    f"a checkpoint of replica {found.form.step}; {expected.step} was asked for", rule="step"
                )
            check_layout(found.form.layout, form.layout)
            check_momentum(found.form.has_momentum, form.has_momentum)
            return CheckpointRef(expected.step, digest, len(data), Sha256(found.replica_digest), len(parts))

        try:
            async with self._opened(blobs) as data:
                held = await self._worker.run(partial(check, data))
        except InvalidDocument as error:
            rule = str(error.context.get("rule", "form"))
            await self._service.submit(CheckpointRejected(expected.client_id, expected.step, digest, rule))
            for sha256, _ in blobs:
                await delete_unless_needed(self._service, sha256, _without_claim(self._service.run, expected.client_id))
            raise Refused(Refusal.RESULT_INVALID, str(error), **error.context) from error
        await self._service.submit(CheckpointHeld(expected.client_id, held))


def _without_claim(run: Run, client_id: ClientId) -> Run:
    """Return the run as if this client had announced no checkpoint, so that its blobs are not needed."""
    making = run.models.checkpointing
    if making is None:
        return run
    claims = {claimer: claim for claimer, claim in making.claims.items() if claimer != client_id}
    return run.with_parts(replace(run.models, checkpointing=replace(making, claims=claims)))


async def _no_pieces() -> AsyncIterator[bytes]:
    """Yield nothing: the bytes of a part that is held are not read once more."""
    return
    yield b""


async def _moved_by(transfer: Transfer, body: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield the pieces of an upload's body while it may go on."""
    while (piece := await transfer.move(lambda: anext(body, None))) is not None:
        transfer.moved_bytes += len(piece)
        yield piece
