"""Decides which client may read which data from a data server; `OpenGate` lets everyone read everything."""

from typing import Protocol

from state.intervals import DataIds
from state.wire import ClientId

ANYONE = ClientId("0" * 32)
"""The client id of everyone at an open gate."""


class Gate(Protocol):
    """Decides for a data server. Both methods may wait, within a bound of their own, for news from elsewhere."""

    async def admit(self, run_id: str, ticket: str) -> ClientId:
        """The client whose ticket it is, for the run that it says.

        Raises:
            Rejected: another run is served, or the ticket is not valid; the client's fault.
            SourceUnavailable: the gate cannot tell now; retry.
        """
        ...

    async def allow(self, client_id: ClientId, data_ids: DataIds) -> None:
        """Raise `Rejected` unless the client may read these data indices.

        Raises:
            Rejected: the client may not read them; the client's fault.
            SourceUnavailable: the gate cannot tell now; retry.
        """
        ...


class OpenGate:
    """A `Gate` for a data server without a coordinator: everyone may read everything."""

    async def admit(self, run_id: str, ticket: str) -> ClientId:  # noqa: ARG002 - any will do
        return ANYONE

    async def allow(self, client_id: ClientId, data_ids: DataIds) -> None:
        """Allow everything."""
