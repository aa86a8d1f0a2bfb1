"""Checks of results that are held or have arrived, and the verdicts on them, which are kept in the journal."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

from epochal.coordinator.machine.run import Run
from epochal.coordinator.machine.stimuli import ResultRejected, ResultVerified
from epochal.coordinator.machine.views import ExpectedBlob, check_still_awaited
from epochal.coordinator.run.service import CoordinatorService
from epochal.runtime.worker_thread import Worker
from epochal.state.blob_checks import HashedReadable, verdict_on, verdict_on_arrival
from epochal.state.errors import InternalError, Refused
from epochal.state.messages.blob_messages import CheckVerdict, ResultCheck
from epochal.state.messages.requests import ResultCommitment
from epochal.state.messages.round_times import milliseconds
from epochal.state.model.tensors import TensorLayout
from epochal.state.refusals import Refusal
from epochal.state.results import result_size_bound
from epochal.state.wire import ClientId, Sha256

MAX_CHECKS = 2
"""Maximum number of blobs that are checked at a time: each is read once more, a piece at a time."""


class ResultChecks:
    """Checks announced results for one service.

    Args:
        service: the run's.
        worker: checks the bytes.
        layout: returns names and shapes of the run's tensors.

    Attributes:
        checking: held while a blob is checked.
    """

    def __init__(
        self, service: CoordinatorService, worker: Worker, layout: Callable[[], Awaitable[TensorLayout]]
    ) -> None:
        self._service = service
        self._worker = worker
        self._layout = layout
        self.checking = asyncio.Semaphore(MAX_CHECKS)

    async def check_commitment(self, client_id: ClientId, bound: ResultCommitment) -> None:
        """Raise `Refused` if a client may not commit to this result now, whatever the machine says.

        `blob-too-large` if it is larger than the model implies; `late-result` and `not-now` as `check_still_awaited`
        and `Uploads.layout`.
        """
        run = self._service.run
        check_size("result", bound.size_bytes, result_size_bound(await self._layout(), run.state_file.merge.codec_name))
        check_still_awaited(self._service.run, client_id, bound)

    def check_of(self, expected: ExpectedBlob) -> ResultCheck:
        """Return what an announced result must be."""
        state_file = self._service.run.state_file
        if expected.work_sha256 is None:
            raise InternalError(f"a {expected.kind} has no work list")
        return ResultCheck(
            sha256=expected.sha256,
            size_bytes=expected.size_bytes,
            run_id=state_file.run_id,
            step=expected.step,
            attempt=expected.attempt,
            client_id=expected.client_id,
            work_sha256=expected.work_sha256,
            codec=state_file.merge.codec_name,
            max_abs=state_file.merge.max_abs,
        )

    async def take_held(self, expected: ExpectedBlob) -> None:
        """Check a result that is held, and count it. Raises `Refused` and `StoreFailed` as `count`."""
        check, layout, began_s = self.check_of(expected), await self._layout(), self._service.now_s()
        async with self.checking, self._service.blobs.opened(expected.sha256) as data:
            verdict = await self._worker.run(partial(verdict_on, check, layout, data, expected.sha256))
        await self.count(expected, verdict, check_ms=milliseconds(self._service.now_s() - began_s))

    async def verdict_on_arrival(self, check: ResultCheck, data: HashedReadable) -> CheckVerdict:
        """Return the verdict on a result that arrived, whose bytes are hashed on the way."""
        layout = await self._layout()
        async with self.checking:
            return await self._worker.run(partial(verdict_on_arrival, check, layout, data))

    async def count(
        self, expected: ExpectedBlob, verdict: CheckVerdict, checker: str | None = None, check_ms: int | None = None
    ) -> None:
        """Keep the verdict on a result that is held.

        Args:
            expected: the result.
            verdict: on its bytes, which have the announced digest.
            checker: who gave it; None for the coordinator.
            check_ms: how long it took, waits included; None if that is not known.

        Raises:
            Refused: `result-invalid`, if it breaks a rule; as `CoordinatorService.submit`.
        """
        sender, step, attempt, sha256 = expected.client_id, expected.step, expected.attempt, expected.sha256
        if verdict.replica_digest is not None and verdict.norm is not None:
            digest, norm = Sha256(verdict.replica_digest), verdict.norm
            await self._service.submit(ResultVerified(sender, step, attempt, sha256, digest, norm, checker, check_ms))
            return
        rule = verdict.rule or ""
        await self._service.submit(ResultRejected(sender, step, attempt, sha256, rule, checker))
        await delete_unless_needed(self._service, sha256, self._service.run)
        raise Refused(Refusal.RESULT_INVALID, f"the result breaks rule {rule!r}: {verdict.message}", rule=rule)


def check_size(kind: str, size_bytes: int, max_bytes: int) -> None:
    """Raise `Refused` (`blob-too-large`) if a blob of this kind may not have this size."""
    if size_bytes > max_bytes:
        raise Refused(Refusal.BLOB_TOO_LARGE, f"a {kind} of {size_bytes} bytes; allowed: at most {max_bytes}")


async def delete_unless_needed(service: CoordinatorService, sha256: Sha256, run: Run) -> None:
    """Delete refused bytes unless the run needs them: a copied digest must not cost another client its blob."""
    if not service.maintenance.is_needed(sha256, run):
        await service.blobs.delete(sha256)
