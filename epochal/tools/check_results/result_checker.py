"""Checking results for a coordinator: lease one, read it from the object store a few megabytes at a time, report.

The rule kept here: a checker says what it has read, or nothing. Where it cannot read, it gives the check back, and the
coordinator has it carried out elsewhere; what it holds when it is killed, too (`coordinator/blobs/leased_checks.py`).
"""

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable

import httpx

from epochal.coordinator_client.http import CoordinatorClient
from epochal.runtime.files.mapped_reads import Windows
from epochal.runtime.retry import RetryPolicy
from epochal.state.blob_checks import layout_of, verdict_on_arrival
from epochal.state.errors import CoordinatorUnreachable, EpochalError, Refused
from epochal.state.messages.blob_messages import OTHER_BYTES, CheckVerdict, LeasedCheck
from epochal.state.model.tensors import TensorLayout
from epochal.state.refusals import Refusal

log = logging.getLogger(__name__)

POLL_S = 20.0
"""Time for which a request for work waits at the coordinator."""
RENEWALS_PER_LEASE = 3
READ_ATTEMPTS = 3
"""Number of attempts to read one piece of a result."""
READ_TIMEOUT_S = 30.0
REST_S = 2.0
"""Time before the next attempt to read, and before the next check after one that could not be carried out."""


class Unreadable(EpochalError):
    """A result could not be read from the object store; the check goes back to the coordinator."""


class Checker:
    """Checks one result after the other.

    Args:
        coordinator: has a checker's token.
        policy: how long requests to the coordinator are repeated.
        say: shown a line about each check.
    """

    def __init__(self, coordinator: CoordinatorClient, policy: RetryPolicy, say: Callable[[str], None]) -> None:
        self._coordinator = coordinator
        self._policy = policy
        self._say = say
        self._layout: TensorLayout | None = None

    async def run(self) -> None:
        """Check until cancelled; a check that is under way then is given back.

        Raises:
            Refused: the token is not a checker's of this run, or its blobs are not in an object store.
            CoordinatorUnreachable: there was no answer within the policy.
        """
        backoff = self._policy.begin()
        while True:
            try:
                leased = await self._coordinator.lease_check(POLL_S)
                backoff.reset()
                if leased is not None:
                    await self._carry_out(leased)
            except CoordinatorUnreachable as error:
                await backoff.wait(error)
            except Refused as refusal:
                if refusal.kind is Refusal.GONE:
                    log.info("check_lost", extra={"reason": refusal.message})
                elif refusal.kind.may_retry:
                    await backoff.wait(refusal, float(refusal.context.get("retry_after_s", 0.0)))
                else:
                    raise

    async def _carry_out(self, leased: LeasedCheck) -> None:
        if self._layout is None:
            self._layout = layout_of(await self._coordinator.parameter_names())
        reading = _Reading(leased)
        try:
            async with asyncio.TaskGroup() as tasks:
                renewing = tasks.create_task(self._renew(leased, reading))
                verdict = await asyncio.to_thread(_verdict, leased, self._layout, reading)
                renewing.cancel()
        except BaseException as error:
            reading.is_over.set()
            with contextlib.suppress(CoordinatorUnreachable, Refused):
                await self._coordinator.give_back_check(leased.lease)
            if isinstance(error, BaseExceptionGroup) and error.subgroup(Unreadable) is not None:
                log.warning(
                    "check_given_back", extra={"sha256": leased.check.sha256, "reason": str(error.exceptions[0])}
                )
                await asyncio.sleep(REST_S)
                return
            raise
        await self._coordinator.report_check(leased.lease, verdict)
        found = "right" if verdict.rule is None else f"breaks rule {verdict.rule!r}"
        if verdict.rule == OTHER_BYTES:
            found = "has another digest than announced"
        checked, step = leased.check, leased.check.commitment.step
        self._say(f"result of {checked.client_id}, step {step}, {checked.size_bytes} bytes: {found}")

    async def _renew(self, leased: LeasedCheck, reading: "_Reading") -> None:
        """Renew the lease until cancelled; each answer brings a fresh URL. When the lease is over, reading ends."""
        while True:
            await asyncio.sleep(leased.expires_in_s / RENEWALS_PER_LEASE)
            try:
                reading.url = (await self._coordinator.renew_check(leased.lease)).url
            except CoordinatorUnreachable as error:
                log.info("lease_not_renewed", extra={"reason": error.message})
            except Refused as refusal:
                if not refusal.kind.may_retry:
                    reading.is_over.set()
                    return


class _Reading:
    """The source of a result's bytes: a URL that may be replaced, and whether to continue."""

    def __init__(self, leased: LeasedCheck) -> None:
        self.url = leased.url
        self.is_over = threading.Event()


def _verdict(leased: LeasedCheck, layout: TensorLayout, reading: _Reading) -> CheckVerdict:
    """Return the verdict on a result, which is read once, in order. It blocks.

    Raises:
        Unreadable: the store does not give the bytes, or the lease is over.
    """
    with httpx.Client(timeout=READ_TIMEOUT_S) as http:
        data = Windows(leased.check.size_bytes, lambda start, stop: _read(http, reading, start, stop))
        return verdict_on_arrival(leased.check, layout, data)


def _read(http: httpx.Client, reading: _Reading, start: int, stop: int) -> bytes:
    reason = "the lease is over"
    for attempt in range(READ_ATTEMPTS):
        if reading.is_over.wait(REST_S if attempt else 0):
            break
        try:
            answer, data = _answer(http, reading, start, stop)
        except httpx.HTTPError as error:
            reason = str(error) or type(error).__name__
            continue
        is_part = answer.status_code == httpx.codes.PARTIAL_CONTENT
        is_it = is_part and answer.headers.get("Content-Range", "").startswith(f"bytes {start}-{stop - 1}/")
        if (is_it or (answer.status_code == httpx.codes.OK and start == 0)) and len(data) == stop - start:
            return data
        reason = f"the object store answered {answer.status_code}, with {len(data)} bytes or more"
    raise Unreadable(f"bytes {start} to {stop}: {reason}")


def _answer(http: httpx.Client, reading: _Reading, start: int, stop: int) -> tuple[httpx.Response, bytes]:
    """Return the answer to a request for a range, and its body; of a longer body little more than was asked for."""
    headers = {"Range": f"bytes={start}-{stop - 1}", "Accept-Encoding": "identity"}
    data = bytearray()
    with http.stream("GET", reading.url, headers=headers) as answer:
        for piece in answer.iter_raw():
            data += piece
            if len(data) > stop - start or reading.is_over.is_set():
                break
    return answer, bytes(data)
