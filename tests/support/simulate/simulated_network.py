"""A network that loses, repeats and delays messages between real clients and a real coordinator, in virtual time."""

import asyncio
import math
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from copy import copy
from dataclasses import dataclass, field
from typing import ParamSpec, Protocol, TypeVar

from epochal.coordinator.handlers import Handlers
from epochal.coordinator_client.api import CoordinatorApi, DocumentMark, ForwardedRequests
from epochal.coordinator_client.http import ANSWER_TIMEOUT_S
from epochal.runtime.broadcast import Broadcast
from epochal.runtime.files.spool_part import ReceivedBytes, SentBytes
from epochal.state import round_model
from epochal.state.config.state_file import StateFile
from epochal.state.documents import OwnOutcome, RunDocument
from epochal.state.errors import CoordinatorUnreachable, EpochalError
from epochal.state.messages.requests import (
    Challenge,
    ChallengeRequest,
    JoinRequest,
    Report,
    ResultCommitment,
    Session,
    Standing,
)
from epochal.state.round_model import (
    DOCUMENT_BYTES,
    MESSAGE_BYTES,
    REPORT_BYTES,
    UNLIMITED,
    LinkTransfer,
    fair_rates,
    way_s,
)
from epochal.state.wire import Sha256
from tests.support.drive.in_process import InProcessCoordinator

MAX_REPEAT_DELAY_S = 20.0
UPLOAD_PIECES = 2
MESSAGES_BYTES = {("run_document", "answer"): DOCUMENT_BYTES, ("report", "request"): MESSAGE_BYTES + REPORT_BYTES}
"""Of requests and answers that are longer than others."""

P = ParamSpec("P")
T = TypeVar("T")
Faults = Callable[[str, str], None]
"""Called with a request's name, and `"request"` or `"answer"`; may raise an error in its place."""


def no_faults(name: str, leg: str) -> None:
    """Let everything pass."""


@dataclass(frozen=True, slots=True)
class Weather:
    """How bad the network is. Probabilities are per request or answer; `delay_s` is a range, one way.

    `speed` is that of each client's link, and `server` that of the coordinator's, as plans have them.
    """

    loss: float = 0.0
    repeat: float = 0.0
    delay_s: tuple[float, float] = (0.0005, 0.0005)
    speed: round_model.Link = UNLIMITED
    server: round_model.Link = UNLIMITED


class SharedPipe:
    """One direction of the coordinator's link: transfers share it fairly, as those of the model of a round do."""

    def __init__(self, bytes_per_s: float = math.inf) -> None:
        self._bytes_per_s = bytes_per_s
        self._moving: list[LinkTransfer] = []
        self._changed = Broadcast()

    async def move(self, size_bytes: float, own_bytes_per_s: float) -> None:
        """Wait until bytes have passed, over a link of the client's own, too."""
        if math.isinf(self._bytes_per_s) and math.isinf(own_bytes_per_s):
            return
        transfer, loop = LinkTransfer(1, own_bytes_per_s, ()), asyncio.get_running_loop()
        self._moving.append(transfer)
        self._changed.notify()
        try:
            while size_bytes > 0:
                rate = fair_rates(self._moving, self._bytes_per_s)[self._moving.index(transfer)]
                began_s = loop.time()
                async with asyncio.timeout(size_bytes / rate):
                    await self._changed.wait()
                size_bytes -= rate * (loop.time() - began_s)
        except TimeoutError:
            pass  # all of them have passed
        finally:
            self._moving.remove(transfer)
            self._changed.notify()


@dataclass
class Link:
    """One client's connection to the coordinator.

    Attributes:
        cut: every message is lost; the sender notices it at once, or only after its timeout.
        closed: the client's process has ended, and with it its connections.
        faults: raises errors for single requests.
        requests: the names of the requests that were sent; a report also counts under the name of its class.
    """

    chance: random.Random = field(default_factory=lambda: random.Random(0))
    weather: Weather = field(default_factory=Weather)
    cut: bool = False
    closed: bool = False
    faults: Faults = no_faults
    requests: list[str] = field(default_factory=list)
    pipes: tuple[SharedPipe, SharedPipe] = field(default_factory=lambda: (SharedPipe(), SharedPipe()))
    """To the coordinator, and from it; shared with others."""
    own: tuple[asyncio.Lock, asyncio.Lock] = field(default_factory=lambda: (asyncio.Lock(), asyncio.Lock()))
    """This client's link in both directions, which moves one thing after the other."""

    async def pass_leg(self, name: str, leg: str) -> None:
        """Pass one request or answer on.

        Raises:
            CoordinatorUnreachable: it was lost; raised at once, or only after the client's timeout.
        """
        round_trip_s, speed = 2 * self.chance.uniform(*self.weather.delay_s), self.weather.speed
        rate = speed.up_bytes_per_s if leg == "request" else speed.down_bytes_per_s
        await asyncio.sleep(way_s(MESSAGES_BYTES.get((name, leg), MESSAGE_BYTES), rate, round_trip_s))
        if self._loses():
            await asyncio.sleep(self.chance.choice([0.0, ANSWER_TIMEOUT_S]))
            raise CoordinatorUnreachable("lost on the way")
        self.faults(name, leg)

    async def send(self, size_bytes: int) -> None:
        """Wait until bytes have passed to the coordinator."""
        async with self.own[0]:
            await self.pipes[0].move(size_bytes, self.weather.speed.up_bytes_per_s)

    async def receive(self, size_bytes: int) -> None:
        """Wait until bytes have passed from the coordinator."""
        async with self.own[1]:
            await self.pipes[1].move(size_bytes, self.weather.speed.down_bytes_per_s)

    async def pieces(self, data: bytes) -> AsyncIterator[bytes]:
        """Yield an upload's bytes in pieces, each of which may be the last that arrives."""
        size = max(1, -(-len(data) // UPLOAD_PIECES))
        for start in range(0, len(data), size):
            await asyncio.sleep(self.chance.uniform(*self.weather.delay_s))
            if self._loses():
                raise CoordinatorUnreachable("the upload broke off")
            yield data[start : start + size]

    def repeats(self) -> bool:
        return self.chance.random() < self.weather.repeat

    def _loses(self) -> bool:
        return self.cut or self.chance.random() < self.weather.loss


class ForwardedApi(ForwardedRequests):
    """`CoordinatorApi` that passes every request on through `_carry`."""

    def __init__(self, api: CoordinatorApi) -> None:
        super().__init__(api)
        self._api = api

    @property
    def run_id(self) -> str:
        return self._api.run_id

    @property
    def address(self) -> str:
        return self._api.address

    def use_token(self, token: str | None) -> None:
        self._api.use_token(token)

    async def challenge(self, request: ChallengeRequest) -> Challenge:
        return await self._carry(self._api.challenge, request)

    async def join(self, request: JoinRequest) -> Session:
        return await self._carry(self._api.join, request)

    async def renew(self) -> Session:
        return await self._carry(self._api.renew)

    async def withdraw(self) -> None:
        await self._carry(self._api.withdraw)


class Address(Protocol):
    """The address of a run's coordinator, or of several behind a balancer."""

    @property
    def state(self) -> StateFile: ...

    def handlers(self) -> Handlers:
        """Return the handlers of whichever answers now. Raise `CoordinatorUnreachable` if there are none."""

    async def ask(self, name: str, request: Callable[[], Awaitable[T]]) -> T:
        """Let it answer a request of this name. Raise `CoordinatorUnreachable` if it does not, or what it answers."""


class SimulatedApi(ForwardedApi):
    """A client's requests over a link to coordinators that may die.

    Args:
        tasks: runs the requests that the network repeats.
        saw: called with every run document that arrives.
    """

    def __init__(
        self, address: Address, link: Link, tasks: asyncio.TaskGroup, saw: Callable[[RunDocument], None]
    ) -> None:
        self._own = InProcessCoordinator(address.handlers, address.state.run_id, link.pieces, lambda: link.closed)
        super().__init__(self._own)
        self._address = address
        self._link = link
        self._tasks = tasks
        self._saw = saw

    async def run_document(self, after: DocumentMark | None, wait_s: float) -> RunDocument | None:
        document = await super().run_document(after, wait_s)
        if document is not None:
            self._saw(document)
        return document

    async def own_outcome(self, step: int) -> OwnOutcome:
        return self._own.own_outcome_that_came(step) or await super().own_outcome(step)

    async def report(self, report: Report) -> Standing:
        self._link.requests.append(type(report).__name__)
        return await super().report(report)

    async def send_result(self, commitment: ResultCommitment, data: bytes) -> Standing:
        await self._link.send(len(data))
        return await super().send_result(commitment, data)

    async def put_blob(self, sha256: Sha256, file: SentBytes) -> None:
        await self._link.send(file.size_bytes)
        await super().put_blob(sha256, file)

    async def get_blob(self, sha256: Sha256, file: ReceivedBytes) -> None:
        held_bytes = file.size_bytes
        await super().get_blob(sha256, file)
        await self._link.receive(file.size_bytes - held_bytes)

    async def _carry(self, request: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        name, link = getattr(request, "__name__", ""), self._link
        sent: Callable[P, Awaitable[T]] = getattr(copy(self._api), name)  # with the token of this moment
        link.requests.append(name)
        await link.pass_leg(name, "request")
        if link.repeats():
            self._tasks.create_task(self._repeat(name, lambda: sent(*args, **kwargs)))
        answer = await self._address.ask(name, lambda: sent(*args, **kwargs))
        await link.pass_leg(name, "answer")
        return answer

    async def _repeat(self, name: str, request: Callable[[], Awaitable[object]]) -> None:
        """Make the request once more, later; its answer is dropped."""
        await asyncio.sleep(self._link.chance.uniform(0, MAX_REPEAT_DELAY_S))
        try:
            await self._address.ask(name, request)
        except EpochalError:
            return
