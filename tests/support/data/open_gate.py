"""A gate for data servers without a coordinator."""

from itertools import count

from epochal.state.intervals import DataIds
from epochal.state.wire import ClientId


class OpenGate:
    """A `Gate` for a data server without a coordinator: everyone may read everything, as a client of its own."""

    def __init__(self) -> None:
        self._numbers = count()

    async def admit(self, run_id: str, ticket: str) -> ClientId:
        return ClientId(f"{next(self._numbers):032x}")

    async def allow(self, client_id: ClientId, data_ids: DataIds, version: int) -> None:
        """Allow everything."""

    def is_in_rounds(self, client_id: ClientId) -> bool:
        return True
