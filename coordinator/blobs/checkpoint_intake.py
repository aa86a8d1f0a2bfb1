"""Checkpoints that arrive: a part after the other from members, or the run's first one from its operator."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from functools import partial

from epochal.coordinator.machine.run import Run
from epochal.coordinator.machine.stimuli import CheckpointHeld, CheckpointRejected
from epochal.coordinator.machine.views import ExpectedPart
from epochal.coordinator.run.genesis import GenesisRules, LayoutOf
from epochal.coordinator.run.service import CoordinatorService
from epochal.coordinator.store.blobs import OpenBlob
from epochal.coordinator.store.checkpoint_blobs import digest_of_parts, keep_in_parts, opened_parts
from epochal.runtime.worker_thread import Worker
from epochal.state.checkpoint_parts import CheckpointPart, parts_digest
from epochal.state.documents import CheckpointRef
from epochal.state.errors import InvalidDocument, Refused
from epochal.state.model.replica import (
    CheckpointForm,
    check_layout,
    check_momentum,
    checkpoint_form,
    examine_checkpoint,
)
from epochal.state.model.tensors import Readable
from epochal.state.refusals import Refusal
from epochal.state.wire import ClientId, Sha256


class CheckpointIntake:
    """Takes the checkpoints of one service.

    Args:
        service: the run's.
        worker: checks the bytes.
        layout_of: names and shapes that the first checkpoint of a model must have.
        checking: held while a blob is checked.
    """

    def __init__(
        self, service: CoordinatorService, worker: Worker, layout_of: LayoutOf, checking: asyncio.Semaphore
    ) -> None:
        self._service = service
        self._worker = worker
        self._layout_of = layout_of
        self._checking = checking
        self._form: CheckpointForm | None = None
        self._receiving_genesis = asyncio.Lock()
        self._reading_layout = asyncio.Lock()
        self._taking_checkpoint = asyncio.Lock()

    async def form(self) -> CheckpointForm:
        """Return which values the run's checkpoints have. It is that of any step's.

        It is read once, from a checkpoint: a later checkpoint is only accepted if it has the same.

        Raises:
            Refused: `not-now`, when the run has no checkpoint yet.
        """
        checkpoint = self._service.run.models.checkpoint
        if checkpoint is None:
            raise Refused(Refusal.NOT_NOW, "the run has no checkpoint yet")
        if self._form is not None:
            return self._form
        async with self._reading_layout:
            if self._form is None:
                async with self._opened(self._service.run.models.blobs_of(checkpoint)) as data:
                    self._form = await self._worker.run(partial(checkpoint_form, data))
        return self._form

    async def check_size(self, size_bytes: int) -> None:
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
                if await digest_of_parts(self._service.blobs, run.models.blobs_of(first)) != sha256:
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
            finally:
                for part in parts:
                    await self._service.maintenance.drop_unless_needed(part.sha256, self._service.run)
        return provided.checkpoint

    async def take_part(self, expected: ExpectedPart) -> None:
        """Check a checkpoint, of which this part is held, if all of its parts are; one check of it suffices.

        Raises:
            Refused: `result-invalid` if it breaks a rule; as `CoordinatorService.submit`.
        """
        claim = expected.claim
        async with self._taking_checkpoint:
            making = self._service.run.models.checkpointing
            held = None if making is None else making.claims.held.get(expected.client_id)
            if held is not None and held.blob_sha256 == claim.blob_sha256:
                return
            for sha256, size_bytes in claim.blobs():
                if await self._service.blobs.size(sha256) != size_bytes:
                    return
            async with self._checking:
                await self._take_checkpoint(expected)

    async def _take_checkpoint(self, expected: ExpectedPart) -> None:
        client_id, step, blobs = expected.client_id, expected.claim.step, expected.claim.blobs()
        parts = tuple(CheckpointPart(sha256, size_bytes) for sha256, size_bytes in blobs)
        digest = parts_digest(parts)
        form = None if self._service.run.models.checkpoint is None else await self.form()
        rules = self._genesis_rules

        def check(data: Readable) -> CheckpointRef:
            if form is None:
                return rules.check(data, parts).checkpoint
            found = examine_checkpoint(data)
            if found.form.step != step:
                raise InvalidDocument(f"a checkpoint of replica {found.form.step}; {step} was asked for", rule="step")
            check_layout(found.form.layout, form.layout)
            check_momentum(found.form.has_momentum, form.has_momentum)
            return CheckpointRef(step, digest, len(data), found.replica_digest, len(parts))

        try:
            async with self._opened(blobs) as data:
                held = await self._worker.run(partial(check, data))
        except InvalidDocument as error:
            rule = str(error.context.get("rule", "form"))
            await self._service.submit(CheckpointRejected(client_id, step, digest, rule))
            for sha256, _ in blobs:
                await self._service.maintenance.drop_unless_needed(sha256, _without_claim(self._service.run, client_id))
            raise Refused(Refusal.RESULT_INVALID, str(error), **error.context) from error
        await self._service.submit(CheckpointHeld(client_id, held))

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


def _without_claim(run: Run, client_id: ClientId) -> Run:
    """Return the run as if this client had announced no checkpoint, so that its blobs are not needed."""
    making = run.models.checkpointing
    if making is None:
        return run
    claims = {claimer: claim for claimer, claim in making.claims.by_client.items() if claimer != client_id}
    return run.with_parts(
        replace(run.models, checkpointing=replace(making, claims=replace(making.claims, by_client=claims)))
    )


def check_size(kind: str, size_bytes: int, max_bytes: int) -> None:
    """Raise `Refused` (`blob-too-large`) if a blob of this kind may not have this size."""
    if size_bytes > max_bytes:
        raise Refused(Refusal.BLOB_TOO_LARGE, f"a {kind} of {size_bytes} bytes; allowed: at most {max_bytes}")
