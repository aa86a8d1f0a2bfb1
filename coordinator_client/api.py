"""What may be asked of a coordinator: one method per request, whatever carries it.

The rule kept here: one call is one attempt. It answers, or raises `Refused` (the coordinator's word), `InvalidDocument`
(an answer that cannot be one), or `CoordinatorUnreachable` (nothing is known; the call may or may not have arrived).
Every message is idempotent, so a caller that retries (`coordinator_client/session.py`) need not know which.
"""

from dataclasses import dataclass
from typing import Protocol

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
    Session,
    Standing,
)
from state.wire import Sha256


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


class CoordinatorApi(Protocol):
    """One try of each request that a client makes. All may raise what the module's head says."""

    @property
    def run_id(self) -> str:
        """The run that the requests are about."""
        ...

    def use_token(self, token: str | None) -> None:
        """Sends this session token with every later request."""
        ...

    async def run_document(self, after: DocumentMark | None, wait_s: float) -> RunDocument | None:
        """The run document, once it is newer than `after` or of another lineage; None if nothing came in `wait_s`."""
        ...

    async def challenge(self, request: ChallengeRequest) -> Challenge: ...

    async def join(self, request: JoinRequest) -> Session: ...

    async def renew(self) -> Session: ...

    async def withdraw(self) -> None: ...

    async def config(self, sha256: Sha256) -> StateFile: ...

    async def roster(self, sha256: Sha256) -> Roster: ...

    async def work(self, sha256: Sha256) -> WorkList: ...

    async def outcome(self, step: int) -> Outcome: ...

    async def results(self, query: ResultsQuery) -> ResultsPage: ...

    async def report_ready(self, report: ReadyReport) -> Standing: ...

    async def commit_result(self, commitment: ResultCommitment) -> Standing: ...

    async def attest(self, attestation: Attestation) -> Standing: ...

    async def report_checkpoint(self, report: CheckpointReport) -> Standing: ...

    async def report_failure(self, report: FailureReport) -> Standing: ...

    async def put_blob(self, sha256: Sha256, data: bytes) -> None: ...

    async def get_blob(self, sha256: Sha256) -> bytes:
        """The blob's bytes, unverified."""
        ...
