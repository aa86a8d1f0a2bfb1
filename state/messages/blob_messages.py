"""Messages about blobs in an object store: how a member delivers one, and how a checker checks one.

`docs/rest-api.md` says who sends which.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from pydantic import Field

from epochal.state.documents import Count, HexBlake3, HexId, HexSha256
from epochal.state.messages.requests import MAX_MESSAGE_CHARS, MAX_NAME_CHARS, ResultCommitment
from epochal.state.messages.round_times import Milliseconds
from epochal.state.wire import Sha256
from epochal.state.wire_document import WireDocument

MAX_RULE_CHARS = 64
MAX_PARAMETERS = 200_000
MAX_PARAMETER_NAME_CHARS = 1024
MAX_DIMENSIONS = 32
MAX_URL_CHARS = 16_384

OTHER_BYTES = "sha256"
"""The rule of a verdict on bytes that have another digest than was announced."""
NO_ROOM = "room"
"""The rule of a verdict on bytes for which the coordinator has no room, so that it refused them."""

Lease = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]


@dataclass(frozen=True, slots=True)
class UploadGrant(WireDocument):
    """The way in which a member delivers a blob that it announced (`POST /v1/blobs/{sha256}/grant`).

    Attributes:
        delivered: the blob was delivered and counted before.
        url: where to put it, with exactly these `headers`; None: to the coordinator itself.
        expires_in_s: seconds within which the upload must begin.
    """

    delivered: bool
    url: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    expires_in_s: float = 0.0


@dataclass(frozen=True, slots=True)
class UploadProgress(WireDocument):
    """How much of an announced blob has arrived (`GET /v1/blobs/{sha256}/upload`).

    Attributes:
        received_bytes: number of bytes that the coordinator has of this member's upload.
        delivered: the blob was delivered and counted before.
    """

    received_bytes: Count
    delivered: bool = False


@dataclass(frozen=True, slots=True)
class EagerStart(WireDocument):
    """The start of a client that trained before its round began (`merge.delay`): its own outer step of a replica.

    Attributes:
        replica_digest: of the replica before the client's last result.
        result_sha256: digest of that result, with which the outer step is taken.
    """

    replica_digest: HexBlake3
    result_sha256: HexSha256


@dataclass(frozen=True, slots=True)
class ExpectedResult(WireDocument):
    """A result to which a client committed, and what else its header must say.

    Attributes:
        commitment: the client's; it names the round, and the digest and size of the bytes.
        max_abs: the largest magnitude that a value may have.
        start: from which its client may have trained, instead of the round's replica; None if from nothing else.
    """

    run_id: str
    client_id: HexId
    commitment: ResultCommitment
    work_sha256: HexSha256
    codec: Annotated[str, Field(max_length=MAX_NAME_CHARS)]
    max_abs: float
    start: EagerStart | None = None

    @property
    def sha256(self) -> Sha256:
        """The digest of its bytes."""
        return self.commitment.result_sha256

    @property
    def size_bytes(self) -> int:
        """The number of its bytes."""
        return self.commitment.size_bytes


@dataclass(frozen=True, slots=True)
class CheckVerdict(WireDocument):
    """The result of a check.

    Attributes:
        replica_digest: from the result's header; None if it breaks a rule.
        norm: the result's length (`check_result`); None if it breaks a rule.
        rule: the broken rule, else None. `OTHER_BYTES` and `NO_ROOM` are rules for which the client need not be blamed.
        message: how it is broken, else "".
        checker: who checked, as the coordinator knows it; None for the coordinator itself.
        took_ms: time that the check took the coordinator; None if it is not known.
    """

    replica_digest: HexBlake3 | None = None
    norm: Annotated[float, Field(ge=0)] | None = None
    rule: Annotated[str, Field(max_length=MAX_RULE_CHARS)] | None = None
    message: Annotated[str, Field(max_length=MAX_MESSAGE_CHARS)] = ""
    checker: str | None = None
    took_ms: Milliseconds | None = None


@dataclass(frozen=True, slots=True)
class ParameterNames(WireDocument):
    """Names and shapes of a run's parameters, in their order."""

    names: Annotated[
        tuple[Annotated[str, Field(max_length=MAX_PARAMETER_NAME_CHARS)], ...], Field(max_length=MAX_PARAMETERS)
    ]
    shapes: Annotated[
        tuple[Annotated[tuple[Count, ...], Field(max_length=MAX_DIMENSIONS)], ...], Field(max_length=MAX_PARAMETERS)
    ]


@dataclass(frozen=True, slots=True)
class LeasedCheck(WireDocument):
    """A check that is leased to a checker.

    Attributes:
        lease: names the lease.
        expires_in_s: seconds after which the check goes to somebody else unless the lease is renewed.
        check: what is to be checked.
        url: where the bytes can be read, in ranges, for `url_expires_in_s`.
    """

    lease: Lease
    expires_in_s: float
    check: ExpectedResult
    url: Annotated[str, Field(max_length=MAX_URL_CHARS)]
    url_expires_in_s: float


@dataclass(frozen=True, slots=True)
class RenewedLease(WireDocument):
    """A renewed lease, and a fresh URL of the bytes."""

    expires_in_s: float
    url: Annotated[str, Field(max_length=MAX_URL_CHARS)]
    url_expires_in_s: float
