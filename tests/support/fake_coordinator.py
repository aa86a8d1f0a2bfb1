"""The coordinator in memory, for tests of clients: the real machine, without HTTP, journal, signatures or threads.

`FakeCoordinator` owns the run; each client gets a `FakeApi`, whose `faults` hook may drop a request before it arrives
or its answer afterwards. Works in virtual time.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from coordinator.machine.handle import handle
from coordinator.machine.instructions import OutcomeDecided
from coordinator.machine.outcomes import ledger_gaps
from coordinator.machine.run import Run, config_json, new_run
from coordinator.machine.stimuli import (
    AttestationReceived,
    CheckpointHeld,
    CheckpointReported,
    ClientBecameReady,
    ClientJoined,
    ClientsFellSilent,
    ClientWithdrew,
    CoordinatorStarted,
    ResultCommitted,
    ResultRejected,
    ResultVerified,
    Stamped,
    StepFailed,
    Stimulus,
    Ticked,
)
from coordinator.machine.views import document_of, expected_blob
from coordinator.publication import results_page, standing_of
from coordinator_client.api import CoordinatorApi, DocumentMark, ResultsQuery
from runtime.broadcast import Broadcast
from state.config.state_file import StateFile
from state.documents import CheckpointRef, Outcome, Roster, RunDocument, WorkList
from state.errors import CoordinatorUnreachable, InvalidResult, Refused
from state.intervals import BatchId
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
from state.refusals import Refusal
from state.replica import parse_checkpoint, replica_digest
from state.results import ResultHeader, check_result
from state.tensors import TensorLayout
from state.wire import ClientId, Seed, Sha256, canonical_json, client_id_of, parse_document, sha256_hex

TICK_S = 0.1
TOKEN_LIFE_S = 1000.0
Faults = Callable[[str, str], None]
"""Called with the request's name and `"request"` or `"answer"`; raises `CoordinatorUnreachable` to lose it."""

T = TypeVar("T")


def no_faults(name: str, leg: str) -> None:
    """Loses nothing."""


class FakeCoordinator:
    """One run, and everything that clients may ask of it."""

    def __init__(self, state_file: StateFile) -> None:
        self.seeds = 0
        self.run: Run = new_run(state_file, lineage="ab" * 8, coordinator_key="cd" * 32, now_s=0.0)
        self.document = document_of(self.run, 0)
        self.documents: dict[Sha256, Roster | WorkList] = {}
        self.blobs: dict[Sha256, bytes] = {}
        self.heard_s: dict[ClientId, float] = {}
        self.sessions: dict[str, ClientId] = {}
        self.outcomes: list[Outcome] = []
        self.applied: list[BatchId] = []
        self.failures: list[StepFailed] = []
        self.requests: list[tuple[ClientId | None, str]] = []
        self.away = False
        self._layout: TensorLayout | None = None
        self._news = Broadcast()

    def api(self, faults: Faults = no_faults) -> "FakeApi":
        """Another client's way to the coordinator."""
        return FakeApi(self, faults)

    async def serve(self) -> None:
        """Lets time pass, until cancelled."""
        self.submit(CoordinatorStarted())
        while True:
            await asyncio.sleep(TICK_S)
            if self.away:
                continue
            now_s = asyncio.get_running_loop().time()
            bound_s = self.run.state_file.config.client_timeout_s
            silent = tuple(c for c in self.run.members if now_s - self.heard_s[c] > bound_s)
            if silent:
                self.submit(ClientsFellSilent(silent))
            self.submit(Ticked())

    def submit(self, stimulus: Stimulus) -> None:
        """Lets the machine handle a stimulus, and publishes."""
        self.seeds += 1
        now_s = asyncio.get_running_loop().time()
        seed = sha256_hex(f"seed {self.seeds}".encode())
        run, instructions = handle(self.run, Stamped(stimulus, now_s, Seed(seed)))
        if isinstance(stimulus, StepFailed):
            self.failures.append(stimulus)
        for instruction in instructions:
            if isinstance(instruction, OutcomeDecided) and instruction.outcome is not None:
                self.outcomes.append(instruction.outcome)
                self.applied += [batch for entry in instruction.outcome.entries for batch in entry.assignment]
        assert ledger_gaps(run, self.applied) is None
        self.publish(run)

    def publish(self, run: Run) -> None:
        """Shows the run to everyone who waits."""
        self.run = run
        if run.round is not None:
            self.documents[run.round.roster_sha256] = run.round.roster
            self.documents[run.round.work_sha256] = run.round.work
        document = document_of(run, self.document.version)
        if document != self.document:
            self.document = document_of(run, self.document.version + 1)
        self.publish_document()

    def publish_document(self) -> None:
        """Wakes everyone who waits for news."""
        self._news.notify()

    async def wait_for(self, ready: Callable[[], bool], wait_s: float = 10_000.0) -> bool:
        """Whether `ready` came true within `wait_s`; looks again whenever something is published."""
        try:
            async with asyncio.timeout(wait_s):
                while not ready():
                    await self._news.wait()
        except TimeoutError:
            return ready()
        return True

    def take_blob(self, client_id: ClientId, sha256: Sha256, data: bytes) -> None:
        """Checks and keeps an announced blob."""
        expected = expected_blob(self.run, client_id, sha256)
        if expected is None:
            if sha256 in self.blobs:
                return
            raise Refused(Refusal.NOT_COMMITTED, f"nobody announced {sha256}")
        if len(data) != expected.size_bytes or sha256_hex(data) != sha256:
            raise Refused(Refusal.BLOB_MISMATCH, "other bytes than announced")
        self.blobs[sha256] = data
        if expected.kind == "checkpoint":
            replica = parse_checkpoint(data)
            self._layout = replica.layout
            held = CheckpointRef(replica.step, sha256, len(data), Sha256(replica_digest(replica)))
            self.submit(CheckpointHeld(client_id, held))
            return
        assert self._layout is not None
        assert expected.work_sha256 is not None
        wanted = ResultHeader(
            self.document.run_id, expected.step, expected.attempt, client_id, expected.work_sha256, "0" * 64
        )
        try:
            header = check_result(data, wanted, self._layout, self.run.state_file.merge.max_abs)
        except InvalidResult as error:
            self.submit(ResultRejected(client_id, expected.step, expected.attempt, sha256, error.rule))
            raise Refused(Refusal.RESULT_INVALID, error.message, rule=error.rule) from error
        digest = Sha256(header.replica_digest)
        self.submit(ResultVerified(client_id, expected.step, expected.attempt, sha256, digest))


class FakeApi(CoordinatorApi):
    """`CoordinatorApi` on a `FakeCoordinator`."""

    def __init__(self, coordinator: FakeCoordinator, faults: Faults) -> None:
        self._coordinator = coordinator
        self._faults = faults
        self._token: str | None = None

    @property
    def run_id(self) -> str:
        return self._coordinator.document.run_id

    def use_token(self, token: str | None) -> None:
        self._token = token

    async def _once(self, name: str, act: Callable[[], Awaitable[T]], *, member: bool = True) -> T:
        """One request: lost, refused or answered, after a round trip's time."""
        coordinator = self._coordinator
        coordinator.requests.append((coordinator.sessions.get(self._token or ""), name))
        await asyncio.sleep(0.001)
        self._reach(name, "request")
        if member or self._token is not None:
            client_id = self._client()
            coordinator.heard_s[client_id] = asyncio.get_running_loop().time()
        answer = await act()
        self._reach(name, "answer")
        return answer

    def _reach(self, name: str, leg: str) -> None:
        if self._coordinator.away:
            raise CoordinatorUnreachable("the coordinator is away")
        self._faults(name, leg)

    def _client(self) -> ClientId:
        client_id = self._coordinator.sessions.get(self._token or "")
        if client_id is None or client_id not in self._coordinator.run.members:
            raise Refused(Refusal.UNAUTHORIZED, "join again")
        return client_id

    async def _tell(self, name: str, make: Callable[[ClientId, Any], Stimulus], report: Any) -> Standing:
        async def act() -> Standing:
            self._coordinator.submit(make(self._client(), report))
            return standing_of(self._coordinator.run, self._client())

        return await self._once(name, act)

    async def run_document(self, after: DocumentMark | None, wait_s: float) -> RunDocument | None:
        coordinator = self._coordinator

        def is_news() -> bool:
            known = coordinator.document
            return after is None or known.lineage != after.lineage or known.version > after.version

        async def act() -> RunDocument | None:
            return coordinator.document if await coordinator.wait_for(is_news, wait_s) else None

        return await self._once("run_document", act, member=False)

    async def challenge(self, request: ChallengeRequest) -> Challenge:
        async def act() -> Challenge:
            self._coordinator.seeds += 1
            return Challenge(f"nonce {self._coordinator.seeds}", 60.0)

        return await self._once("challenge", act, member=False)

    async def join(self, request: JoinRequest) -> Session:
        coordinator = self._coordinator

        async def act() -> Session:
            client_id = client_id_of(bytes.fromhex(request.public_key))
            coordinator.heard_s[client_id] = asyncio.get_running_loop().time()
            expires_s = asyncio.get_running_loop().time() + 60
            coordinator.submit(
                ClientJoined(client_id, request.public_key, request.capabilities, request.nonce, expires_s)
            )
            coordinator.sessions = {t: c for t, c in coordinator.sessions.items() if c != client_id}
            return self._session(client_id)

        return await self._once("join", act, member=False)

    def _session(self, client_id: ClientId) -> Session:
        self._coordinator.seeds += 1
        token = f"token {self._coordinator.seeds}"
        self._coordinator.sessions[token] = client_id
        timeout_s = self._coordinator.run.state_file.config.client_timeout_s
        return Session(client_id, token, f"ticket {self._coordinator.seeds}", TOKEN_LIFE_S, timeout_s)

    async def renew(self) -> Session:
        async def act() -> Session:
            return self._session(self._client())

        return await self._once("renew", act)

    async def withdraw(self) -> None:
        async def act() -> None:
            self._coordinator.submit(ClientWithdrew(self._client()))

        await self._once("withdraw", act)

    async def config(self, sha256: Sha256) -> StateFile:
        async def act() -> StateFile:
            return parse_document(StateFile, canonical_json(config_json(self._coordinator.run.state_file)))

        return await self._once("config", act, member=False)

    async def roster(self, sha256: Sha256) -> Roster:
        async def act() -> Roster:
            found = self._coordinator.documents[sha256]
            assert isinstance(found, Roster)
            return found

        return await self._once("roster", act, member=False)

    async def work(self, sha256: Sha256) -> WorkList:
        async def act() -> WorkList:
            found = self._coordinator.documents[sha256]
            assert isinstance(found, WorkList)
            return found

        return await self._once("work", act, member=False)

    async def outcome(self, step: int) -> Outcome:
        async def act() -> Outcome:
            found = self._coordinator.run.outcomes.get(step)
            if found is None:
                raise Refused(Refusal.NOT_FOUND, f"no outcome of step {step} is kept")
            return found

        return await self._once("outcome", act, member=False)

    async def results(self, query: ResultsQuery) -> ResultsPage:
        coordinator = self._coordinator

        def page() -> ResultsPage:
            return results_page(coordinator.run, query.step, query.attempt, query.after)

        async def act() -> ResultsPage:
            await coordinator.wait_for(lambda: bool(page().results) or page().complete, query.wait_s)
            return page()

        return await self._once("results", act)

    async def report_ready(self, report: ReadyReport) -> Standing:
        return await self._tell("report_ready", ClientBecameReady, report)

    async def commit_result(self, commitment: ResultCommitment) -> Standing:
        return await self._tell("commit_result", ResultCommitted, commitment)

    async def attest(self, attestation: Attestation) -> Standing:
        return await self._tell("attest", AttestationReceived, attestation)

    async def report_checkpoint(self, report: CheckpointReport) -> Standing:
        return await self._tell("report_checkpoint", CheckpointReported, report)

    async def report_failure(self, report: FailureReport) -> Standing:
        return await self._tell("report_failure", StepFailed, report)

    async def put_blob(self, sha256: Sha256, data: bytes) -> None:
        async def act() -> None:
            self._coordinator.take_blob(self._client(), sha256, data)

        await self._once("put_blob", act)

    async def get_blob(self, sha256: Sha256) -> bytes:
        async def act() -> bytes:
            if sha256 not in self._coordinator.blobs:
                raise Refused(Refusal.NOT_FOUND, f"no blob {sha256}")
            return self._coordinator.blobs[sha256]

        return await self._once("get_blob", act)
