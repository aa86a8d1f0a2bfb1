"""What a data server sees of a coordinator: documents that a test publishes, over real HTTP."""

import asyncio
from dataclasses import replace
from typing import Any

from epochal.coordinator.auth.signing_key import SigningKey
from epochal.coordinator.auth.tokens import SessionTokens
from epochal.coordinator.machine.parts.run_identity import config_json
from epochal.runtime.broadcast import Broadcast
from epochal.state.config.state_file import StateFile
from epochal.state.documents import Roster, RosterEntry, RoundAhead, RunDocument, WorkList
from epochal.state.intervals import BatchId
from epochal.state.phase_names import RunState
from epochal.state.refusals import PROBLEM_JSON, PROBLEM_TYPE_PREFIX, Refusal
from epochal.state.wire import ClientId, Sha256, canonical_json, document_digest, to_plain
from tests.support.data.documents import round_head, run_document
from tests.support.servers.data_http import HttpReply, HttpRequest, json_reply

CROWDED_RETRY_S = 5
"""What a refused request is asked to wait."""
CLIENTS = tuple(ClientId(f"{number:032x}") for number in range(3))


class PublishedRun:
    """Answers the routes that everybody may read; `away` answers 503 as a proxy does for a coordinator that is gone.

    `crowded` refuses every request that waits, as the coordinator does where thousands of strangers wait already;
    `silent` answers such a request only when its wait is over.
    """

    def __init__(self, state: StateFile) -> None:
        self._key = SigningKey(bytes(range(32)))
        self.tokens = SessionTokens(self._key, state.run_id)
        self.documents: dict[str, Any] = {}
        self.config_sha256 = self.keep(config_json(state))
        self.roster = Roster(tuple(RosterEntry(client_id, 1) for client_id in CLIENTS))
        self.document = self._document(RunState.WARMUP)
        self.away = False
        self.crowded = False
        self.silent = False
        self.news = Broadcast()

    def keep(self, document: Any) -> Sha256:
        """Serve an immutable document."""
        digest = document_digest(document)
        self.documents[digest] = to_plain(document)
        return digest

    def publish(self, step: int, work: tuple[BatchId, ...], **changes: Any) -> None:
        """Publish a round over these batches."""
        head = replace(
            round_head(step), roster_sha256=self.keep(self.roster), work_sha256=self.keep(WorkList((), work))
        )
        changes.setdefault("version", step + 1)
        self.announce(self._document(RunState.ROUND_TRAIN, step, round=head, **changes))

    def ahead(self, work: tuple[BatchId, ...]) -> RoundAhead:
        """Serve and return a provisional next round over these batches."""
        return RoundAhead(self.keep(self.roster), self.keep(WorkList((), work)))

    def announce(self, document: RunDocument) -> None:
        """Publish a document."""
        self.document = document
        self.news.notify()

    def _document(self, run_state: RunState, step: int = 1, **changes: Any) -> RunDocument:
        parts = {"config_sha256": self.config_sha256, "coordinator_key": self._key.public_key_hex, "version": 1}
        return run_document(run_state, step, **{**parts, **changes})

    async def __call__(self, request: HttpRequest) -> HttpReply:
        if self.away:
            return HttpReply(503)
        if request.path == "/v1/runs":
            return json_reply({"runs": [self.document.run_id]})
        if request.path != f"/v1/runs/{self.document.run_id}":
            found = self.documents.get(request.path.rsplit("/", 1)[-1])
            return HttpReply(404) if found is None else json_reply(found)
        waits = float(request.query.get("wait_s", "0")) > 0
        if self.crowded and waits:
            problem = {"type": PROBLEM_TYPE_PREFIX + Refusal.OVERLOADED, "detail": "too many requests are waiting"}
            return HttpReply(
                503, canonical_json(problem), {"Content-Type": PROBLEM_JSON, "Retry-After": f"{CROWDED_RETRY_S}"}
            )
        if "after" in request.query and ((self.silent and waits) or self._is_known(request)):
            try:
                async with asyncio.timeout(float(request.query["wait_s"])):
                    await self.news.wait()
                    if self.silent:
                        await asyncio.get_running_loop().create_future()
            except TimeoutError:
                return HttpReply(304)
        return HttpReply(503) if self.away else HttpReply(200, canonical_json(self.document))

    def _is_known(self, request: HttpRequest) -> bool:
        same_lineage = request.query["lineage"] == self.document.lineage
        return same_lineage and self.document.version <= int(request.query["after"])
