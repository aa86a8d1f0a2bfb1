"""Uploads of the bytes that members announced: results and checkpoints, received, checked, and then counted.

The rule kept here: only a member that announced a blob may deliver it, only well-formed bytes count, and bytes that do
not count are dropped unless the run needs the same ones for something else: nobody's bad delivery costs another's blob.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import replace

from coordinator.layout_cache import LayoutCache
from coordinator.machine.run import Run
from coordinator.machine.stimuli import CheckpointHeld, CheckpointRejected, ResultRejected, ResultVerified
from coordinator.machine.views import ExpectedBlob, blobs_needed, expected_blob
from coordinator.service import CoordinatorService
from runtime.worker_thread import Worker
from state.documents import CheckpointRef
from state.errors import InvalidDocument, InvalidResult, Refused, StoreFailed
from state.refusals import Refusal
from state.replica import Replica, checkpoint_size_bound, parse_checkpoint, replica_digest
from state.results import ResultHeader, check_result
from state.wire import ClientId, Sha256

MAX_UPLOADS = 256
"""Maximum number of blobs received at a time; each takes up to a megabyte of memory. Others wait, unread."""
MAX_UPLOADS_PER_CLIENT = 4
"""A client uploads one blob at a time; the rest is room for connections that it lost unnoticed."""
MAX_CHECKS = 2
"""Maximum number of blobs in memory for their check at a time."""


class Uploads:
    """Takes announced blobs for one service."""

    def __init__(self, service: CoordinatorService, layouts: LayoutCache, worker: Worker) -> None:
        self._service = service
        self._layouts = layouts
        self._worker = worker
        self._uploads = asyncio.Semaphore(MAX_UPLOADS)
        self._uploading: Counter[ClientId] = Counter()
        self._checks = asyncio.Semaphore(MAX_CHECKS)

    async def receive(
        self, client_id: ClientId, sha256: Sha256, body: AsyncIterator[bytes], length_bytes: int | None
    ) -> None:
        """Take an announced blob, check it, and count it. What was delivered before is left unread and accepted.

        Args:
            client_id: a member, authenticated.
            sha256: the digest that it announced.
            body: the bytes.
            length_bytes: how many there will be, if the sender says so.

        Raises:
            Refused: `not-committed`, `late-result`, `blob-mismatch`, `blob-too-large`, `blobs-full`, `result-invalid`
                (the context's `rule` says why), `overloaded`, `store-failed`, and whatever reading the body raises.
        """
        if _is_delivered(self._service.run, client_id, sha256):
            return
        expected = _announced(self._service.run, client_id, sha256)
        if length_bytes is not None and length_bytes != expected.size_bytes:
            kind = Refusal.BLOB_TOO_LARGE if length_bytes > expected.size_bytes else Refusal.BLOB_MISMATCH
            raise Refused(kind, f"{length_bytes} bytes are to come; {expected.size_bytes} were announced")
        try:
            with self._place(client_id):
                async with self._uploads:
                    await self._keep(expected, body)
            self._service.heard(client_id)
            async with self._checks:
                await (self._take_result(expected) if expected.kind == "result" else self._take_checkpoint(expected))
        except StoreFailed as error:
            self._service.fail(error)
            raise Refused(Refusal.STORE_FAILED, f"the coordinator cannot keep anything more: {error}") from error

    @contextmanager
    def _place(self, client_id: ClientId) -> Iterator[None]:
        if self._uploading[client_id] >= MAX_UPLOADS_PER_CLIENT:
            raise Refused(Refusal.OVERLOADED, f"{MAX_UPLOADS_PER_CLIENT} uploads of this client are under way already")
        self._uploading[client_id] += 1
        try:
            yield
        finally:
            self._uploading[client_id] -= 1
            if not self._uploading[client_id]:
                del self._uploading[client_id]

    async def _keep(self, expected: ExpectedBlob, body: AsyncIterator[bytes]) -> None:
        """Receive the bytes. Results leave room for a checkpoint: without one, no blob would ever be swept again."""
        run, blobs = self._service.run, self._service.blobs
        spare_bytes = 0
        if expected.kind == "result":
            spare_bytes = checkpoint_size_bound(await self._layouts.current(run.checkpoint, blobs))
        try:
            await blobs.receive(expected.sha256, expected.size_bytes, body, spare_bytes)
        except Refused as refusal:
            if refusal.kind == Refusal.BLOBS_FULL:
                await self._service.note_blobs_near_bound()
            raise

    async def _take_result(self, expected: ExpectedBlob) -> None:
        run, blobs = self._service.run, self._service.blobs
        layout = await self._layouts.current(run.checkpoint, blobs)
        data = await blobs.read(expected.sha256)
        wanted = ResultHeader(
            run_id=run.state_file.run_id,
            step=expected.step,
            attempt=expected.attempt,
            client_id=expected.client_id,
            work_sha256=expected.work_sha256 or "",
            replica_digest="",
        )
        try:
            found = await self._worker.run(lambda: check_result(data, wanted, layout, run.state_file.merge.max_abs))
        except InvalidResult as error:
            await self._reject_result(expected, error.rule)
            raise Refused(
                Refusal.RESULT_INVALID, f"the result breaks rule {error.rule!r}: {error}", rule=error.rule
            ) from error
        digest = Sha256(found.replica_digest)
        await self._service.submit(
            ResultVerified(
                client_id=expected.client_id,
                step=expected.step,
                attempt=expected.attempt,
                result_sha256=expected.sha256,
                replica_digest=digest,
            )
        )

    async def _reject_result(self, expected: ExpectedBlob, rule: str) -> None:
        await self._service.submit(
            ResultRejected(
                client_id=expected.client_id,
                step=expected.step,
                attempt=expected.attempt,
                result_sha256=expected.sha256,
                rule=rule,
            )
        )
        await self._drop_unless_needed(expected.sha256, self._service.run)

    async def _take_checkpoint(self, expected: ExpectedBlob) -> None:
        run, blobs = self._service.run, self._service.blobs
        data = await blobs.read(expected.sha256)
        try:
            replica, digest = await self._checked_checkpoint(data)
            if replica.step != expected.step:
                raise InvalidDocument(
                    f"a checkpoint of replica {replica.step}; {expected.step} was asked for", rule="step"
                )
            if run.checkpoint is not None and replica.layout != await self._layouts.current(run.checkpoint, blobs):
                raise InvalidDocument(
                    "the checkpoint's tensors have other names or shapes than the run's", rule="layout"
                )
        except InvalidDocument as error:
            await self._reject_checkpoint(expected, str(error.context.get("rule", "form")))
            raise Refused(Refusal.RESULT_INVALID, str(error), **error.context) from error
        await self._service.submit(
            CheckpointHeld(
                expected.client_id,
                CheckpointRef(expected.step, expected.sha256, expected.size_bytes, digest),
            )
        )

    async def _reject_checkpoint(self, expected: ExpectedBlob, rule: str) -> None:
        await self._service.submit(
            CheckpointRejected(
                client_id=expected.client_id,
                step=expected.step,
                blob_sha256=expected.sha256,
                rule=rule,
            )
        )
        await self._drop_unless_needed(expected.sha256, replace(self._service.run, checkpointing=None))

    async def _checked_checkpoint(self, data: bytes) -> tuple[Replica, Sha256]:
        def check() -> tuple[Replica, Sha256]:
            replica = parse_checkpoint(data)
            return replica, Sha256(replica_digest(replica))

        return await self._worker.run(check)

    async def _drop_unless_needed(self, sha256: Sha256, run: Run) -> None:
        """Delete refused bytes, unless the run needs them: a copied digest must not cost another client its blob."""
        if sha256 not in blobs_needed(run):
            await self._service.blobs.delete(sha256)


def _has_committed(run: Run, client_id: ClientId, sha256: Sha256) -> bool:
    bound = None if run.round is None else run.round.commitments.get(client_id)
    return bound is not None and bound.result_sha256 == sha256


def _is_delivered(run: Run, client_id: ClientId, sha256: Sha256) -> bool:
    """Whether these bytes were delivered and counted: a client repeats itself when the answer was lost."""
    if run.round is not None and client_id in run.round.verified and _has_committed(run, client_id, sha256):
        return True
    if any(checkpoint.blob_sha256 == sha256 for checkpoint in run.checkpoints):
        return True
    last = run.outcomes.get(run.replica_step)
    return last is not None and any(
        (entry.client_id, entry.result_sha256) == (client_id, sha256) for entry in last.entries
    )


def _announced(run: Run, client_id: ClientId, sha256: Sha256) -> ExpectedBlob:
    """Return the blob that this member announced and may deliver now."""
    expected = expected_blob(run, client_id, sha256)
    if expected is not None:
        return expected
    if run.round is None or not _has_committed(run, client_id, sha256):
        raise Refused(Refusal.NOT_COMMITTED, f"client {client_id} is not expected to deliver blob {sha256}")
    broken = run.round.rejected.get(client_id)
    if broken is not None:
        raise Refused(Refusal.RESULT_INVALID, f"this result broke rule {broken!r}", rule=broken)
    raise Refused(Refusal.LATE_RESULT, "the result came after the round's training time")
