"""The requests that a client may send to a coordinator: one method each, independent of the transport.

The rule kept here: one call is one attempt. It returns the answer, or raises `Refused` (the coordinator refused),
`InvalidDocument` (the answer is malformed), or `CoordinatorUnreachable` (no answer; the call may or may not have
arrived). Every message is idempotent, so a caller may repeat a call without knowing whether it arrived
(`coordinator_client/session.py` does).
"""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ParamSpec, Protocol, TypeVar

from epochal.state.checkpoint_parts import CheckpointManifest
from epochal.state.config.model_table import ModelSpec
from epochal.state.config.state_file import StateFile
from epochal.state.documents import Outcome, OwnOutcome, Roster, RunDocument, UpdateRef, WorkList
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
from epochal.state.wire import Sha256

if TYPE_CHECKING:  # with numpy, which commands that carry no blob do not need
    from epochal.runtime.files.spool_part import ReceivedBytes, SentBytes

P = ParamSpec("P")
T = TypeVar("T")

THROUGH_STORE = "through_store"
"""In the context of a refusal of `put_blob`: an object store had the bytes, and the put was repeated."""


@dataclass(frozen=True, slots=True)
class DocumentMark:
    """The lineage and version of a run document."""

    lineage: str
    version: int


@dataclass(frozen=True, slots=True)
class ResultsQuery:
    """Ask for the verified results of round `(step, attempt)` from number `after` on; wait up to `wait_s` s for one."""

    step: int
    attempt: int
    after: int
    wait_s: float


class DocumentRequests(Protocol):
    """The request that follows a run."""

    async def run_document(self, after: DocumentMark | None, wait_s: float) -> RunDocument | None:
        """Return the run document once it is newer than `after` or of another lineage; None after `wait_s`."""
        ...


class BlobRequests(Protocol):
    """The requests that carry results and checkpoints."""

    async def put_blob(self, sha256: Sha256, file: "SentBytes") -> None: ...

    async def get_blob(self, sha256: Sha256, file: "ReceivedBytes") -> None:
        """Append the blob's bytes to the file, unverified: those that follow the ones that it holds already.

        If this raises, the file holds the bytes that have arrived.
        """
        ...


class ReportRequests(Protocol):
    """The requests with which a member reports."""

    async def report(self, report: Report) -> Standing:
        """Report on this member's replica or its part of a round; return which of its messages have arrived."""
        ...

    async def send_result(self, commitment: ResultCommitment, data: bytes) -> Standing:
        """Report a small result and send its bytes along; return which of this member's messages have arrived.

        If the result is not verified then, the coordinator has only taken the report, and the bytes are to follow.
        """
        ...


class RunRequests(DocumentRequests, BlobRequests, ReportRequests, Protocol):
    """The requests of a member of the run. A data server uses those that read."""

    async def config(self, sha256: Sha256) -> StateFile:
        """Return the run's configuration of this digest, verified."""
        ...

    async def model(self, sha256: Sha256) -> ModelSpec:
        """Return the spec of the run's model in the model document of this digest, verified."""
        ...

    async def manifest(self, sha256: Sha256) -> CheckpointManifest:
        """Return the parts of the checkpoint with this digest, verified."""
        ...

    async def roster(self, sha256: Sha256) -> Roster:
        """Return the roster of this digest, verified."""
        ...

    async def work(self, sha256: Sha256) -> WorkList:
        """Return the work list of this digest, verified."""
        ...

    async def outcome(self, step: int) -> Outcome: ...

    async def own_outcome(self, step: int) -> OwnOutcome: ...

    async def update(self, step: int) -> UpdateRef: ...

    async def results(self, query: ResultsQuery) -> ResultsPage: ...

    async def standing(self) -> Standing:
        """Return which of this member's messages have arrived, and whether it gets work."""
        ...


class CoordinatorApi(RunRequests, Protocol):
    """Every request of a client: those of `RunRequests`, and those of its membership."""

    @property
    def run_id(self) -> str: ...

    @property
    def address(self) -> str:
        """The coordinator's host and port, as they are dialled."""
        ...

    def use_token(self, token: str | None) -> None:
        """Send this session token with every later request."""
        ...

    async def challenge(self, request: ChallengeRequest) -> Challenge: ...

    async def join(self, request: JoinRequest) -> Session: ...

    async def renew(self) -> Session: ...

    async def withdraw(self) -> None: ...


class ForwardedRequests(ABC):
    """`RunRequests` that passes each request on to `requests` through `_carry`, which subclasses define."""

    def __init__(self, requests: RunRequests) -> None:
        self._requests = requests

    @abstractmethod
    async def _carry(self, request: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Make the request, a bound method of `requests`."""

    async def run_document(self, after: DocumentMark | None, wait_s: float) -> RunDocument | None:
        return await self._carry(self._requests.run_document, after, wait_s)

    async def config(self, sha256: Sha256) -> StateFile:
        return await self._carry(self._requests.config, sha256)

    async def model(self, sha256: Sha256) -> ModelSpec:
        return await self._carry(self._requests.model, sha256)

    async def manifest(self, sha256: Sha256) -> CheckpointManifest:
        return await self._carry(self._requests.manifest, sha256)

    async def roster(self, sha256: Sha256) -> Roster:
        return await self._carry(self._requests.roster, sha256)

    async def work(self, sha256: Sha256) -> WorkList:
        return await self._carry(self._requests.work, sha256)

    async def outcome(self, step: int) -> Outcome:
        return await self._carry(self._requests.outcome, step)

    async def own_outcome(self, step: int) -> OwnOutcome:
        return await self._carry(self._requests.own_outcome, step)

    async def update(self, step: int) -> UpdateRef:
        return await self._carry(self._requests.update, step)

    async def results(self, query: ResultsQuery) -> ResultsPage:
        return await self._carry(self._requests.results, query)

    async def report(self, report: Report) -> Standing:
        return await self._carry(self._requests.report, report)

    async def send_result(self, commitment: ResultCommitment, data: bytes) -> Standing:
        return await self._carry(self._requests.send_result, commitment, data)

    async def standing(self) -> Standing:
        return await self._carry(self._requests.standing)

    async def put_blob(self, sha256: Sha256, file: "SentBytes") -> None:
        await self._carry(self._requests.put_blob, sha256, file)

    async def get_blob(self, sha256: Sha256, file: "ReceivedBytes") -> None:
        await self._carry(self._requests.get_blob, sha256, file)
