"""Members of a run that cost next to nothing: raw HTTP/1.1, one connection each, and the whole protocol of a round.

A member polls the document and reports that it is ready; when it has work in a round it delivers a result of about 3
KB. One that is elected follows the list of results on a second connection, attests all of them, and reads the
outcome, unless it came with the document. Whatever is the same for all, such as the assignment, is computed once for
each round. Nobody trains, and witnesses attest results whose bytes they do not fetch: what that costs is measured by
`benchmarks/goodput/exchange_rows.py`.
"""

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np

from benchmarks.load import request_bytes
from benchmarks.rounds.scale_wire import RETRY_S, Addresses, Exchange, Line, OnAnswer
from epochal.state.assignment import assign_data_for_state
from epochal.state.documents import OWN_OUTCOME_HEADER, Roster, RunDocument, WorkList
from epochal.state.election import elect_witnesses
from epochal.state.errors import EpochalError
from epochal.state.messages.deliveries import encoded_delivery
from epochal.state.messages.requests import Attestation, ReadyReport, ResultCommitment, ResultMetrics
from epochal.state.phase_names import RunState
from epochal.state.results import ResultHeader, encode_result
from epochal.state.wire import Blake3, ClientId, Seed, Sha256, canonical_json, parse_document, sha256_hex

POLL_S = 20
MAX_REFUSALS = 1000
"""Number of refused requests after which a measurement is given up: the members do not keep to the protocol."""
_NOBODY = "0" * 32
_OWN_OUTCOME = f"\r\n{OWN_OUTCOME_HEADER}:".lower().encode()


@dataclass(frozen=True)
class RoundOfAll:
    """What all members know of a round, computed once.

    Attributes:
        document: of the round's RoundTrain.
    """

    document: RunDocument
    roster: Roster
    work: WorkList
    parameters: dict[str, tuple[int, ...]]
    replica_digest: Blake3

    @cached_property
    def workers(self) -> frozenset[ClientId]:
        """The clients that have work."""
        seed = Seed(self._head.seed)
        return frozenset(who for who, work in assign_data_for_state(self.roster, self.work, seed).items() if work)

    @cached_property
    def witnesses(self) -> frozenset[ClientId]:
        """The elected witnesses."""
        return frozenset(elect_witnesses(self.roster, Seed(self._head.seed), self._head.witness_count))

    @cached_property
    def positions(self) -> dict[str, int]:
        """Each client's position in the roster."""
        return {entry.client_id: position for position, entry in enumerate(self.roster.clients)}

    @property
    def _head(self) -> Any:
        return self.document.round

    @cached_property
    def _template(self) -> bytes:
        head = self._head
        header = ResultHeader(
            self.document.run_id, head.step, head.attempt, _NOBODY, head.work_sha256, self.replica_digest
        )
        return encode_result(header, {name: np.zeros(shape, np.float32) for name, shape in self.parameters.items()})

    def result_of(self, client_id: ClientId) -> bytes:
        """Return this client's result, in which only its name differs from the others'."""
        return self._template.replace(_NOBODY.encode(), client_id.encode(), 1)


class Crowd:
    """The members of one run.

    Args:
        urls: of the coordinators: each member uses one of them, and the next one where that does not answer.
        run_id: the run's.
        parameters: names and shapes of the model's.

    Attributes:
        latencies: seconds from the start of each step's RoundTrain, on the coordinator's clock, until members that
            waited for it had heard of it.
        round_starts_s: when each step's RoundTrain began, on the coordinator's clock, which is the machine's.
        finished: set once the run is.
        refusals: refused requests, by status and kind.
    """

    def __init__(self, urls: Sequence[str], run_id: str, parameters: dict[str, tuple[int, ...]]) -> None:
        self.run = f"/v1/runs/{run_id}"
        self.urls = urls
        self.addresses = Addresses(urls)
        self._parameters = parameters
        self.latencies: dict[int, list[float]] = {}
        self.round_starts_s: dict[int, float] = {}
        self.finished = asyncio.Event()
        self.problem = ""
        self.refusals: dict[str, int] = {}
        self._documents: dict[bytes, RunDocument] = {}
        self._rounds: dict[tuple[int, int], asyncio.Task[RoundOfAll]] = {}
        self._immutable: dict[Sha256, bytes] = {}

    def document(self, body: bytes) -> RunDocument:
        """Return a document, parsed once for all members."""
        found = self._documents.get(body)
        if found is None:
            found = parse_document(RunDocument, body)
            self._documents = dict([*self._documents.items()][-8:]) | {body: found}
            self._note(found)
        return found

    def _note(self, document: RunDocument) -> None:
        if document.run_state is RunState.FINISHED:
            self.finished.set()
        elif document.run_state is RunState.ROUND_TRAIN:
            self.round_starts_s.setdefault(document.step, document.phase_started_s)

    def heard(self, document: RunDocument) -> None:
        """Note that a member that waited has heard of a document."""
        if document.run_state is RunState.ROUND_TRAIN:
            self.latencies.setdefault(document.step, []).append(time.time() - document.phase_started_s)

    def refused(self, status: int, body: bytes) -> None:
        """Count a refusal; too many end the measurement."""
        try:
            kind = json.loads(body).get("type", "")
        except ValueError:
            kind = body[:60].decode(errors="replace")
        name = f"{status} {kind}"
        self.refusals[name] = self.refusals.get(name, 0) + 1
        if sum(self.refusals.values()) > MAX_REFUSALS:
            self.problem = f"too many refusals: {self.refusals}"
            self.finished.set()

    async def round_of(self, document: RunDocument) -> RoundOfAll:
        """Return what all know of a document's round, found out once."""
        assert document.round is not None
        key = document.round.step, document.round.attempt
        if key not in self._rounds:
            for old in list(self._rounds)[:-2]:
                del self._rounds[old]
            self._rounds[key] = asyncio.get_running_loop().create_task(self._learn(document))
        return await asyncio.shield(self._rounds[key])

    def known_round(self, document: RunDocument) -> RoundOfAll | None:
        """Return what is known of a document's round already."""
        assert document.round is not None
        task = self._rounds.get((document.round.step, document.round.attempt))
        return task.result() if task is not None and task.done() and not task.cancelled() else None

    async def _learn(self, document: RunDocument) -> RoundOfAll:
        head = document.round
        assert head is not None
        roster: Roster = parse_document(Roster, await self._read("rosters", Sha256(head.roster_sha256)))
        work: WorkList = parse_document(WorkList, await self._read("work", Sha256(head.work_sha256)))
        held = document.update or document.checkpoint
        assert held is not None
        return RoundOfAll(document, roster, work, self._parameters, held.replica_digest)

    async def _read(self, place: str, sha256: Sha256) -> bytes:
        if sha256 not in self._immutable:
            line = Line(self.addresses, 0, self.refused)
            try:
                status, body = await line.answer(request_bytes("GET", f"{self.run}/{place}/{sha256}"))
            finally:
                line.close()
            if status != 200:
                raise EpochalError(f"{place}/{sha256}: the coordinator answered {status}: {body[:300]!r}")
            self._immutable = dict([*self._immutable.items()][-4:]) | {sha256: body}
        return self._immutable[sha256]

    def close(self) -> None:
        """Give up what is under way."""
        for task in self._rounds.values():
            task.cancel()


def _is_due(document: RunDocument) -> bool:
    """Return whether a round trains, and its replica can be known: the update of the round before is made."""
    if document.run_state is not RunState.ROUND_TRAIN or document.checkpoint is None:
        return False
    return document.update is not None or document.checkpoint.step == document.step - 1


class RawMember:
    """One member: a chain of requests, each sent by the answer to the one before.

    Args:
        crowd: all members.
        client_id: its id.
        token: its session token.
        number: its number, which decides which coordinator it uses.
        exchange: its connection.
    """

    def __init__(self, crowd: Crowd, client_id: ClientId, token: str, number: int, exchange: Exchange) -> None:
        self._crowd = crowd
        self._client_id = client_id
        self.token = token
        self._number = number
        self._exchange = exchange
        self._is_closed = False
        self._seen: RunDocument | None = None
        self._ready_epoch = -1
        self._is_waiting = False
        self._delivered: tuple[int, int] | None = None
        self._attested_step: int | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._witness_line = Line(crowd.addresses, number, crowd.refused)
        """Connected once it is elected, and kept, as a client's pool keeps its connections."""
        self._attesting = asyncio.Lock()

    def start(self) -> None:
        """Begin to poll."""
        self._poll()

    def close(self) -> None:
        """End everything."""
        self._is_closed = True
        self._exchange.close()
        self._witness_line.close()
        for task in list(self._tasks):
            task.cancel()

    def _ask(self, method: str, path: str, body: bytes, on_answer: OnAnswer) -> None:
        self._exchange.ask(request_bytes(method, path, body, self.token), on_answer)

    def _poll(self) -> None:
        if self._is_closed:
            return
        seen, path = self._seen, self._crowd.run
        if seen is not None:
            path = f"{path}?after={seen.version}&lineage={seen.lineage}&wait_s={POLL_S}"
        self._is_waiting = seen is not None
        self._ask("GET", path, b"", self._polled)

    def _polled(self, status: int, body: bytes) -> None:
        if status == 200:
            before, self._seen = self._seen, self._crowd.document(body)
            if self._is_waiting and (before is None or before.round != self._seen.round):
                self._crowd.heard(self._seen)
            if self._attested_step == self._seen.step - 1 and _OWN_OUTCOME in self._exchange.head:
                self._attested_step = None  # it came along
            self._act(self._seen)
        elif status == 304:
            self._poll()
        else:
            self._refused(status, body)

    def _refused(self, status: int, body: bytes) -> None:
        """Begin again in a moment, with whatever is due then: each message may be sent again."""
        self._crowd.refused(status, body)
        self._seen = self._delivered = None
        self._ready_epoch = -1
        if self._exchange.is_closed:
            self._number += 1
            self._later(self._connect_again())
        elif not self._is_closed:
            asyncio.get_running_loop().call_later(RETRY_S, self._poll)

    async def _connect_again(self) -> None:
        self._exchange = await self._crowd.addresses.connect(self._number)
        self._poll()

    def _act(self, document: RunDocument) -> None:
        if self._attested_step is not None and document.step > self._attested_step:
            step, self._attested_step = self._attested_step, None
            self._ask(
                "GET", f"{self._crowd.run}/rounds/{step}/outcome/mine", b"", partial(self._read_outcome, document)
            )
        elif self._ready_epoch != document.epoch and (document.run_state is RunState.WARMUP or _is_due(document)):
            self._report_ready(document)
        elif _is_due(document) and self._round_key(document) != self._delivered:
            found = self._crowd.known_round(document)
            if found is None:
                self._later(self._learn_and_deliver(document))
            else:
                self._deliver(found)
        else:
            self._poll()

    def _read_outcome(self, document: RunDocument, status: int, body: bytes) -> None:
        if status == 200:
            self._act(document)
        else:
            self._refused(status, body)

    def _later(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._crowd.problem = f"a member failed: {task.exception()!r}"
            self._crowd.finished.set()

    @staticmethod
    def _round_key(document: RunDocument) -> tuple[int, int]:
        assert document.round is not None
        return document.round.step, document.round.attempt

    def _report_ready(self, document: RunDocument) -> None:
        held = document.checkpoint if document.run_state is RunState.WARMUP else document.update or document.checkpoint
        if held is None:
            self._poll()
            return
        self._ready_epoch = document.epoch
        report = ReadyReport(document.step - 1, held.replica_digest, document.data_fingerprint or "0" * 64)
        self._ask("POST", f"{self._crowd.run}/ready", canonical_json(report), self._reported)

    def _reported(self, status: int, body: bytes) -> None:
        if status == 200:
            self._poll()
        else:
            self._refused(status, body)

    async def _learn_and_deliver(self, document: RunDocument) -> None:
        self._deliver(await self._crowd.round_of(document))

    def _deliver(self, found: RoundOfAll) -> None:
        document = found.document
        self._delivered = self._round_key(document)
        if self._client_id in found.witnesses:
            self._attested_step = document.step
            self._later(self._witness(found))
        if self._client_id not in found.workers:
            self._poll()
            return
        result = found.result_of(self._client_id)
        sha256, (step, attempt) = sha256_hex(result), self._delivered
        bound = ResultCommitment(step, attempt, sha256, len(result), ResultMetrics(1.0, 256, 0.0))
        self._send(bound, result)

    def _send(self, bound: ResultCommitment, result: bytes) -> None:
        def delivered(status: int, body: bytes) -> None:
            if status == 200:
                self._poll()
            else:
                self._refused(status, body)

        self._ask("POST", f"{self._crowd.run}/deliveries", encoded_delivery(bound, result), delivered)

    async def _witness(self, found: RoundOfAll) -> None:
        async with self._attesting:
            await self._attest(found)

    async def _attest(self, found: RoundOfAll) -> None:
        step, attempt = self._round_key(found.document)
        received = bytearray(len(found.roster.clients) // 8 + 1)
        after, is_complete, line = 0, False, self._witness_line
        while not is_complete:
            path = f"{self._crowd.run}/rounds/{step}/results?attempt={attempt}&after={after}&wait_s={POLL_S}"
            status, body = await line.answer(request_bytes("GET", path, b"", self.token))
            if status != 200:
                self._note_late(status, body)
                return
            page = json.loads(body)
            for result in page["results"]:
                position = found.positions[result["client_id"]]
                received[position // 8] |= 1 << position % 8
            after, is_complete = page["next"], page["complete"]
        bits = int.from_bytes(received, "little")
        report = Attestation(step, attempt, found.replica_digest, f"{bits:x}")
        path = f"{self._crowd.run}/attestations"
        status, body = await line.answer(request_bytes("POST", path, canonical_json(report), self.token))
        if status != 200:
            self._note_late(status, body)

    def _note_late(self, status: int, body: bytes) -> None:
        """Count a witness's refusal, unless a quorum of the others has ended the round already."""
        if b"stale-round" not in body:
            self._crowd.refused(status, body)


def check_sent(crowd: Crowd) -> None:
    """Raise `EpochalError` if the members could not keep to the protocol."""
    if crowd.problem:
        raise EpochalError(crowd.problem)
