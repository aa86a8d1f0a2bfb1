"""Handlers of the messages of clients and operators, over HTTP or a simulated network.

They authenticate, check what needs bytes or signatures, turn messages into stimuli, and answer. Everything about the
run is decided by the machine.
"""

from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from epochal.coordinator.auth.admin import MIRROR, OPERATOR, VERIFIER, AdminToken
from epochal.coordinator.auth.nonces import NONCE_LIFETIME_S, JoinNonces
from epochal.coordinator.auth.request_rates import JOINS, PARTS, REPLAYS, REPORTS, UPLOADS, MessageRates
from epochal.coordinator.auth.tokens import SESSION_LIFETIME_S, SessionTokens, session_number
from epochal.coordinator.blobs.downloads import Downloads
from epochal.coordinator.blobs.from_object_store import Arrivals
from epochal.coordinator.blobs.inline_results import take_with_commitment
from epochal.coordinator.blobs.intake import Intake
from epochal.coordinator.blobs.leased_replays import LeasedReplays
from epochal.coordinator.blobs.resumable_uploads import BlobBody
from epochal.coordinator.blobs.uploads import Uploads
from epochal.coordinator.insight.contributions import receipt_of
from epochal.coordinator.insight.read_side import ReadSide
from epochal.coordinator.machine import stimuli
from epochal.coordinator.machine.datasets import disagreement
from epochal.coordinator.machine.membership import check_admitted, check_join
from epochal.coordinator.machine.parts.admissions import Applicant
from epochal.coordinator.machine.parts.member import Member
from epochal.coordinator.machine.parts.verification import replay_key
from epochal.coordinator.machine.replays.judging import check_role
from epochal.coordinator.machine.replays.reveals import with_challenges
from epochal.coordinator.machine.views import ExpectedPart, expected_blob, is_of_model, is_revealed
from epochal.coordinator.run.liveness import KEY_FREE_AFTER_S
from epochal.coordinator.run.long_polls import Reader, ReaderKind, stranger_at
from epochal.coordinator.run.publication import Published, standing_of
from epochal.coordinator.run.service import CoordinatorService
from epochal.state.client_names import shown_client
from epochal.state.documents import CheckpointRef, Outcome, OwnOutcome, UpdateRef
from epochal.state.errors import Refused
from epochal.state.intervals import coalesce, subtract
from epochal.state.messages import requests as messages
from epochal.state.messages.evaluation_reports import EvaluationReport
from epochal.state.messages.receipts import Receipt, ReceiptRequest
from epochal.state.messages.replay_messages import CalibrationReport, ReplayFailure, ReplayReport, ScoreReport
from epochal.state.refusals import Refusal
from epochal.state.wire import ClientId, Sha256, client_id_of, sha256_hex

LONG_POLLS_PER_TIMEOUT = 3
"""`wait_s` is at most `client_timeout_s` divided by this, so that a waiting client sends requests often enough."""

_REPORTED: Mapping[type, Callable[[ClientId, Any], stimuli.Stimulus]] = {
    messages.ReadyReport: stimuli.ClientBecameReady,
    messages.ResultCommitment: stimuli.ResultReceived,
    messages.Attestation: stimuli.AttestationReceived,
    messages.CheckpointReport: stimuli.CheckpointReported,
    messages.FailureReport: stimuli.StepFailed,
    messages.TimesReport: stimuli.TimesReported,
    messages.LeavingReport: stimuli.LeaveAnnounced,
}
_FOUND: Mapping[type, Callable[[str, Any], stimuli.VerifierStimulus]] = {
    ReplayReport: stimuli.ReplayReported,
    ScoreReport: stimuli.ScoreReported,
    ReplayFailure: stimuli.ReplayFailed,
    CalibrationReport: stimuli.CalibrationReported,
}


@dataclass(frozen=True, slots=True)
class Handlers:
    """Every request to one coordinator, as a method."""

    service: CoordinatorService
    nonces: JoinNonces
    tokens: SessionTokens
    admin: AdminToken
    intake: Intake
    uploads: Uploads
    downloads: Downloads
    arrivals: Arrivals
    replays: LeasedReplays
    insight: ReadSide
    rates: MessageRates = field(default_factory=MessageRates)

    # Authentication

    def authenticate(self, token: str | None) -> ClientId:
        """Return the member to which the session token belongs, and note that it was heard. Raise as `member_of`."""
        client_id = self.member_of(token)
        self.service.heard(client_id)
        return client_id

    def member_of(self, token: str | None) -> ClientId:
        """Return the member to which the session token belongs. Nobody is heard.

        Raises:
            Refused: `unauthorized` for a missing, wrong, expired or superseded token, or one of a former member;
                `store-failed` while the run is not loaded.
        """
        self._check_loaded()
        if not token:
            raise Refused(Refusal.UNAUTHORIZED, "this needs a session token (Authorization: Bearer …)")
        claims = self.tokens.check_session(token, self.service.now_s())
        if session_number(self._member(claims.client_id).joining.nonce) != claims.session:
            raise Refused(Refusal.UNAUTHORIZED, "a later join of the same key has superseded this session")
        return claims.client_id

    def reader(self, token: str | None, host: str) -> Reader:
        """Return who reads: a member, which was heard, a data server, a verifier, or, without a token, a stranger.

        Raise as `authenticate` for any other token.
        """
        if token is None:
            return stranger_at(host)
        now_s = self.service.now_s()
        server_id = self.tokens.program_of("data-server", token, now_s)
        if server_id is not None:
            return Reader(ReaderKind.DATA_SERVER, server_id)
        verifier = self.tokens.program_of("verifier", token, now_s)
        if verifier is not None:
            return Reader(ReaderKind.VERIFIER, verifier)
        return Reader(ReaderKind.MEMBER, self.authenticate(token))

    def knows(self, token: str | None) -> bool:
        """Return whether a token is a present member's or one of another program's; a stranger has none.

        Nobody is heard.
        """
        now_s = self.service.now_s()
        programs: tuple[messages.ProgramKind, ...] = ("data-server", "verifier", "mirror")
        if token is None or any(self.tokens.program_of(kind, token, now_s) for kind in programs):
            return True
        try:
            claims = self.tokens.check_session(token, now_s)
        except Refused:
            return False
        member = self.service.run.members.by_id.get(claims.client_id)
        return member is not None and session_number(member.joining.nonce) == claims.session

    def check_admin(self, token: str | None) -> None:
        """Raise `Refused` unless it is the operator's token: `unauthorized` if there is none, `forbidden` if wrong."""
        if not token:
            raise Refused(
                Refusal.UNAUTHORIZED,
                "this needs the admin token, which the coordinator printed at its first start: a command takes it from "
                "EPOCHAL_ADMIN_TOKEN, a request in its header (Authorization: Bearer …)",
            )
        self.admin.check(token)

    def blob_reader(self, token: str | None) -> ClientId:
        """Return who reads a blob: a member, which was heard, or `OPERATOR`, `VERIFIER` or `MIRROR`.

        Raise as `authenticate`.
        """
        self._check_loaded()
        programs: tuple[tuple[messages.ProgramKind, ClientId], ...] = (("verifier", VERIFIER), ("mirror", MIRROR))
        for kind, reader in programs:
            if token and self.tokens.program_of(kind, token, self.service.now_s()) is not None:
                return reader
        return OPERATOR if token and self.admin.matches(token) else self.authenticate(token)

    def checker(self, token: str | None) -> str:
        """Return which checker sends a request. Raise `Refused` (`unauthorized`) unless it has a checker's token."""
        return self._program("checker", token)

    def verifier(self, token: str | None) -> str:
        """Return which verifier sends a request.

        Raises:
            Refused: `unauthorized` unless it has a verifier's token; `not-now` if the run's results are not replayed;
                `forbidden` if it lost its role.
        """
        found = self._program("verifier", token)
        check_role(self.service.run, found)
        return found

    def _program(self, kind: messages.ProgramKind, token: str | None) -> str:
        self._check_loaded()
        found = None if token is None else self.tokens.program_of(kind, token, self.service.now_s())
        if found is None:
            raise Refused(Refusal.UNAUTHORIZED, f"this needs a {kind}'s token (`epochal token {kind}`)")
        return found

    def check_run(self, run_id: str) -> None:
        """Raise `Refused`: `unknown-run` unless it is the run served here, `store-failed` while it is not loaded."""
        self._check_loaded()
        if run_id != self.service.run.state_file.run_id:
            raise Refused(Refusal.UNKNOWN_RUN, f"this coordinator serves run {self.service.run.state_file.run_id!r}")

    def _check_loaded(self) -> None:
        if not self.service.is_serving:
            raise Refused(Refusal.STORE_FAILED, "the run is not being served yet, or no longer")

    def check_store(self, client_id: ClientId | None) -> None:
        """Refuse a reader who has waited for news in vain, if none can come.

        Raises:
            Refused: `store-failed` when the store has failed; to a member also while it is blocked.
        """
        health = self.service.health
        if health.failure is not None or (client_id is not None and health.problem is not None):
            raise health.refusal()

    def _member(self, client_id: ClientId) -> Member:
        member = self.service.run.members.by_id.get(client_id)
        if member is None:
            raise Refused(Refusal.UNAUTHORIZED, f"client {client_id} is not a member; join again")
        return member

    async def submit(self, stimulus: stimuli.Stimulus) -> None:
        """Let the run take a stimulus. Raise `Refused` as the machine does, or `store-failed`."""
        self._check_loaded()
        await self.service.submit(stimulus)

    # Membership

    def challenge(self, request: messages.ChallengeRequest) -> messages.Challenge:
        """Return a nonce to sign, and the coordinator's key. Raise `Refused` to one that joins and is not admitted."""
        if request.joins:
            self._check_loaded()
            run, client_id = self.service.run, client_id_of(bytes.fromhex(request.public_key))
            applicant = Applicant(client_id, request.public_key, request.invitation_sha256)
            check_admitted(run.members, run.state_file.access, applicant, run.clock.now_s)
        nonce = self.nonces.make(request.public_key, self.service.now_s())
        return messages.Challenge(nonce, NONCE_LIFETIME_S, self.nonces.coordinator_key)

    async def join(self, request: messages.JoinRequest, address: str | None = None) -> messages.Session:
        """Make the key's owner a member.

        Args:
            request: signed with the key.
            address: who sends it, as `sender_of` returns it.

        Raises:
            Refused: `nonce-*`, `unauthorized`, `rate-limited`, `key-in-use`, and the reasons of
                `epochal.coordinator.machine.membership.join`.
        """
        expires_s = self.nonces.check_join(request, self.service.now_s())
        client_id = client_id_of(bytes.fromhex(request.public_key))
        self._check_key_is_free(client_id, request.instance)
        joined = stimuli.ClientJoined(
            client_id=client_id,
            public_key=request.public_key,
            capabilities=request.capabilities,
            nonce=request.nonce,
            nonce_expires_s=expires_s,
            invitation_sha256=None if request.invitation is None else sha256_hex(request.invitation.encode()),
            instance=request.instance,
            name=request.name or "",
            software=request.software or "",
        )
        self.rates.check(JOINS, client_id, self.service.now_s())
        run = self.service.run
        if address is not None and client_id not in run.members:
            check_join(run.members, run.identity.state_file, joined, run.clock.now_s)
            self.rates.check_new_member(address, self.service.now_s())
        await self.submit(joined)
        member = self.service.run.members.by_id.get(client_id)
        if member is None or member.joining.nonce != request.nonce:
            # Two joins of one key were kept together: only the later one has a session.
            raise Refused(Refusal.UNAUTHORIZED, "this key has joined again since; use the newer session")
        self.service.heard(client_id)
        return self.renew(client_id)

    def _check_key_is_free(self, client_id: ClientId, instance: str | None) -> None:
        """Raise `Refused` (`key-in-use`) if another process is this member and was heard lately."""
        member = self.service.run.members.by_id.get(client_id)
        if member is None or member.joining.instance == instance:
            return
        free_in_s = self.service.key_free_in_s(client_id)
        if free_in_s > 0:
            raise Refused(
                Refusal.KEY_IN_USE,
                f"another process takes part with the key of client {shown_client(client_id, member.name)}, and was "
                f"heard less than "
                f"{KEY_FREE_AFTER_S:g} s ago; end that one, or give this one a key of its own (--key FILE --new-key)",
                retry_after_s=free_in_s,
            )

    def receipt(self, request: ReceiptRequest) -> Receipt:
        """Return a signed receipt of what a key's owner, a member or a former one, has contributed.

        Raises:
            Refused: `nonce-invalid`, `unauthorized`, `not-found` if nothing is known of the key; `overloaded` while the
                history is read.
        """
        now_s = self.service.now_s()
        self.nonces.check_receipt(request, now_s)
        return self.tokens.signed(receipt_of(self.service.run, self.insight.projection, request.public_key, now_s))

    def renew(self, client_id: ClientId) -> messages.Session:
        """Return a fresh token and data ticket for a member's present session."""
        member, now_s = self._member(client_id), self.service.now_s()
        return messages.Session(
            client_id=client_id,
            session_token=self.tokens.session_token(client_id, session_number(member.joining.nonce), now_s),
            data_ticket=self.tokens.data_ticket(client_id, now_s),
            expires_in_s=SESSION_LIFETIME_S,
            client_timeout_s=self.service.run.state_file.config.client_timeout_s,
        )

    def standing(self, client_id: ClientId) -> messages.Standing:
        """Return which of a member's messages have arrived."""
        return standing_of(self.service.run, self._member(client_id), self.service.now_s())

    # Reading

    def _bounded_wait_s(self, wait_s: float) -> float:
        return max(0.0, min(wait_s, self.service.run.state_file.config.client_timeout_s / LONG_POLLS_PER_TIMEOUT))

    async def wait_published(
        self, after: int, lineage: str | None, wait_s: float, *, is_stranger: bool = False
    ) -> Published | None:
        """Return the published document once it is newer, or None after `wait_s`; many strangers are answered later."""
        bounded_s = self._bounded_wait_s(wait_s)
        return await self.service.readers.wait_published(after, lineage, bounded_s, is_stranger=is_stranger)

    def immutable(self, sha256: Sha256) -> bytes:
        """Return the canonical JSON of a roster, work list, configuration or model document."""
        found = self.service.readers.immutable(sha256)
        if found is None:
            raise Refused(Refusal.NOT_FOUND, f"no document {sha256} is kept")
        return found

    def outcome(self, step: int) -> Outcome:
        """Return the outcome of a step, which is kept if it follows the older kept checkpoint."""
        found = self.service.run.models.outcomes.get(step)
        if found is None:
            raise Refused(Refusal.NOT_FOUND, f"no outcome of step {step} is kept")
        return found

    def own_outcome(self, step: int, client_id: ClientId) -> OwnOutcome:
        """Return what a member needs of the outcome of a step. Raise `Refused` as `outcome` does."""
        own = self.service.readers.own_outcomes.of(self.outcome(step), client_id)
        return with_challenges(self.service.run, own, client_id)

    def update(self, step: int) -> UpdateRef:
        """Return the update of a step, once it is made; it is kept as the outcome is."""
        found = self.service.run.models.updates.get(step)
        if found is None:
            raise Refused(Refusal.NOT_FOUND, f"no update of step {step} is kept")
        return found

    async def results(self, step: int, attempt: int, after: int, wait_s: float, reader: Reader) -> messages.ResultsPage:
        """Return the round's verified results, as the reader may see them; many strangers are answered later."""
        return await self.service.readers.wait_results(step, attempt, after, self._bounded_wait_s(wait_s), reader)

    def check_revealed(self, client_id: ClientId, sha256: Sha256) -> None:
        """Raise `Refused` if the reader may not have the blob (yet).

        Raises:
            Refused: `not-now`: it is another's result, and the reader has not committed its own yet; `not-found`: a
                mirror asks for what is not of a checkpoint or an update.
        """
        if client_id == MIRROR:
            if not is_of_model(self.service.run, sha256):
                raise Refused(Refusal.NOT_FOUND, f"no checkpoint or update of the run has blob {sha256}")
            return
        if client_id != OPERATOR and not is_revealed(self.service.run, client_id, sha256):
            raise Refused(
                Refusal.NOT_NOW, f"blob {sha256} is a result of the round under way: commit first, or wait for its end"
            )

    # Reports of clients

    async def report(self, client_id: ClientId, report: messages.Report) -> messages.Standing:
        """Pass a member's report on to the run, and return which of its messages have arrived.

        Raises:
            Refused: `data-undecided` if other members have other data than the sender, whose report is kept;
                `rate-limited`, `blob-too-large` for a result or checkpoint that is larger than the model implies, and
                the reasons of the machine (`coordinator/machine/reports.py`, `membership.py`, `checkpoints.py`).
        """
        self.check_rate(client_id)
        if isinstance(report, messages.ResultCommitment):
            await self.intake.check_result_size(report)
        elif isinstance(report, messages.CheckpointReport):
            await self.intake.checkpoints.check_size(report.size_bytes)
        await self.submit(_REPORTED[type(report)](client_id, report))
        if isinstance(report, messages.ReadyReport):
            run = self.service.run
            waits = disagreement(run.data, run.members.by_id.get(client_id))
            if waits is not None:
                raise waits
        return self.standing(client_id)

    async def deliver(self, client_id: ClientId, bound: messages.ResultCommitment, data: bytes) -> messages.Standing:
        """Take a small result with its commitment. Raises `Refused` as `report` and `take_with_commitment`."""
        self.check_rate(client_id)
        await self.intake.check_result_size(bound)
        await take_with_commitment(self.intake, client_id, bound, data)
        return self.standing(client_id)

    def check_rate(self, client_id: ClientId) -> None:
        """Count a message of a member. Raise `Refused` (`rate-limited`) if it has sent too many in this phase."""
        self.rates.check(REPORTS, client_id, self.service.now_s(), self.service.run.occasion)

    def check_upload_rate(self, client_id: ClientId, sha256: Sha256) -> None:
        """Count a request about a blob that a member delivers: apart from its messages, also parts of a checkpoint.

        Raises:
            Refused: `rate-limited`, if it has sent too many.
        """
        expected = expected_blob(self.service.run, client_id, sha256)
        if isinstance(expected, ExpectedPart):
            self.rates.check(PARTS, client_id, self.service.now_s(), expected.claim.step)
        else:
            self.rates.check(UPLOADS, client_id, self.service.now_s(), self.service.run.occasion)

    async def receive_blob(self, client_id: ClientId, sha256: Sha256, body: BlobBody) -> None:
        """Take the bytes of a result or checkpoint that this member announced.

        Raises:
            Refused: `rate-limited`, and as `Uploads.receive` raises.
        """
        self.check_upload_rate(client_id, sha256)
        await self.uploads.receive(client_id, sha256, body)

    # Reports of verifiers

    async def report_of_verifier(
        self, verifier: str, report: ReplayReport | ScoreReport | ReplayFailure | CalibrationReport
    ) -> None:
        """Take a verifier's report; if it is of a result, also after its lease has ended.

        Raises:
            Refused: `rate-limited` for too many messages of the verifier, which keeps its lease; as the machine does.
        """
        self.rates.check(REPLAYS, verifier, self.service.now_s(), self.service.run.occasion)
        try:
            await self.submit(_FOUND[type(report)](verifier, report))
        finally:
            if not isinstance(report, CalibrationReport):
                self.replays.end(verifier, replay_key(report.step, report.client_id))

    # Requests of an operator

    def program_token(self, kind: messages.ProgramKind) -> messages.ProgramToken:
        """Return a new token for a program of the run."""
        return messages.ProgramToken(self.tokens.program_token(kind, self.service.now_s()))

    async def receive_genesis(
        self, sha256: Sha256, body: AsyncIterator[bytes], length_bytes: int | None
    ) -> CheckpointRef:
        """Take the run's first checkpoint from its operator (`CheckpointIntake.receive_genesis`)."""
        self._check_loaded()
        with self.intake.failures_noted():
            return await self.intake.checkpoints.receive_genesis(sha256, body, length_bytes)

    async def record_evaluation(self, report: EvaluationReport) -> None:
        """Take an evaluation of a replica into the run's history.

        Raises:
            Refused: `not-found` if the run has no such replica yet; `replica-differs` if its checkpoint is another one.
        """
        self._check_loaded()
        models, newest = self.service.run.models, self.service.run.progress.replica_step
        if models.checkpoint is None or report.step > newest:
            allowed = "it has none yet" if models.checkpoint is None else f"allowed: 0 to {newest}"
            raise Refused(Refusal.NOT_FOUND, f"the run has no replica {report.step}; {allowed}")
        if models.known_digest(report.step) not in (None, report.replica_digest):
            message = f"the run's replica of step {report.step} is another one"
            raise Refused(Refusal.REPLICA_DIFFERS, message, expected=models.known_digest(report.step))
        await self.submit(stimuli.EvaluationReported(report))

    async def release(self, request: messages.QuarantineRelease) -> messages.QuarantineRelease:
        """Carry quarantined batches again; return which."""
        before = coalesce(item.batch_id for item in self.service.run.work.quarantined)
        await self.submit(stimuli.BatchesReleased(request.batches))
        return messages.QuarantineRelease(
            subtract(before, (item.batch_id for item in self.service.run.work.quarantined))
        )
