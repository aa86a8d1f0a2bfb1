"""Checking results for a coordinator: lease one, read it from the object store a few megabytes at a time, report.

The rule kept here: a checker says what it has read, or nothing. Where it cannot read, it gives the check back, and the
coordinator has it carried out elsewhere; what it holds when it is killed, too (`LeasedChecks`).
"""

import asyncio
from collections.abc import Callable
from functools import partial

import httpx

from epochal.coordinator_client.http import CoordinatorClient
from epochal.runtime.files.mapped_reads import Windows
from epochal.runtime.http.http_client import reaching_client
from epochal.runtime.retry import RetryPolicy
from epochal.state.blob_checks import layout_of, verdict_on_arrival
from epochal.state.messages.blob_messages import OTHER_BYTES, CheckVerdict, LeasedCheck
from epochal.state.model.tensors import TensorLayout
from epochal.tools.check_results.leases import HeldLease, while_leased, work_by_lease
from epochal.tools.check_results.stored_reads import Reading, read_range


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
        async with reaching_client(None) as http:
            await work_by_lease(self._policy, self._coordinator.lease_check, partial(self._carry_out, http))

    async def _carry_out(self, http: httpx.AsyncClient, leased: LeasedCheck) -> None:
        if self._layout is None:
            self._layout = layout_of(await self._coordinator.parameter_names())
        reading = Reading(http, leased.url)

        async def renew() -> None:
            reading.url = (await self._coordinator.renew_check(leased.lease)).url

        give_back = partial(self._coordinator.give_back_check, leased.lease)
        lease = HeldLease(leased.expires_in_s, renew, give_back, reading.is_over)
        verdict = await while_leased(lease, asyncio.to_thread(_verdict, leased, self._layout, reading))
        if verdict is None:
            return
        await self._coordinator.report_check(leased.lease, verdict)
        found = "right" if verdict.rule is None else f"breaks rule {verdict.rule!r}"
        if verdict.rule == OTHER_BYTES:
            found = "has another digest than announced"
        checked, step = leased.check, leased.check.commitment.step
        self._say(f"result of {checked.client_id}, step {step}, {checked.size_bytes} bytes: {found}")


def _verdict(leased: LeasedCheck, layout: TensorLayout, reading: Reading) -> CheckVerdict:
    """Return the verdict on a result, which is read once, in order. It blocks. Raises as `read_range`."""
    data = Windows(leased.check.size_bytes, partial(read_range, reading))
    return verdict_on_arrival(leased.check, layout, data)
