"""A network that loses, repeats, delays and parts, between real clients and a real coordinator, in virtual time."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeVar

from coordinator.handlers import Handlers
from coordinator_client.api import CoordinatorApi, DocumentMark, ResultsQuery
from coordinator_client.http import ANSWER_TIMEOUT_S
from state.config.state_file import StateFile
from state.documents import Outcome, Roster, RunDocument, WorkList
from state.errors import CoordinatorUnreachable, EpochalError
from state.messages import (
    Attestation,
    Challenge,
    ChallengeRequest,
    CheckpointReport,
    FailureReport,
    JoinRequest,
    ReadyReport,
    ResultCommitment,
    ResultsPage,
    Session,
    Standing,
)
from state.wire import ClientId, Sha256, parse_document
from tests.support.simulated_coordinator import SimulatedCoordinator

MAX_REPEAT_DELAY_S = 20.0
UPLOAD_PIECES = 2

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Weather:
    """How bad the network is. Probabilities are per request or answer; `delay_s` is a range, one way."""

    loss: float = 0.0
    repeat: float = 0.0
    delay_s: tuple[float, float] = (0.001, 0.01)


@dataclass
class Link:
    """One client's way to the coordinator.

    Attributes:
        cut: nothing gets through; whoever sends learns it at once, or only from his own timeout.
    """

    chance: random.Random
    weather: Weather = field(default_factory=Weather)
    cut: bool = False

    async def pass_leg(self) -> None:
        """One way of one message.

        Raises:
            CoordinatorUnreachable: it was lost; sometimes known at once, sometimes only after the client's timeout.
        """
        await asyncio.sleep(self.chance.uniform(*self.weather.delay_s))
        if self.cut or self.chance.random() < self.weather.loss:
            await asyncio.sleep(self.chance.choice([0.0, ANSWER_TIMEOUT_S]))
            raise CoordinatorUnreachable("lost on the way")

    def repeats(self) -> bool:
        return self.chance.random() < self.weather.repeat


class SimulatedApi(CoordinatorApi):
    """`CoordinatorApi` over a link to a `SimulatedCoordinator`.

    Args:
        tasks: where requests that the network repeats go on.
        saw: told of every run document that arrives.
    """

    def __init__(
        self,
        coordinator: SimulatedCoordinator,
        link: Link,
        tasks: asyncio.TaskGroup,
        saw: Callable[[RunDocument], None],
    ) -> None:
        self._coordinator = coordinator
        self._link = link
        self._tasks = tasks
        self._saw = saw
        self._token: str | None = None

    @property
    def run_id(self) -> str:
        return self._coordinator.state.run_id

    def use_token(self, token: str | None) -> None:
        self._token = token

    async def _ask(self, act: Callable[[Handlers], Awaitable[T]]) -> T:
        await self._link.pass_leg()
        if self._link.repeats():
            self._tasks.create_task(self._repeat(act))
        answer = await self._coordinator.ask(act)
        await self._link.pass_leg()
        return answer

    async def _repeat(self, act: Callable[[Handlers], Awaitable[object]]) -> None:
        """The same request once more, later; nobody hears the answer."""
        await asyncio.sleep(self._link.chance.uniform(0, MAX_REPEAT_DELAY_S))
        try:
            await self._coordinator.ask(act)
        except EpochalError:
            return

    async def _as_member(self, act: Callable[[Handlers, ClientId], Awaitable[T]]) -> T:
        token = self._token

        async def authenticated(handlers: Handlers) -> T:
            client_id = handlers.authenticate(token)
            answer = await act(handlers, client_id)
            handlers.service.heard(client_id)
            return answer

        return await self._ask(authenticated)

    async def run_document(self, after: DocumentMark | None, wait_s: float) -> RunDocument | None:
        version, lineage = (-1, None) if after is None else (after.version, after.lineage)

        async def act(handlers: Handlers, client_id: ClientId) -> RunDocument | None:
            published = await handlers.wait_published(version, lineage, wait_s)
            return None if published is None else published.document

        document = await self._as_member(act)
        if document is not None:
            self._saw(document)
        return document

    async def challenge(self, request: ChallengeRequest) -> Challenge:
        async def act(handlers: Handlers) -> Challenge:
            return handlers.challenge(request)

        return await self._ask(act)

    async def join(self, request: JoinRequest) -> Session:
        return await self._ask(lambda handlers: handlers.join(request))

    async def renew(self) -> Session:
        async def act(handlers: Handlers, client_id: ClientId) -> Session:
            return handlers.renew(client_id)

        return await self._as_member(act)

    async def withdraw(self) -> None:
        await self._as_member(lambda handlers, client_id: handlers.withdraw(client_id))

    async def config(self, sha256: Sha256) -> StateFile:
        return await self._immutable(StateFile, sha256)

    async def roster(self, sha256: Sha256) -> Roster:
        return await self._immutable(Roster, sha256)

    async def work(self, sha256: Sha256) -> WorkList:
        return await self._immutable(WorkList, sha256)

    async def _immutable(self, kind: type[T], sha256: Sha256) -> T:
        async def act(handlers: Handlers) -> bytes:
            return handlers.immutable(sha256)

        return parse_document(kind, await self._ask(act))

    async def outcome(self, step: int) -> Outcome:
        async def act(handlers: Handlers) -> Outcome:
            return handlers.outcome(step)

        return await self._ask(act)

    async def results(self, query: ResultsQuery) -> ResultsPage:
        return await self._as_member(
            lambda handlers, client_id: handlers.results(query.step, query.attempt, query.after, query.wait_s)
        )

    async def report_ready(self, report: ReadyReport) -> Standing:
        return await self._as_member(lambda handlers, client_id: handlers.report_ready(client_id, report))

    async def commit_result(self, commitment: ResultCommitment) -> Standing:
        return await self._as_member(lambda handlers, client_id: handlers.commit_result(client_id, commitment))

    async def attest(self, attestation: Attestation) -> Standing:
        return await self._as_member(lambda handlers, client_id: handlers.attest(client_id, attestation))

    async def report_checkpoint(self, report: CheckpointReport) -> Standing:
        return await self._as_member(lambda handlers, client_id: handlers.report_checkpoint(client_id, report))

    async def report_failure(self, report: FailureReport) -> Standing:
        return await self._as_member(lambda handlers, client_id: handlers.report_failure(client_id, report))

    async def put_blob(self, sha256: Sha256, data: bytes) -> None:
        await self._as_member(
            lambda handlers, client_id: handlers.receive_blob(client_id, sha256, self._upload(data), len(data))
        )

    async def _upload(self, data: bytes) -> AsyncIterator[bytes]:
        """The bytes in pieces, each of which may be the last that gets through."""
        size = max(1, -(-len(data) // UPLOAD_PIECES))
        for start in range(0, len(data), size):
            await asyncio.sleep(self._link.chance.uniform(*self._link.weather.delay_s))
            if self._link.cut or self._link.chance.random() < self._link.weather.loss:
                raise CoordinatorUnreachable("the upload broke off")
            yield data[start : start + size]

    async def get_blob(self, sha256: Sha256) -> bytes:
        return await self._as_member(lambda handlers, client_id: handlers.service.blobs.read(sha256))
