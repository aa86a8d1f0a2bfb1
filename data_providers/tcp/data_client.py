"""Samples from TCP data servers (`frames.py` has the protocol): one, or several that serve the same dataset.

One connection serves all calls: requests are sent without waiting, and tokens are received straight into the answer's
own memory. If it breaks, or its server falls silent or closes it, the pieces that are missing are asked of another
server at once; a server that failed is asked again after a growing time. With no other left, the calls under way raise
`SourceUnavailable`; the next call connects again. Every server must serve the same dataset.
"""

import asyncio
import logging
import math
import socket
from collections.abc import Sequence
from typing import Self

import numpy as np

from epochal.data_providers.protocol import CorruptData, Rejected, SourceUnavailable, TokenBatch, check_sample_count
from epochal.data_providers.tcp.client_connection import (
    Call,
    ClientConnection,
    DataServerAccess,
    DataServerAddress,
    TicketOrAccess,
    WantedPiece,
    connect,
)
from epochal.data_providers.tcp.frames import Welcome
from epochal.data_providers.tcp.payloads import AnyLength, ArrivingSamples, shape_of
from epochal.runtime.retry import RetryPolicy, system_jitter
from epochal.state.dataset_descriptions import DatasetDescription
from epochal.state.errors import DataError, InternalError, InvalidInput
from epochal.state.intervals import DataIds

ANSWER_TIMEOUT_S = 60.0
"""Time limit for one `get_samples`; after it the connection is dropped."""
SILENCE_TIMEOUT_S = 15.0
"""Time in which a server must have sent `LEAST_BYTES` while it is asked for something, where another can be asked."""
LEAST_BYTES = 256 * 1024
FAILOVER_CONNECT_TIMEOUT_S = 6.0
"""Time limit for a connection where another server can be asked."""
AVOIDED_FIRST_S, AVOIDED_MOST_S = 1.0, 60.0
"""Time for which a server that failed is asked only if no other is left: doubled with each failure, up to a bound."""
PIECE_BYTES = 1024**2
"""Approximate size of the requests into which a call is split; each is at least one sample."""
MAX_SERVERS = 64

_log = logging.getLogger(__name__)


class _Server:
    """One of the servers: its connection, and since when it is avoided."""

    def __init__(self, address: DataServerAddress) -> None:
        self.address = address
        self.connection: ClientConnection | None = None
        self.avoided_until_s = -math.inf
        policy = RetryPolicy(bound_s=math.inf, first_delay_s=AVOIDED_FIRST_S, max_delay_s=AVOIDED_MOST_S)
        self._backoff = policy.begin()

    @property
    def is_connected(self) -> bool:
        return self.connection is not None and self.connection.lost is None

    def failed(self, error: DataError, now_s: float) -> None:
        """Avoid the server for a while."""
        if now_s >= self.avoided_until_s:
            self.avoided_until_s = now_s + self._backoff.next_delay_s(error)

    def answered(self) -> None:
        """Stop avoiding the server."""
        self.avoided_until_s = -math.inf
        self._backoff.reset()


class TcpDataProvider:
    """A `DataProvider` over TCP data servers. Make one with `open`."""

    def __init__(self, servers: Sequence[_Server], access: DataServerAccess, welcome: Welcome) -> None:
        self._servers = list(servers)
        self._access = access
        self._welcome = welcome
        self._current = next(server for server in servers if server.is_connected)
        self._shape = shape_of(welcome)
        self.sequence_count = welcome.sequence_count
        self.sequence_length = welcome.sequence_length
        """Tokens of a sample; None where samples have any length."""
        self.fingerprint: str = welcome.fingerprint
        self.description = DatasetDescription(
            "a data server", welcome.token_size_bytes, welcome.sequence_length, welcome.sequence_count
        )
        self._connecting = asyncio.Lock()
        self._closed = False

    @classmethod
    async def open(
        cls,
        addresses: DataServerAddress | Sequence[DataServerAddress],
        access: TicketOrAccess,
        spread: float | None = None,
    ) -> Self:
        """Connect to the first of the servers that answers; whether others serve the same is seen when they are asked.

        Args:
            addresses: of one server, or of several with the same dataset.
            access: how they are asked; a function that returns the client's ticket suffices.
            spread: chooses the server that is asked first, from 0 (the first one) to below 1; None chooses at random,
                so that clients share the servers.

        Raises:
            SourceUnavailable: no server can be reached now; retry.
            Rejected: there is no such host, or no server admits this client, and why.
            InvalidInput: there are no addresses or too many, or the file of certificates is not one.
        """
        listed = [addresses] if isinstance(addresses, DataServerAddress) else list(dict.fromkeys(addresses))
        if not 1 <= len(listed) <= MAX_SERVERS:
            raise InvalidInput(f"{len(listed)} data servers; allowed: 1 to {MAX_SERVERS}")
        access = access if isinstance(access, DataServerAccess) else DataServerAccess(access)
        first = int((system_jitter() if spread is None else spread) * len(listed))
        servers = [_Server(address) for address in listed[first:] + listed[:first]]
        failed: dict[DataServerAddress, DataError] = {}
        for number, server in enumerate(servers, 1):
            try:
                server.connection = await _reached(server.address, access, is_last=number == len(servers))
            except DataError as error:
                failed[server.address] = error
                server.failed(error, asyncio.get_running_loop().time())
            else:
                for address, reason in failed.items():
                    fields = {"server": str(address), "reason": reason.message}
                    _log.warning("data_server_does_not_answer", extra=fields)
                return cls(servers, access, server.connection.welcome.result())
        raise _opening_failure(failed)

    @property
    def _connection(self) -> ClientConnection:
        """The connection that was used last."""
        connection = self._current.connection
        if connection is None:
            raise InternalError("the current server was never connected")
        return connection

    async def get_samples(self, data_ids: DataIds) -> TokenBatch:
        """Return the samples of these data indices, as `DataProvider.get_samples`."""
        if isinstance(self._shape, AnyLength):
            check_sample_count(data_ids)
            arriving = ArrivingSamples()
            pieces = data_ids.pieces(max(PIECE_BYTES // self._shape.mean_bytes, 1))
            await self._receive([WantedPiece(part, arriving) for part in pieces])
            return arriving.batch()
        tokens = self._shape.empty_tokens(data_ids)
        view = tokens.view(np.uint8).data
        missing: list[WantedPiece] = []
        for part in data_ids.pieces(max(PIECE_BYTES // self._shape.sequence_bytes, 1)):
            size_bytes = part.count * self._shape.sequence_bytes
            missing.append(WantedPiece(part, view[:size_bytes]))
            view = view[size_bytes:]
        await self._receive(missing)
        return TokenBatch.fixed_length(tokens, self._shape.sequence_length)

    async def _receive(self, missing: list[WantedPiece]) -> None:
        """Ask for these pieces until all have arrived. Raises as `get_samples`."""
        failed: dict[DataServerAddress, DataError] = {}
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                while missing:
                    server, connection = await self._connected(failed)
                    missing = await self._answered(server, connection, missing, failed)
        except TimeoutError as error:
            late = SourceUnavailable(f"{self._current.address} does not answer in {ANSWER_TIMEOUT_S} s")
            self._give_up(self._current, late)
            raise late from error

    async def aclose(self) -> None:
        self._closed = True
        async with self._connecting:
            _drop_all(self._servers)

    async def _answered(
        self,
        server: _Server,
        connection: ClientConnection,
        missing: list[WantedPiece],
        failed: dict[DataServerAddress, DataError],
    ) -> list[WantedPiece]:
        """Return the pieces that this server did not deliver. Raise `DataError` for what each other would say."""
        arrived_before_bytes = connection.received_bytes
        call = connection.ask(missing, self._access.document_version())
        try:
            if len(failed) + 1 < len(self._servers):
                await _until_silent(call, connection, server.address)
            await call.done
            server.answered()
        except (SourceUnavailable, CorruptData) as error:
            self._note_failure(server, error, failed)
        except asyncio.CancelledError:
            if connection.received_bytes == arrived_before_bytes:
                # The caller may have cancelled because the connection is dead: the next call needs a new one.
                self._give_up(server, SourceUnavailable(f"{server.address} was silent until a call was cancelled"))
            raise
        return [*call.missing.values(), *call.rest]

    def _give_up(self, server: _Server, error: DataError) -> None:
        """Drop a server's connection, and avoid the server for a while."""
        if server.connection is not None:
            server.connection.drop(error)
        server.failed(error, asyncio.get_running_loop().time())

    async def _connected(self, failed: dict[DataServerAddress, DataError]) -> tuple[_Server, ClientConnection]:
        """Return a connection to a server that is not among those that failed. Raise `DataError` if all have failed."""
        current = self._current
        if not failed and not self._closed and current.connection is not None and current.is_connected:
            return current, current.connection
        async with self._connecting:
            if self._closed:
                raise InternalError("get_samples after aclose")
            while True:
                server = self._next(failed)
                if server.connection is not None and server.is_connected:
                    self._current = server
                    return server, server.connection
                try:
                    server.connection = await self._reconnected(server, len(failed) + 1 >= len(self._servers))
                except DataError as error:
                    self._note_failure(server, error, failed)

    def _next(self, failed: dict[DataServerAddress, DataError]) -> _Server:
        """Return the server to ask: the current one, else the first that is not avoided, else the soonest."""
        now_s = asyncio.get_running_loop().time()
        left = [server for server in self._servers if server.address not in failed]
        if not left:
            raise _first_failure(failed)
        at = self._servers.index(self._current)
        order = {server: (number - at) % len(self._servers) for number, server in enumerate(self._servers)}
        return min(left, key=lambda server: (max(server.avoided_until_s - now_s, 0.0), order[server]))

    async def _reconnected(self, server: _Server, is_last: bool) -> ClientConnection:
        connection = await _reached(server.address, self._access, is_last=is_last)
        served = connection.welcome.result()
        if served != self._welcome:
            changed = CorruptData(
                f"{server.address} served the dataset {self._welcome.fingerprint}, and now {served.fingerprint}"
                if len(self._servers) == 1
                else f"{server.address} serves the dataset {served.fingerprint}, others {self._welcome.fingerprint}"
            )
            connection.drop(changed)
            raise changed
        return connection

    def _note_failure(self, server: _Server, error: DataError, failed: dict[DataServerAddress, DataError]) -> None:
        failed[server.address] = error
        server.failed(error, asyncio.get_running_loop().time())
        if len(self._servers) > 1:
            _log.warning("data_server_failed", extra={"server": str(server.address), "reason": error.message})


async def _until_silent(call: Call, connection: ClientConnection, address: DataServerAddress) -> None:
    """Return when a call has ended, or its connection was dropped: it delivered too little in `SILENCE_TIMEOUT_S`."""
    while not call.done.done():
        before_bytes = connection.received_bytes
        await asyncio.wait([call.done], timeout=SILENCE_TIMEOUT_S)
        arrived_bytes = connection.received_bytes - before_bytes
        if not call.done.done() and arrived_bytes < LEAST_BYTES:
            slow = f"{address} sent {arrived_bytes} bytes in {SILENCE_TIMEOUT_S:g} s"
            connection.drop(SourceUnavailable(slow))


async def _reached(address: DataServerAddress, access: DataServerAccess, *, is_last: bool) -> ClientConnection:
    """Connect within a bound, which is shorter while other servers are left."""
    try:
        async with asyncio.timeout(None if is_last else FAILOVER_CONNECT_TIMEOUT_S):
            return await connect(address, access)
    except TimeoutError as error:
        raise SourceUnavailable(f"{address} cannot be reached: no answer in time") from error


def _drop_all(servers: Sequence[_Server]) -> None:
    for server in servers:
        if server.connection is not None:
            server.connection.drop(SourceUnavailable("the provider was closed"))


def _first_failure(failed: dict[DataServerAddress, DataError]) -> DataError:
    """Return the error of a call that every server has failed: one that may pass, if there is one."""
    if len(failed) == 1:
        (error,) = failed.values()
        return error
    reasons = "; ".join(error.message for error in failed.values())
    for kind in (SourceUnavailable, CorruptData):
        if any(isinstance(error, kind) for error in failed.values()):
            return kind(f"no data server of {len(failed)} answers: {reasons}")
    return Rejected(f"no data server of {len(failed)} answers: {reasons}")


def _opening_failure(failed: dict[DataServerAddress, DataError]) -> DataError:
    """Return the error for servers of which none could be opened; a name that nobody knows is a mistake."""
    for address, error in failed.items():
        cause = error.__cause__
        if not (isinstance(cause, socket.gaierror) and cause.errno == socket.EAI_NONAME):
            return _first_failure(failed)
        failed[address] = Rejected(f"there is no host {address.host!r}; check the address {address}")
    return _first_failure(failed)
