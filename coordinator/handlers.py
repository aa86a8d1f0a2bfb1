"""Handlers of the messages of clients and operators, however these arrive: over HTTP, or a simulated network.

They authenticate, check what needs bytes or signatures, turn messages into stimuli, and answer. They decide
nothing about the run: the machine does.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from coordinator.auth.admin import AdminToken
from coordinator.auth.nonces import NONCE_LIFETIME_S, JoinNonces
from coordinator.auth.tokens import SESSION_LIFETIME_S, SessionTokens
from coordinator.layout_cache import LayoutCache
from coordinator.machine.run import Member
from coordinator.machine.stimuli import (
    AttestationReceived,
    CheckpointReported,
    ClientBecameReady,
    ClientEjected,
    ClientJoined,
    ClientWithdrew,
    PauseRequested,
    ResultCommitted,
    ResumeRequested,
    StepFailed,
    Stimulus,
)
from coordinator.publication import Published, standing_of
from coordinator.service import CoordinatorService
from coordinator.uploads import Uploads
from runtime.worker_thread import Worker
from state.documents import CheckpointRef, Outcome
from state.errors import Refused
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
from state.refusals import Refusal
from state.replica import checkpoint_size_bound
from state.results import result_size_bound
from state.wire import ClientId, Sha256, client_id_of, sha256_hex

MAX_FIRST_CHECKPOINT_PERCENT = 25
"""Maximum size of the first checkpoint, in percent of `[blobs] max_total_bytes`; later ones must have its layout."""
SESSION_HEX_DIGITS = 13
"""Of a session's number: every JSON reader has such integers exactly."""
LONG_POLLS_PER_TIMEOUT = 3
"""`wait_s` is at most `client_timeout_s` divided by this, so that a waiting client is heard often enough."""


@dataclass(frozen=True, slots=True)
class Handlers:
    """The front of one coordinator.

    Attributes:
        worker: checks the bytes of results and checkpoints.
        uploads: takes the bytes of results and checkpoints.
    """

    service: CoordinatorService
    nonces: JoinNonces
    tokens: SessionTokens
    admin: AdminToken
    layouts: LayoutCache
    worker: Worker
    uploads: Uploads = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "uploads", Uploads(self.service, self.layouts, self.worker))

    # Who is asking

    def authenticate(self, token: str | None) -> ClientId:
        """Return the member whose session token it is. Counts as a sign of life.

        Raises:
            Refused: `unauthorized`: no token, a wrong, expired or superseded one, or no member any more; `store-failed`
                while the run is not loaded.
        """
        self._check_loaded()
        if not token:
            raise Refused(Refusal.UNAUTHORIZED, "this needs a session token (Authorization: Bearer …)")
        claims = self.tokens.check_session(token, self.service.now_s())
        member = self.service.run.members.get(claims.client_id)
        if member is None:
            raise Refused(Refusal.UNAUTHORIZED, f"client {claims.client_id} is not a member; join again")
        if _session_of(member) != claims.session:
            raise Refused(Refusal.UNAUTHORIZED, "a later join of the same key has superseded this session")
        self.service.heard(claims.client_id)
        return claims.client_id

    def check_admin(self, token: str | None) -> None:
        """Raise `Refused(Refusal.FORBIDDEN)` unless it is the operator's token."""
        self.admin.check(token or "")

    def check_run(self, run_id: str) -> None:
        """Raise `Refused`: `unknown-run` unless it is the run served here, `store-failed` while it is not loaded."""
        self._check_loaded()
        if run_id != self.service.run.state_file.run_id:
            raise Refused(Refusal.UNKNOWN_RUN, f"this coordinator serves run {self.service.run.state_file.run_id!r}")

    def _check_loaded(self) -> None:
        if not self.service.accepting and self.service.failure is None:
            raise Refused(Refusal.STORE_FAILED, "the run is not being served yet, or no more")

    async def _submit(self, stimulus: Stimulus) -> None:
        self._check_loaded()
        await self.service.submit(stimulus)

    # Membership

    def challenge(self, request: ChallengeRequest) -> Challenge:
        """Return a nonce to sign."""
        nonce = self.nonces.make(request.public_key, self.service.now_s())
        return Challenge(nonce, NONCE_LIFETIME_S)

    async def join(self, request: JoinRequest) -> Session:
        """Make the key's owner a member. Refusals: `nonce-*`, `unauthorized`, and those of the machine's join."""
        expires_s = self.nonces.check_join(request, self.service.now_s())
        client_id = client_id_of(bytes.fromhex(request.public_key))
        invitation = None if request.invitation is None else sha256_hex(request.invitation.encode())
        await self._submit(
            ClientJoined(
                client_id=client_id,
                public_key=request.public_key,
                capabilities=request.capabilities,
                nonce=request.nonce,
                nonce_expires_s=expires_s,
                invitation_sha256=invitation,
            )
        )
        member = self.service.run.members.get(client_id)
        if member is None or member.nonce != request.nonce:
            # Two joins of one key were kept together: the session is the later one's alone.
            raise Refused(Refusal.UNAUTHORIZED, "a later join of the same key has superseded this one")
        self.service.heard(client_id)
        return self.renew(client_id)

    def renew(self, client_id: ClientId) -> Session:
        """Return a fresh token and data ticket for a member's present session."""
        member = self.service.run.members.get(client_id)
        if member is None:
            raise Refused(Refusal.UNAUTHORIZED, f"client {client_id} is not a member; join again")
        now_s = self.service.now_s()
        return Session(
            client_id=client_id,
            session_token=self.tokens.session_token(client_id, _session_of(member), now_s),
            data_ticket=self.tokens.data_ticket(client_id, now_s),
            expires_in_s=SESSION_LIFETIME_S,
            client_timeout_s=self.service.run.state_file.config.client_timeout_s,
        )

    async def withdraw(self, client_id: ClientId) -> None:
        """Let a member go."""
        await self._submit(ClientWithdrew(client_id))

    def standing(self, client_id: ClientId) -> Standing:
        """Return what has arrived of a member's messages."""
        return standing_of(self.service.run, client_id)

    # Reading

    def bounded_wait_s(self, wait_s: float) -> float:
        """Return the wait that is granted, in seconds."""
        return max(0.0, min(wait_s, self.service.run.state_file.config.client_timeout_s / LONG_POLLS_PER_TIMEOUT))

    async def wait_published(self, after: int, lineage: str | None, wait_s: float) -> Published | None:
        """Return the published document once it is newer, or None when time is over."""
        return await self.service.readers.wait_published(after, lineage, self.bounded_wait_s(wait_s))

    def immutable(self, sha256: Sha256) -> bytes:
        """Return the canonical JSON of a roster, work list or configuration."""
        found = self.service.readers.immutable(sha256)
        if found is None:
            raise Refused(Refusal.NOT_FOUND, f"no document {sha256} is kept")
        return found

    def outcome(self, step: int) -> Outcome:
        """Return the outcome of a step since the older kept checkpoint."""
        found = self.service.run.outcomes.get(step)
        if found is None:
            raise Refused(Refusal.NOT_FOUND, f"no outcome of step {step} is kept")
        return found

    def latest_checkpoint(self) -> CheckpointRef:
        """Return the last verified checkpoint."""
        found = self.service.run.checkpoint
        if found is None:
            raise Refused(Refusal.NOT_FOUND, "there is no checkpoint yet")
        return found

    async def results(self, step: int, attempt: int, after: int, wait_s: float) -> ResultsPage:
        """Return verified results of the round under way, as they come."""
        return await self.service.readers.wait_results(step, attempt, after, self.bounded_wait_s(wait_s))

    def status(self) -> RunStatus:
        """Return the run as an operator sees it."""
        return self.service.status()

    # What clients report

    async def report_ready(self, client_id: ClientId, report: ReadyReport) -> Standing:
        """Let a member that holds model and data take part."""
        await self._submit(ClientBecameReady(client_id, report))
        return self.standing(client_id)

    async def commit_result(self, client_id: ClientId, report: ResultCommitment) -> Standing:
        """Bind a member to a result. Refused `blob-too-large` beyond the size that the model implies."""
        layout = await self.layouts.current(self.service.run.checkpoint, self.service.blobs)
        bound = result_size_bound(layout)
        if report.size_bytes > bound:
            raise Refused(Refusal.BLOB_TOO_LARGE, f"a result of {report.size_bytes} bytes; allowed: at most {bound}")
        await self._submit(ResultCommitted(client_id, report))
        return self.standing(client_id)

    async def attest(self, client_id: ClientId, report: Attestation) -> Standing:
        """Record which results a witness holds."""
        await self._submit(AttestationReceived(client_id, report))
        return self.standing(client_id)

    async def report_failure(self, client_id: ClientId, report: FailureReport) -> Standing:
        """Record that a member cannot take the step."""
        await self._submit(StepFailed(client_id, report))
        return self.standing(client_id)

    async def report_checkpoint(self, client_id: ClientId, report: CheckpointReport) -> Standing:
        """Record the replica that a member claims, and the bytes that it may announce."""
        await self._check_checkpoint_size(report.size_bytes)
        await self._submit(CheckpointReported(client_id, report))
        return self.standing(client_id)

    async def _check_checkpoint_size(self, size_bytes: int) -> None:
        run = self.service.run
        if run.checkpoint is None:
            bound = run.state_file.blobs.max_total_bytes * MAX_FIRST_CHECKPOINT_PERCENT // 100
        else:
            bound = checkpoint_size_bound(await self.layouts.current(run.checkpoint, self.service.blobs))
        if size_bytes > bound:
            raise Refused(Refusal.BLOB_TOO_LARGE, f"a checkpoint of {size_bytes} bytes; at most {bound} are allowed")

    async def receive_blob(
        self, client_id: ClientId, sha256: Sha256, body: AsyncIterator[bytes], length_bytes: int | None = None
    ) -> None:
        """Take the bytes of a result or checkpoint that this member announced (`Uploads.receive`)."""
        await self.uploads.receive(client_id, sha256, body, length_bytes)

    # What an operator does

    async def pause(self) -> None:
        """Hold the run after this round."""
        await self._submit(PauseRequested())

    async def resume(self) -> None:
        """Let the run go on."""
        await self._submit(ResumeRequested())

    async def eject(self, client_id: ClientId) -> None:
        """Remove a client for good."""
        await self._submit(ClientEjected(client_id))


def _session_of(member: Member) -> int:
    """Return the number of a member's session in its token: from its nonce, which no two joins share."""
    return int(sha256_hex(member.nonce.encode())[:SESSION_HEX_DIGITS], 16)
