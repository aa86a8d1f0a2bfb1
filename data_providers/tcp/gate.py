"""The protocol of gates, which decide what a client may read from a data server."""

from typing import Protocol

from epochal.state.intervals import DataIds
from epochal.state.wire import ClientId

ANYONE = ClientId("0" * 32)
"""The client id of everyone at an open gate."""


class Gate(Protocol):
    """Decides what clients may read. `admit` and `allow` may wait, within their own bounds, before they decide."""

    async def admit(self, run_id: str, ticket: str) -> ClientId:
        """Return the client of this ticket for this run.

        Raises:
            Rejected: another run is served, or the ticket is not valid; the client's fault.
            SourceUnavailable: the gate cannot decide now; retry.
        """
        ...

    async def allow(self, client_id: ClientId, data_ids: DataIds, version: int) -> None:
        """Raise `Rejected` unless the client may read these data indices; `SourceUnavailable` if undecided now.

        `version` is that of the run document which the client follows, or `frames.ANY_VERSION`.
        """
        ...

    def is_in_rounds(self, client_id: ClientId) -> bool:
        """Return whether the client may read anything now. Such clients have the first claim to a place."""
        ...
