"""A client that a test drives by hand: it signs, claims and publishes as a real one does, and never trains."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from epochal.coordinator_client.client_key import ClientKey
from epochal.coordinator_client.http import CoordinatorClient
from epochal.runtime.http.allowed_hosts import host_in
from epochal.state.codecs.codecs_by_name import SPOKEN
from epochal.state.config.state_file import MergeConfig
from epochal.state.messages.requests import (
    Capabilities,
    ChallengeRequest,
    CheckpointReport,
    JoinRequest,
    Session,
    join_message,
)
from epochal.state.model.replica import Replica, checkpoint_bytes, replica_digest
from epochal.state.model.tensors import Float32Array
from epochal.state.results import ResultHeader, encode_result
from epochal.state.wire import ClientId, Sha256, sha256_hex
from tests.support.data.spooled import spooled


class AnyRound(Protocol):
    """The fields of a round that a result names."""

    @property
    def step(self) -> int: ...

    @property
    def attempt(self) -> int: ...

    @property
    def work_sha256(self) -> Sha256: ...


@dataclass(frozen=True)
class NamedRound:
    """A round as a result names it."""

    step: int
    attempt: int
    work_sha256: Sha256


class HandClient:
    """One client, by hand. `number` makes its key.

    Attributes:
        capabilities: what it claims when it joins: one batch, so that all have equal parts whoever is faster.
        codec: of its results; at first that of a run whose state file names none.
        session: the last one that it joined; None before.
    """

    def __init__(self, api: CoordinatorClient, number: int) -> None:
        self.api = api
        self.key = ClientKey.from_seed(bytes([number]) * 32)
        self.capabilities = Capabilities(trainer="by hand", codecs=SPOKEN, batches_per_round=1)
        self.codec = MergeConfig().codec_name
        self.session: Session | None = None

    @property
    def client_id(self) -> ClientId:
        return self.key.client_id

    @property
    def token(self) -> str:
        """The session token; "" before the first join."""
        return "" if self.session is None else self.session.session_token

    @property
    def ticket(self) -> str:
        """The ticket for data servers; "" before the first join."""
        return "" if self.session is None else self.session.data_ticket

    async def join_request(self, invitation: str | None = None) -> JoinRequest:
        """Return a join request over a fresh nonce, not yet sent."""
        challenge = await self.api.challenge(ChallengeRequest(self.key.public_key))
        host = host_in(self.api.address) or ""
        key, nonce = self.key.public_key, challenge.nonce
        signature = self.key.sign(join_message(self.api.run_id, nonce, key, challenge.coordinator_key, host))
        return JoinRequest(key, nonce, signature, host, self.capabilities, invitation)

    async def join(self) -> None:
        """Open a session; the one before it is superseded."""
        self.api.use_token(None)
        self.session = await self.api.join(await self.join_request())
        self.api.use_token(self.token)

    async def publish_checkpoint(self, replica: Replica) -> None:
        """Claim a replica and upload its bytes."""
        data = checkpoint_bytes(replica)
        sha256 = sha256_hex(data)
        await self.api.report(CheckpointReport(replica.step, replica_digest(replica), sha256, len(data)))
        await self.api.put_blob(sha256, spooled(data))

    def encoded_result(
        self, head: AnyRound, replica: Replica, difference: Mapping[str, Float32Array], **header: Any
    ) -> bytes:
        """Return a result for a round; `header` overrides fields of its header."""
        fields: dict[str, Any] = {
            "run_id": self.api.run_id,
            "step": head.step,
            "attempt": head.attempt,
            "client_id": self.client_id,
            "work_sha256": head.work_sha256,
            "replica_digest": replica_digest(replica),
            "codec": self.codec,
        }
        return encode_result(ResultHeader(**(fields | header)), dict(difference))
