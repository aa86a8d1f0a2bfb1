"""A gate for data servers without a coordinator."""

from epochal.data_providers.tcp.gate import ANYONE
from epochal.state.intervals import DataIds
from epochal.state.wire import ClientId


class OpenGate:
    """A `Gate` for a data server without a coordinator: everyone may read everything."""

    async def admit(self, run_id: str, ticket: str) -> ClientId:
        return ANYONE

    async def allow(self, client_id: ClientId, data_ids: DataIds, version: int) -> None:
        """Allow everything."""

    def is_in_rounds(self, client_id: ClientId) -> bool:
        return True
