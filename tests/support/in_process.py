"""The coordinator in the same process: `InProcessCoordinator`, for tests and simulations.

The rule kept here: only the transport differs from HTTP. Messages and answers pass through their encoding, but for
outcomes and pages of results, which are long and many; the same checks precede them, and an error arrives as the
problem that HTTP would make of it.
"""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Protocol, TypeVar

import httpx

from coordinator_client.api import DocumentMark, ResultsQuery
from coordinator_client.follow import parse_immutable
from runtime.http_bodies import MAX_BODY_BYTES
from runtime.http_client import refusal_in
from runtime.problem_json import problem_response
from state.config.state_file import StateFile
from state.documents import Outcome, Roster, RunDocument, WorkList
from state.errors import CoordinatorUnreachable, EpochalError, Refused
from state.messages import (
    Attestation,
    Challenge,
    ChallengeRequest,
    CheckpointReport,
    FailureReport,
    JoinRequest,
    ReadyReport,
    Report,
    ResultCommitment,
    ResultsPage,
    RunStatus,
    Session,
    Standing,
)
from state.refusals import Refusal
from state.wire import ClientId, Sha256, canonical_json, parse_document

M = TypeVar("M")


class _Published(Protocol):
    @property
    def body(self) -> bytes: ...


class _Blobs(Protocol):
    async def read(self, sha256: Sha256) -> bytes: ...


class _Service(Protocol):
    @property
    def blobs(self) -> _Blobs: ...

    def heard(self, client_id: ClientId) -> None: ...


class CoordinatorHandlers(Protocol):
    """The part of `coordinator.handlers.Handlers` that is asked here."""

    @property
    def service(self) -> _Service: ...

    def check_run(self, run_id: str) -> None: ...

    def check_admin(self, token: str | None) -> None: ...

    def authenticate(self, token: str | None) -> ClientId: ...

    def challenge(self, request: ChallengeRequest) -> Challenge: ...

    async def join(self, request: JoinRequest) -> Session: ...

    def renew(self, client_id: ClientId) -> Session: ...

    async def withdraw(self, client_id: ClientId) -> None: ...

    async def wait_published(self, after: int, lineage: str | None, wait_s: float) -> _Published | None: ...

    def immutable(self, sha256: Sha256) -> bytes: ...

    def outcome(self, step: int) -> Outcome: ...

    async def results(self, step: int, attempt: int, after: int, wait_s: float) -> ResultsPage: ...

    async def report(self, client_id: ClientId, report: Report) -> Standing: ...

    async def receive_blob(
        self, client_id: ClientId, sha256: Sha256, body: AsyncIterator[bytes], length_bytes: int | None = None
    ) -> None: ...

    def status(self) -> RunStatus: ...

    async def pause(self) -> None: ...

    async def resume(self) -> None: ...

    async def eject(self, client_id: ClientId) -> None: ...


async def in_one_piece(data: bytes) -> AsyncIterator[bytes]:
    """Send a blob's bytes at once."""
    yield data


class InProcessCoordinator:
    """`CoordinatorApi` and `OperatorApi` over a coordinator's handlers.

    Args:
        handlers: returns them; may raise `CoordinatorUnreachable` while there are none.
        run_id: the run that is asked about.
        pieces: how the bytes of a blob arrive.
    """

    def __init__(
        self,
        handlers: Callable[[], CoordinatorHandlers],
        run_id: str,
        pieces: Callable[[bytes], AsyncIterator[bytes]] = in_one_piece,
    ) -> None:
        self._handlers = handlers
        self._run_id = run_id
        self._pieces = pieces
        self._token: str | None = None

    @property
    def run_id(self) -> str:
        return self._run_id

    def use_token(self, token: str | None) -> None:
        self._token = token

    async def run_document(self, after: DocumentMark | None, wait_s: float) -> RunDocument | None:
        with self._asking() as handlers:
            client_id = handlers.authenticate(self._token) if self._token else None
            if after is None:
                published = await handlers.wait_published(-1, None, 0.0)
            else:
                published = await handlers.wait_published(after.version, after.lineage, wait_s)
            if client_id is not None:
                handlers.service.heard(client_id)
        return None if published is None else parse_document(RunDocument, published.body)

    async def challenge(self, request: ChallengeRequest) -> Challenge:
        with self._asking() as handlers:
            return _encoded(handlers.challenge(_received(request)))

    async def join(self, request: JoinRequest) -> Session:
        with self._asking() as handlers:
            return _encoded(await handlers.join(_received(request)))

    async def renew(self) -> Session:
        with self._asking() as handlers:
            return _encoded(handlers.renew(handlers.authenticate(self._token)))

    async def withdraw(self) -> None:
        with self._asking() as handlers:
            await handlers.withdraw(handlers.authenticate(self._token))

    async def config(self, sha256: Sha256) -> StateFile:
        return parse_immutable(StateFile, sha256, self._immutable(sha256))

    async def roster(self, sha256: Sha256) -> Roster:
        return parse_immutable(Roster, sha256, self._immutable(sha256))

    async def work(self, sha256: Sha256) -> WorkList:
        return parse_immutable(WorkList, sha256, self._immutable(sha256))

    async def outcome(self, step: int) -> Outcome:
        with self._asking() as handlers:
            return handlers.outcome(step)

    async def results(self, query: ResultsQuery) -> ResultsPage:
        with self._asking() as handlers:
            client_id = handlers.authenticate(self._token) if self._token else None
            page = await handlers.results(query.step, query.attempt, query.after, query.wait_s)
            if client_id is not None:
                handlers.service.heard(client_id)
        return page

    async def report_ready(self, report: ReadyReport) -> Standing:
        return await self._report(report)

    async def commit_result(self, commitment: ResultCommitment) -> Standing:
        return await self._report(commitment)

    async def attest(self, attestation: Attestation) -> Standing:
        return await self._report(attestation)

    async def report_checkpoint(self, report: CheckpointReport) -> Standing:
        return await self._report(report)

    async def report_failure(self, report: FailureReport) -> Standing:
        return await self._report(report)

    async def put_blob(self, sha256: Sha256, data: bytes) -> None:
        with self._asking() as handlers:
            client_id = handlers.authenticate(self._token)
            await handlers.receive_blob(client_id, sha256, self._pieces(data), len(data))

    async def get_blob(self, sha256: Sha256) -> bytes:
        with self._asking() as handlers:
            handlers.authenticate(self._token)
            return await handlers.service.blobs.read(sha256)

    async def status(self) -> RunStatus:
        with self._asking() as handlers:
            return _encoded(handlers.status())

    async def pause(self) -> None:
        with self._asking() as handlers:
            handlers.check_admin(self._token)
            await handlers.pause()

    async def resume(self) -> None:
        with self._asking() as handlers:
            handlers.check_admin(self._token)
            await handlers.resume()

    async def eject(self, client_id: ClientId) -> None:
        with self._asking() as handlers:
            handlers.check_admin(self._token)
            await handlers.eject(client_id)

    def _immutable(self, sha256: Sha256) -> bytes:
        with self._asking() as handlers:
            return handlers.immutable(sha256)

    async def _report(self, report: Report) -> Standing:
        with self._asking() as handlers:
            client_id = handlers.authenticate(self._token)
            return _encoded(await handlers.report(client_id, _received(report)))

    @contextmanager
    def _asking(self) -> Iterator[CoordinatorHandlers]:
        try:
            handlers = self._handlers()
            handlers.check_run(self._run_id)
            yield handlers
        except CoordinatorUnreachable:
            raise
        except EpochalError as error:
            problem = problem_response(error)
            answer = httpx.Response(problem.status_code, headers=dict(problem.headers), content=bytes(problem.body))
            refusal = refusal_in(answer)
            assert refusal is not None
            raise refusal from error


def _received(message: M) -> M:
    """Return the message as the coordinator receives it. Raise `Refused` if it is too large."""
    body = canonical_json(message)
    if len(body) > MAX_BODY_BYTES:
        raise Refused(Refusal.BODY_TOO_LARGE, f"a body of more than {MAX_BODY_BYTES} bytes")
    return parse_document(type(message), body)


def _encoded(answer: M) -> M:
    """Return the answer as the client receives it."""
    return parse_document(type(answer), canonical_json(answer))
