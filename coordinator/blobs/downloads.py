"""Downloads of blobs by members and the operator: bounded in number, for each and for all.

A member's downloads end with its membership.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from epochal.coordinator.auth.admin import MIRROR, OPERATOR, VERIFIER
from epochal.coordinator.blobs.transfers import Places, Transfer
from epochal.coordinator.machine.run import Run
from epochal.coordinator.run.service import CoordinatorService
from epochal.runtime.http.http_server import MIN_READ_BYTES_PER_S
from epochal.state.errors import Refused
from epochal.state.refusals import Refusal
from epochal.state.wire import ClientId

MAX_DOWNLOADS = 512
"""Maximum number of blobs sent at a time; each takes up to half a megabyte of memory. Others wait."""
MAX_DOWNLOADS_PER_CLIENT = 16
"""A client fetches up to eight blobs at a time; the rest is for connections that broke unnoticed."""


class Downloads:
    """The running downloads of one service."""

    def __init__(self, service: CoordinatorService) -> None:
        self._places = Places(MAX_DOWNLOADS, MAX_DOWNLOADS_PER_CLIENT, service.now_s)
        service.readers.on_change(self._end_those_of_former_members)

    @property
    def running_count(self) -> int:
        """Number of blobs that are being sent."""
        return self._places.running_count

    @asynccontextmanager
    async def place(self, client_id: ClientId) -> AsyncIterator[Transfer]:
        """Hold a place for a download of a member, of `OPERATOR`, `VERIFIER` or `MIRROR`.

        Raises:
            Refused: `overloaded`.
        """
        async with self._places.place(client_id, MIN_READ_BYTES_PER_S) as transfer:
            yield transfer

    def _end_those_of_former_members(self, before: Run, run: Run) -> None:
        if run.members.by_id is before.members.by_id:
            return
        for transfer in self._places.running():
            if transfer.client_id not in run.members and transfer.client_id not in (OPERATOR, VERIFIER, MIRROR):
                transfer.end(Refused(Refusal.UNAUTHORIZED, f"client {transfer.client_id} has left the run"))
