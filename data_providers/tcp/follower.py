"""The gate of a data server that belongs to a run: it follows the coordinator and serves a client what it is assigned.

It reads only what everybody may read: the run document by long poll, and the immutable roster, work list and
configuration that it names. From those follows who may read which data indices, without asking anyone. A client often
asks a moment before the server has seen the new round; so a refusal waits `CATCH_UP_S` for the follower first, and is a
refusal only if the coordinator could be heard at all.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import httpx
import jwt
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from data_providers.protocol import Rejected, SourceUnavailable
from state.assignment import assign_data_for_state
from state.documents import RoundHead, Roster, RunDocument, WorkList
from state.errors import InvalidInput
from state.intervals import BatchId, coalesce
from state.wire import ClientId, Sha256, parse_document, sha256_hex

TICKET_AUDIENCE = "epochal-data"
CLOCK_LEEWAY_S = 60.0
"""How far the server's clock may be off the coordinator's when a ticket's expiry is read."""

CATCH_UP_S = 5.0
KEPT_ROUNDS = 2
LONG_POLL_S = 10.0
MIN_LONG_POLL_S = 0.1
REQUEST_TIMEOUT_S = 10.0
FIRST_RETRY_S = 0.1
MAX_RETRY_S = 5.0
MAX_DOCUMENT_BYTES = 64 * 1024**2

_log = logging.getLogger(__name__)

T = TypeVar("T")
Allowed = Mapping[ClientId, tuple[BatchId, ...]]
"""For each client of a round, the closed intervals of data indices that it may read."""


class CoordinatorGate:
    """A `Gate` that knows a run's rounds. `follow` must run beside it."""

    def __init__(self, coordinator_url: str, run_id: str) -> None:
        self._base = f"{coordinator_url.rstrip('/')}/v1/runs/{run_id}"
        self._run_id = run_id
        self._document: RunDocument | None = None
        self._hears = False
        self._config: Mapping[str, Any] = {}
        self._rounds: OrderedDict[tuple[str, int, int], Allowed] = OrderedDict()
        self._news = asyncio.Event()

    async def admit(self, ticket: str) -> ClientId:
        """As `Gate.admit`: the ticket is a token that the run's coordinator signed for data servers (EdDSA, RFC 8037).

        Raises:
            Rejected: not signed by this coordinator, not for this run, or expired; the client renews its session.
            SourceUnavailable: the coordinator was not heard yet; retry.
        """
        document = await self._eventually(lambda: self._document)
        if document is None:
            raise SourceUnavailable("the data server has not heard from the coordinator yet")
        key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(document.coordinator_key))
        try:
            claims = jwt.decode(
                ticket,
                key,
                algorithms=["EdDSA"],
                audience=TICKET_AUDIENCE,
                leeway=CLOCK_LEEWAY_S,
                options={"require": ["sub", "run", "exp", "aud"]},
            )
        except jwt.InvalidTokenError as error:
            raise Rejected(f"the ticket is not valid: {error}") from error
        if claims["run"] != self._run_id:
            raise Rejected(f"the ticket is for the run {claims['run']}, not {self._run_id}")
        return ClientId(claims["sub"])

    async def allow(self, client_id: ClientId, data_ids: BatchId) -> None:
        """As `Gate.allow`: one of the last `KEPT_ROUNDS` rounds assigns the client all of these data indices.

        Raises:
            Rejected: none does; the client's fault, or it is too late.
            SourceUnavailable: none does yet, and the coordinator cannot be heard; retry.
        """
        if await self._eventually(lambda: self._is_assigned(client_id, data_ids) or None):
            return
        if not self._hears:
            raise SourceUnavailable("the data server cannot hear the coordinator")
        raise Rejected(f"data indices {data_ids} are not assigned to client {client_id}", client_id=client_id)

    async def follow(self) -> None:
        """Follows the run until it is cancelled; a coordinator that is away is asked again and again."""
        async with httpx.AsyncClient(timeout=REQUEST_TIMEOUT_S) as client:
            retry_s = FIRST_RETRY_S
            while True:
                try:
                    await self._step(client)
                except (httpx.HTTPError, InvalidInput, LookupError, TypeError, ValueError) as error:
                    if self._hears or self._document is None:
                        _log.warning("coordinator not heard", extra={"error": str(error) or type(error).__name__})
                    self._hears = False
                    await asyncio.sleep(retry_s)
                    retry_s = min(2 * retry_s, MAX_RETRY_S)
                else:
                    retry_s = FIRST_RETRY_S
