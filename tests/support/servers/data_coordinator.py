"""What a data server sees of a coordinator: documents that a test publishes, over real HTTP."""

from dataclasses import replace
from typing import Any

from epochal.coordinator.auth.signing_key import SigningKey
from epochal.coordinator.auth.tokens import SessionTokens
from epochal.coordinator.machine.parts.run_identity import config_json
from epochal.state.config.state_file import StateFile
from epochal.state.documents import Roster, RosterEntry, RoundAhead, RunDocument, WorkList
from epochal.state.intervals import BatchId
from epochal.state.phase_names import RunState
from epochal.state.wire import ClientId, Sha256, canonical_json, document_digest, to_plain
from tests.support.data.documents import round_head, run_document
from tests.support.servers.data_http import HttpReply, HttpRequest, json_reply

CLIENTS = tuple(ClientId(f"{number:032x}") for number in range(3))


class PublishedRun:
    """Answers the routes that everybody may read; `away` answers 503 as a proxy does for a coordinator that is gone."""

    def __init__(self, state: StateFile) -> None:
        self._key = SigningKey(bytes(range(32)))
        self.tokens = SessionTokens(self._key, state.run_id)
        self.documents: dict[str, Any] = {}
        self.config_sha256 = self.keep(config_json(state))
        self.roster = Roster(tuple(RosterEntry(client_id, 1) for client_id in CLIENTS))
        self.document = self._document(RunState.WARMUP)
        self.away = False

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
        self.document = self._document(RunState.ROUND_TRAIN, step, round=head, **changes)

    def ahead(self, work: tuple[BatchId, ...]) -> RoundAhead:
        """Serve and return a provisional next round over these batches."""
        return RoundAhead(self.keep(self.roster), self.keep(WorkList((), work)))

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
        return HttpReply(304) if self._is_known(request) else HttpReply(200, canonical_json(self.document))

    def _is_known(self, request: HttpRequest) -> bool:
        if "after" not in request.query:
            return False
        same_lineage = request.query["lineage"] == self.document.lineage
        return same_lineage and self.document.version <= int(request.query["after"])
