"""A coordinator in the same process: `InProcessCoordinator`.

The rule kept here: only the transport differs from HTTP. Messages and answers are encoded and decoded (except outcomes
and pages of results, which are long and many), the same checks come first, and an error arrives as it would from
problem+json.
"""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import httpx

from epochal.coordinator.blobs.resumable_uploads import BlobBody
from epochal.coordinator.handlers import Handlers
from epochal.coordinator.machine.stimuli import ClientWithdrew
from epochal.coordinator_client.api import DocumentMark, ResultsQuery
from epochal.coordinator_client.follow import parse_immutable
from epochal.runtime.files.spool_part import ReceivedBytes, SentBytes
from epochal.runtime.http.bodies import MAX_BODY_BYTES
from epochal.runtime.http.http_client import refusal_in
from epochal.runtime.http.problem_json import problem_response
from epochal.state.checkpoint_parts import CheckpointManifest
from epochal.state.config.model_table import ModelSpec
from epochal.state.config.state_file import StateFile
from epochal.state.documents import Outcome, OwnOutcome, Roster, RunDocument, UpdateRef, WorkList
from epochal.state.errors import CoordinatorUnreachable, EpochalError, Refused
from epochal.state.messages.deliveries import encoded_delivery, parse_delivery
from epochal.state.messages.requests import (
    Challenge,
    ChallengeRequest,
    JoinRequest,
    Report,
    ResultCommitment,
    ResultsPage,
    Session,
    Standing,
)
from epochal.state.refusals import Refusal
from epochal.state.wire import Sha256, canonical_json, parse_document
from tests.support.data.stored_blobs import blob_bytes

M = TypeVar("M")


class InProcessCoordinator:
    """`CoordinatorApi` over a coordinator's handlers.

    Args:
        handlers: returns them, or raises `CoordinatorUnreachable` while there are none.
        pieces: splits the bytes of an upload.
        has_gone: whether this client's process has ended, which closes its connections.
    """

    def __init__(
        self,
        handlers: Callable[[], Handlers],
        run_id: str,
        pieces: Callable[[bytes], AsyncIterator[bytes]],
        has_gone: Callable[[], bool] = lambda: False,
    ) -> None:
        self._handlers = handlers
        self._run_id = run_id
        self._pieces = pieces
        self._has_gone = has_gone
        self._token: str | None = None
        self._came: dict[int, OwnOutcome] = {}
        """What came with the last run document, by its step, until it is asked for."""

    @property
    def run_id(self) -> str:
        return self._run_id

    @property
    def address(self) -> str:
        return "coordinator:80"

    def use_token(self, token: str | None) -> None:
        self._token = token

    async def run_document(self, after: DocumentMark | None, wait_s: float) -> RunDocument | None:
        with self._asking() as handlers:
            client_id = handlers.authenticate(self._token) if self._token else None
            if client_id is not None and after is not None:
                await handlers.service.older_copy.asked(client_id, after.version, after.lineage)
            with handlers.service.waiting(client_id, self._has_gone):
                if after is None:
                    published = await handlers.wait_published(-1, None, 0.0)
                else:
                    published = await handlers.wait_published(after.version, after.lineage, wait_s)
            if published is not None:
                self._came.clear()
                own = client_id and handlers.service.readers.own_outcome_with(published.document, client_id)
                if own:
                    found = parse_document(OwnOutcome, own)
                    self._came[found.step] = found
        return None if published is None else parse_document(RunDocument, published.body)

    def own_outcome_that_came(self, step: int) -> OwnOutcome | None:
        """Return what this member needs of an outcome, once, if it came with the last run document."""
        return self._came.pop(step, None)

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
            await handlers.submit(ClientWithdrew(handlers.authenticate(self._token)))

    async def config(self, sha256: Sha256) -> StateFile:
        return parse_immutable(StateFile, sha256, self._immutable(sha256))

    async def model(self, sha256: Sha256) -> ModelSpec:
        return parse_immutable(ModelSpec, sha256, self._immutable(sha256))

    async def manifest(self, sha256: Sha256) -> CheckpointManifest:
        return parse_immutable(CheckpointManifest, sha256, self._immutable(sha256))

    async def roster(self, sha256: Sha256) -> Roster:
        return parse_immutable(Roster, sha256, self._immutable(sha256))

    async def work(self, sha256: Sha256) -> WorkList:
        return parse_immutable(WorkList, sha256, self._immutable(sha256))

    async def outcome(self, step: int) -> Outcome:
        with self._asking() as handlers:
            return handlers.outcome(step)

    async def own_outcome(self, step: int) -> OwnOutcome:
        if (found := self.own_outcome_that_came(step)) is not None:
            return found
        with self._asking() as handlers:
            return _encoded(handlers.own_outcome(step, handlers.authenticate(self._token)))

    async def update(self, step: int) -> UpdateRef:
        with self._asking() as handlers:
            return handlers.update(step)

    async def results(self, query: ResultsQuery) -> ResultsPage:
        with self._asking() as handlers:
            reader = handlers.reader(self._token or None, "in-process")
            with handlers.service.waiting(reader.client_id, self._has_gone):
                return await handlers.results(query.step, query.attempt, query.after, query.wait_s, reader)

    async def report(self, report: Report) -> Standing:
        with self._asking() as handlers:
            client_id = handlers.authenticate(self._token)
            return _encoded(await handlers.report(client_id, _received(report)))

    async def send_result(self, commitment: ResultCommitment, data: bytes) -> Standing:
        with self._asking() as handlers:
            client_id = handlers.authenticate(self._token)
            return _encoded(await handlers.deliver(client_id, *parse_delivery(encoded_delivery(commitment, data))))

    async def standing(self) -> Standing:
        with self._asking() as handlers:
            return _encoded(handlers.standing(handlers.authenticate(self._token)))

    async def put_blob(self, sha256: Sha256, file: SentBytes) -> None:
        data = file.to_bytes()
        with self._asking() as handlers:
            client_id = handlers.authenticate(self._token)
            await handlers.receive_blob(client_id, sha256, BlobBody(self._pieces(data), len(data)))

    async def get_blob(self, sha256: Sha256, file: ReceivedBytes) -> None:
        with self._asking() as handlers:
            handlers.check_revealed(handlers.authenticate(self._token), sha256)
            file.append((await blob_bytes(handlers.service.blobs, sha256))[file.size_bytes :])

    def _immutable(self, sha256: Sha256) -> bytes:
        with self._asking() as handlers:
            return handlers.immutable(sha256)

    @contextmanager
    def _asking(self) -> Iterator[Handlers]:
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
