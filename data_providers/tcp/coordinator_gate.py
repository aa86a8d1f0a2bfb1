"""The gate of a run's data server: it follows the coordinator, and lets a client read its assigned data indices.

It reads only public documents: the run document, every `POLL_PERIOD_S`, and its rosters, work lists and configuration,
from which it computes who may read which data indices: those of the present round, of the one before, and of the
provisional next one, which clients fetch ahead. A client often asks a moment before the server has seen the new round:
the gate then asks the coordinator at once, waits `CATCH_UP_S` for news before it refuses, and refuses only if it can
reach the coordinator.
"""

import asyncio
import logging
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TypeVar

import jwt
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from epochal.coordinator_client.api import RunRequests
from epochal.coordinator_client.follow import DocumentFeed
from epochal.data_providers.protocol import Rejected, SourceUnavailable
from epochal.data_providers.tcp.frames import ANY_VERSION
from epochal.runtime.broadcast import Broadcast
from epochal.runtime.retry import RetryPolicy
from epochal.state.assignment import DataAssignments, assign_data_for_state, proven_ahead
from epochal.state.config.state_file import StateFile
from epochal.state.documents import Roster, RoundAhead, RunDocument
from epochal.state.errors import CoordinatorUnreachable, InvalidInput, Refused
from epochal.state.intervals import DataIds, coalesce
from epochal.state.messages.requests import DATA_TICKET_AUDIENCE, VERIFIER_PREFIX
from epochal.state.wire import ClientId, Seed, Sha256

CLOCK_LEEWAY_S = 60.0
"""Allowed difference between the server's clock and the coordinator's when a ticket's expiry is checked."""

CATCH_UP_S = 5.0
POLL_PERIOD_S = 1.0
"""Time between two requests for the run document while no client waits for a round that was not seen yet."""
MIN_POLL_PERIOD_S = 0.05
"""The same while one does."""
ASK_AGAIN_S = 0.2
"""Time without news after which a waiting client lets the gate ask once more."""
KEPT_ROUNDS = 2
"""The round under way and the one before, whose clients may still be reading."""

_log = logging.getLogger(__name__)

T = TypeVar("T")


Readable = Mapping[ClientId, tuple[DataIds, ...]]
"""The data indices that each client of a round may read."""


class CoordinatorGate:
    """A `Gate` for the run of one coordinator. `follow` must run beside it.

    Args:
        coordinator: the run's.
    """

    def __init__(self, coordinator: RunRequests) -> None:
        self._coordinator = coordinator
        self._pending: RunDocument | None = None
        self._document: RunDocument | None = None
        self._config: StateFile | None = None
        self._is_reachable = False
        self._reached_at_s = time.monotonic()
        self._rounds: OrderedDict[tuple[str, int, int], Readable] = OrderedDict()
        self._ahead: Readable = {}
        self._ahead_of: tuple[Seed, RoundAhead | None] | None = None
        self._rosters: dict[Sha256, Roster] = {}
        self._news = Broadcast()
        self._asked = asyncio.Event()
        """Set while a client waits for a round that was not seen yet."""

    @property
    def lag_s(self) -> float:
        """Seconds since the coordinator fell silent; 0 while it answers."""
        return 0.0 if self._is_reachable else time.monotonic() - self._reached_at_s

    @property
    def document_version(self) -> int:
        """Version of the last run document; -1 before the first one."""
        return -1 if self._document is None else self._document.version

    async def admit(self, run_id: str, ticket: str) -> ClientId:
        """Admit a client, as `Gate.admit`, by a JWT that the coordinator signed for data servers (EdDSA, RFC 8037)."""
        document = await self._eventually(lambda: self._document)
        if document is None:
            raise SourceUnavailable("the data server has not reached the coordinator yet")
        if run_id != document.run_id:
            raise Rejected(f"this data server serves the run {document.run_id}, not {run_id}")
        try:
            claims = jwt.decode(
                ticket,
                Ed25519PublicKey.from_public_bytes(bytes.fromhex(document.coordinator_key)),
                algorithms=["EdDSA"],
                audience=DATA_TICKET_AUDIENCE,
                leeway=CLOCK_LEEWAY_S,
                options={"require": ["sub", "run", "exp", "aud"]},
            )
        except jwt.InvalidTokenError as error:
            raise Rejected(f"the ticket is not valid: {error}") from error
        if claims["run"] != run_id:
            raise Rejected(f"the ticket is for the run {claims['run']}, not {run_id}")
        return ClientId(claims["sub"])

    async def allow(self, client_id: ClientId, data_ids: DataIds, version: int = ANY_VERSION) -> None:
        """Raise unless one of the last `KEPT_ROUNDS` rounds, or the provisional next, assigns the client all of these.

        A verifier computes any round's work again, and may read all.
        What is known to be the client's is allowed at once. For anything else the gate waits for news; it refuses only
        what it does not find in a document as new as the request's.

        Raises:
            Rejected: none does; the client's fault, or it asks too late.
            SourceUnavailable: none does yet, and the coordinator is unreachable or its document `version` has not
                arrived; retry.
        """
        if self._may_read(client_id, data_ids) or await self._eventually(
            lambda: self._may_read(client_id, data_ids) or None
        ):
            return
        if self.document_version < version:
            behind = f"version {self.document_version} of the run document, the request {version}"
            raise SourceUnavailable(f"the data server is behind: it follows {behind}")
        if not self._is_reachable:
            raise SourceUnavailable("the data server cannot reach the coordinator, and does not know this round")
        raise Rejected(f"data indices {data_ids} are not assigned to client {client_id}", client_id=client_id)

    def is_in_rounds(self, client_id: ClientId) -> bool:
        """Return whether one of the last `KEPT_ROUNDS` rounds assigns the client data, or it is a verifier."""
        return _is_verifier(client_id) or any(readable.get(client_id) for readable in self._rounds.values())

    async def follow(self) -> None:
        """Follow the run until cancelled; retry while the coordinator is unreachable."""
        backoff = RetryPolicy(bound_s=math.inf).begin()
        feed = DocumentFeed(self._coordinator)
        while True:
            try:
                self._pending = await feed.poll(0.0) or self._pending
                if self._pending is not None:  # the newest document, or one whose round could not be read before
                    await self._read_round(self._pending)
                    self._pending = None
            except (CoordinatorUnreachable, Refused, InvalidInput) as error:
                if self._is_reachable or self._document is None:
                    _log.warning("coordinator unreachable", extra={"error": str(error)})
                self._is_reachable = False
                await backoff.wait(error)
            else:
                self._is_reachable, self._reached_at_s = True, time.monotonic()
                backoff.reset()
                await self._until_asked()

    async def _until_asked(self) -> None:
        """Return when it is time for the next request: soon if a client waits for news, else after the period."""
        await asyncio.sleep(MIN_POLL_PERIOD_S)
        with suppress(TimeoutError):
            async with asyncio.timeout(POLL_PERIOD_S):
                await self._asked.wait()
        self._asked.clear()

    async def _read_round(self, document: RunDocument) -> None:
        known = self._document
        if self._config is None or known is None or document.config_sha256 != known.config_sha256:
            self._config = await self._coordinator.config(document.config_sha256)
        k = self._config.config.data_indices_per_batch
        head = document.round
        if head is not None:
            name = (document.lineage, head.step, head.attempt)
            if name not in self._rounds:
                roster, work = await self._roster(head.roster_sha256), await self._coordinator.work(head.work_sha256)
                assigned = await asyncio.to_thread(assign_data_for_state, roster, work, head.assignment_seed, head.seed)
                self._rounds[name] = _readable(assigned, k)
                while len(self._rounds) > KEPT_ROUNDS:
                    self._rounds.popitem(last=False)
        self._document = document
        self._news.notify()
        if head is not None and (head.seed, document.ahead) != self._ahead_of:
            self._ahead = await self._readable_ahead(document.ahead, head.seed, k)
            self._ahead_of = head.seed, document.ahead
            self._news.notify()

    async def _readable_ahead(self, ahead: RoundAhead | None, seed: Seed, data_indices_per_batch: int) -> Readable:
        """Return what clients may fetch ahead of the next round: only those whose part is known already."""
        if ahead is None:
            return {}
        try:
            roster = await self._roster(ahead.roster_sha256)
            work = await self._coordinator.work(ahead.work_sha256)
        except Refused as refusal:  # the round is over
            _log.debug("no provisional round", extra={"kind": refusal.kind})
            return {}
        assigned = await asyncio.to_thread(proven_ahead, roster, work, seed)
        return _readable(assigned, data_indices_per_batch)

    async def _roster(self, sha256: Sha256) -> Roster:
        """Return a roster; it is often that of the next round too, and then asked for once."""
        if sha256 not in self._rosters:
            self._rosters = {sha256: await self._coordinator.roster(sha256)}
        return self._rosters[sha256]

    def _may_read(self, client_id: ClientId, data_ids: DataIds) -> bool:
        return _is_verifier(client_id) or any(
            interval.covers(data_ids)
            for readable in (*self._rounds.values(), self._ahead)
            for interval in readable.get(client_id, ())
        )

    async def _eventually(self, probe: Callable[[], T | None]) -> T | None:
        """Return the probe's first result that is not None, asked after all news; None after `CATCH_UP_S`."""
        try:
            async with asyncio.timeout(CATCH_UP_S):
                while (found := probe()) is None:
                    self._asked.set()
                    with suppress(TimeoutError):
                        async with asyncio.timeout(ASK_AGAIN_S):
                            await self._news.wait()
        except TimeoutError:
            return None
        return found


def _is_verifier(holder: str) -> bool:
    return holder.startswith(VERIFIER_PREFIX)


def _readable(assigned: DataAssignments, data_indices_per_batch: int) -> Readable:
    return {
        client_id: tuple(part.to_data_ids(data_indices_per_batch) for part in coalesce(parts))
        for client_id, parts in assigned.items()
    }
