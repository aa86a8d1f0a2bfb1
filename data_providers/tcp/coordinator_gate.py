"""The gate of a data server that belongs to a run: it follows the coordinator and serves a client what it is assigned.

It reads only what everybody may read: the run document by long poll, and the immutable roster, work list and
configuration that it names. From those follows who may read which data indices, without asking anyone. A client often
asks a moment before the server has seen the new round; so a refusal waits `CATCH_UP_S` for the follower first, and is a
refusal only if the coordinator could be heard at all.
"""

import asyncio
import json
import logging
import math
import ssl
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import httpx
import jwt
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from data_providers.protocol import Rejected, SourceUnavailable
from runtime.broadcast import Broadcast
from runtime.retry import RetryPolicy
from state.assignment import assign_data_for_state
from state.config.state_file import StateFile
from state.documents import Roster, RoundHead, RunDocument, WorkList
from state.errors import InvalidDocument, InvalidInput
from state.intervals import DataIds, coalesce
from state.wire import ClientId, Sha256, canonical_json, parse_document, sha256_hex

TICKET_AUDIENCE = "epochal-data"
CLOCK_LEEWAY_S = 60.0
"""How far the server's clock may be off the coordinator's when a ticket's expiry is read."""

CATCH_UP_S = 5.0
KEPT_ROUNDS = 2
"""The round under way and the one before: its clients may still be reading when the next one starts."""

LONG_POLL_S = 10.0
ANSWER_TIMEOUT_S = 10.0
"""For an answer, on top of what a long poll may wait."""

_log = logging.getLogger(__name__)

T = TypeVar("T")
Readable = Mapping[ClientId, tuple[DataIds, ...]]
"""For each client of a round, the closed intervals of data indices that it may read."""


@dataclass(frozen=True, slots=True)
class _Runs:
    """The runs that a coordinator serves."""

    runs: tuple[str, ...]

    def only(self) -> str:
        if len(self.runs) != 1:
            raise InvalidDocument(f"the coordinator serves {len(self.runs)} runs; a data server needs one")
        return self.runs[0]


class CoordinatorGate:
    """A `Gate` for the one run that a coordinator serves. `follow` must run beside it."""

    def __init__(self, coordinator_url: str, verify: bool | str | ssl.SSLContext = True) -> None:
        """
        Args:
            coordinator_url: the coordinator's base URL, such as `http://127.0.0.1:8080`.
            verify: whether to verify TLS certificates, or a file with the authorities to trust, or how else to trust.
        """
        self._url = coordinator_url.rstrip("/")
        self._verify = ssl.create_default_context(cafile=verify) if isinstance(verify, str) else verify
        self._run_id: str | None = None
        self._document: RunDocument | None = None
        self._config: StateFile | None = None
        self._hears = False
        self._heard_at_s = time.monotonic()
        self._rounds: OrderedDict[tuple[str, int, int], Readable] = OrderedDict()
        self._news = Broadcast()

    @property
    def lag_s(self) -> float:
        """Seconds since the coordinator fell silent; 0 while it answers."""
        return 0.0 if self._hears else time.monotonic() - self._heard_at_s

    @property
    def document_version(self) -> int:
        """Version of the run document that is followed; -1 before there is one."""
        return -1 if self._document is None else self._document.version

    async def admit(self, run_id: str, ticket: str) -> ClientId:
        """As `Gate.admit`; the ticket is a JWT that the run's coordinator signed for data servers (EdDSA, RFC 8037).

        Raises:
            Rejected: not signed by this coordinator, not for this run, or expired; the client renews its session.
            SourceUnavailable: the coordinator was not heard yet; retry.
        """
        document = await self._eventually(lambda: self._document)
        if document is None:
            raise SourceUnavailable("the data server has not heard from the coordinator yet")
        if run_id != document.run_id:
            raise Rejected(f"this data server serves the run {document.run_id}, not {run_id}")
        try:
            claims = jwt.decode(
                ticket,
                Ed25519PublicKey.from_public_bytes(bytes.fromhex(document.coordinator_key)),
                algorithms=["EdDSA"],
                audience=TICKET_AUDIENCE,
                leeway=CLOCK_LEEWAY_S,
                options={"require": ["sub", "run", "exp", "aud"]},
            )
        except jwt.InvalidTokenError as error:
            raise Rejected(f"the ticket is not valid: {error}") from error
        if claims["run"] != run_id:
            raise Rejected(f"the ticket is for the run {claims['run']}, not {run_id}")
        return ClientId(claims["sub"])

    async def allow(self, client_id: ClientId, data_ids: DataIds) -> None:
        """As `Gate.allow`; one of the last `KEPT_ROUNDS` rounds must assign the client all of these data indices.

        Raises:
            Rejected: none does; the client's fault, or it comes too late.
            SourceUnavailable: none does yet, and the coordinator cannot be heard; retry.
        """
        if await self._eventually(lambda: self._may_read(client_id, data_ids) or None):
            return
        if not self._hears:
            raise SourceUnavailable("the data server cannot hear the coordinator, and does not know this round")
        raise Rejected(f"data indices {data_ids} are not assigned to client {client_id}", client_id=client_id)

    async def follow(self) -> None:
        """Follows the run until it is cancelled; a coordinator that is away is asked again and again."""
        backoff = RetryPolicy(bound_s=math.inf).begin()
        async with httpx.AsyncClient(base_url=self._url, verify=self._verify, timeout=ANSWER_TIMEOUT_S) as client:
            while True:
                try:
                    await self._follow_once(client)
                except (httpx.HTTPError, InvalidInput) as error:
                    if self._hears or self._document is None:
                        _log.warning("coordinator not heard", extra={"error": str(error) or type(error).__name__})
                    self._hears = False
                    await backoff.wait(error)
                else:
                    self._hears, self._heard_at_s = True, time.monotonic()
                    backoff.reset()

    async def _follow_once(self, client: httpx.AsyncClient) -> None:
        """Waits for one newer run document, and learns what it assigns."""
        if self._run_id is None:
            self._run_id = await _only_run(client)
        known = self._document
        answer = await client.get(
            f"/v1/runs/{self._run_id}",
            params={} if known is None else {"after": known.version, "lineage": known.lineage, "wait_s": LONG_POLL_S},
            timeout=LONG_POLL_S + ANSWER_TIMEOUT_S,
        )
        if answer.status_code == httpx.codes.NOT_MODIFIED:
            return
        document = parse_document(RunDocument, answer.raise_for_status().content)
        if self._config is None or known is None or document.config_sha256 != known.config_sha256:
            self._config = await self._immutable(client, StateFile, "config", document.config_sha256)
        if document.round is not None:
            name = (document.lineage, document.round.step, document.round.attempt)
            if name not in self._rounds:
                self._rounds[name] = await self._readable(client, document.round, self._config)
                while len(self._rounds) > KEPT_ROUNDS:
                    self._rounds.popitem(last=False)
        self._document = document
        self._news.notify()

    async def _readable(self, client: httpx.AsyncClient, head: RoundHead, config: StateFile) -> Readable:
        roster = await self._immutable(client, Roster, "rosters", head.roster_sha256)
        work = await self._immutable(client, WorkList, "work", head.work_sha256)
        k = config.config.data_indices_per_batch
        assignments = await asyncio.to_thread(assign_data_for_state, roster, work, head.seed)
        return {
            client_id: tuple(part.to_data_ids(k) for part in coalesce(parts))
            for client_id, parts in assignments.items()
        }

    async def _immutable(self, client: httpx.AsyncClient, kind: type[T], place: str, sha256: Sha256) -> T:
        """The document of this digest, verified."""
        answer = await client.get(f"/v1/runs/{self._run_id}/{place}/{sha256}")
        content = answer.raise_for_status().content
        document = parse_document(kind, content)
        found = sha256_hex(canonical_json(json.loads(content)))
        if found != sha256:
            raise InvalidDocument(f"{place} {sha256} came with digest {found}", expected=sha256, found=found)
        return document

    def _may_read(self, client_id: ClientId, data_ids: DataIds) -> bool:
        return any(
            interval.covers(data_ids) for readable in self._rounds.values() for interval in readable.get(client_id, ())
        )

    async def _eventually(self, probe: Callable[[], T | None]) -> T | None:
        """What the probe finds, at once or after news from the coordinator; None when `CATCH_UP_S` is over first."""
        try:
            async with asyncio.timeout(CATCH_UP_S):
                while (found := probe()) is None:
                    await self._news.wait()
        except TimeoutError:
            return None
        return found


async def _only_run(client: httpx.AsyncClient) -> str:
    answer = (await client.get("/v1/runs")).raise_for_status()
    return parse_document(_Runs, answer.content).only()
