"""What may be asked of a coordinator: one method per request, whatever carries it.

The rule kept here: one call is one attempt. It answers, or raises `Refused` (the coordinator's word), `InvalidDocument`
(an answer that cannot be one), or `CoordinatorUnreachable` (nothing is known; the call may or may not have arrived).
Every message is idempotent, so a caller that retries (`coordinator_client/session.py`) need not know which.
"""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import ParamSpec, Protocol, TypeVar

from state.config.state_file import StateFile
from state.documents import Outcome, Roster, RunDocument, WorkList
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
    RunStatus,
    Session,
    Standing,
)
from state.wire import ClientId, Sha256

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class DocumentMark:
    """Names a run document."""

    lineage: str
    version: int


@dataclass(frozen=True, slots=True)
class ResultsQuery:
    """Verified results of round `(step, attempt)` from number `after` on; waits up to `wait_s` seconds for one."""

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

    async def put_blob(self, sha256: Sha256, data: bytes) -> None: ...

    async def get_blob(self, sha256: Sha256) -> bytes:
        """Return the blob's bytes, unverified."""
        ...


class RunRequests(DocumentRequests, BlobRequests, Protocol):
    """The requests of a client that takes part in the run. A data server uses those that read."""

    async def config(self, sha256: Sha256) -> StateFile:
        """Return the run's configuration of this digest, verified."""
        ...

    async def roster(self, sha256: Sha256) -> Roster:
        """Return the roster of this digest, verified."""
        ...

    async def work(self, sha256: Sha256) -> WorkList:
        """Return the work list of this digest, verified."""
        ...

    async def outcome(self, step: int) -> Outcome: ...

    async def results(self, query: ResultsQuery) -> ResultsPage: ...

    async def report_ready(self, report: ReadyReport) -> Standing: ...

    async def commit_result(self, commitment: ResultCommitment) -> Standing: ...

    async def attest(self, attestation: Attestation) -> Standing: ...

    async def report_checkpoint(self, report: CheckpointReport) -> Standing: ...

    async def report_failure(self, report: FailureReport) -> Standing: ...


class CoordinatorApi(RunRequests, Protocol):
    """Every request of a client: those of `RunRequests`, and those of its membership."""

    @property
    def run_id(self) -> str:
        """The run that the requests are about."""
        ...

    def use_token(self, token: str | None) -> None:
        """Send this session token with every later request."""
        ...

    async def challenge(self, request: ChallengeRequest) -> Challenge: ...

    async def join(self, request: JoinRequest) -> Session: ...

    async def renew(self) -> Session: ...

    async def withdraw(self) -> None: ...


class OperatorApi(Protocol):
    """Every request of an operator. All but `status` need the admin token."""

    def use_token(self, token: str | None) -> None:
        """Send this admin token with every later request."""
        ...

    async def status(self) -> RunStatus: ...

    async def pause(self) -> None: ...

    async def resume(self) -> None: ...

    async def eject(self, client_id: ClientId) -> None: ...


class ForwardedRequests(ABC):
    """`RunRequests` that hands each request on to another by way of `_carry`, which subclasses define.

    Args:
        requests: makes one attempt of each request.
    """

    def __init__(self, requests: RunRequests) -> None:
        self._requests = requests

    @abstractmethod
    async def _carry(self, request: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Make the request, a bound method of what it is handed on to."""

    async def run_document(self, after: DocumentMark | None, wait_s: float) -> RunDocument | None:
        return await self._carry(self._requests.run_document, after, wait_s)

    async def config(self, sha256: Sha256) -> StateFile:
        return await self._carry(self._requests.config, sha256)

    async def roster(self, sha256: Sha256) -> Roster:
        return await self._carry(self._requests.roster, sha256)

    async def work(self, sha256: Sha256) -> WorkList:
        return await self._carry(self._requests.work, sha256)

    async def outcome(self, step: int) -> Outcome:
        return await self._carry(self._requests.outcome, step)

    async def results(self, query: ResultsQuery) -> ResultsPage:
        return await self._carry(self._requests.results, query)

    async def report_ready(self, report: ReadyReport) -> Standing:
        return await self._carry(self._requests.report_ready, report)

    async def commit_result(self, commitment: ResultCommitment) -> Standing:
        return await self._carry(self._requests.commit_result, commitment)

    async def attest(self, attestation: Attestation) -> Standing:
        return await self._carry(self._requests.attest, attestation)

    async def report_checkpoint(self, report: CheckpointReport) -> Standing:
        return await self._carry(self._requests.report_checkpoint, report)

    async def report_failure(self, report: FailureReport) -> Standing:
        return await self._carry(self._requests.report_failure, report)

    async def put_blob(self, sha256: Sha256, data: bytes) -> None:
        await self._carry(self._requests.put_blob, sha256, data)

    async def get_blob(self, sha256: Sha256) -> bytes:
        return await self._carry(self._requests.get_blob, sha256)
