"""Messages about blobs in an object store: how a member delivers one, and how a checker checks one.

`docs/rest-api.md` says who sends which.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from pydantic import Field

from epochal.state.documents import Count, HexId, HexSha256
from epochal.state.messages.requests import MAX_MESSAGE_CHARS, MAX_NAME_CHARS, Step
from epochal.state.wire_document import WireDocument

MAX_RULE_CHARS = 64
MAX_PARAMETERS = 200_000
MAX_PARAMETER_NAME_CHARS = 1024
MAX_DIMENSIONS = 32
MAX_URL_CHARS = 16_384

Lease = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]


@dataclass(frozen=True, slots=True)
class UploadGrant(WireDocument):
    """How a member delivers a blob that it announced (`POST /v1/blobs/{sha256}/grant`).

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
class ResultCheck(WireDocument):
    """A result that is to be checked: its announced digest and size, and what its header must say.

    `max_abs` is the largest magnitude that a value may have.
    """

    sha256: HexSha256
    size_bytes: Count
    run_id: str
    step: Step
    attempt: Count
    client_id: HexId
    work_sha256: HexSha256
    codec: Annotated[str, Field(max_length=MAX_NAME_CHARS)]
    max_abs: float


@dataclass(frozen=True, slots=True)
class CheckVerdict(WireDocument):
    """The result of a check.

    Attributes:
        sha256: the digest of the bytes that were read.
        replica_digest: from the result's header; None if it breaks a rule.
        rule: the broken rule, else None.
        message: how it is broken, else "".
        norm: the result's length (`check_result`); None if it breaks a rule.
    """

    sha256: HexSha256
    replica_digest: HexSha256 | None
    rule: Annotated[str, Field(max_length=MAX_RULE_CHARS)] | None = None
    message: Annotated[str, Field(max_length=MAX_MESSAGE_CHARS)] = ""
    norm: Annotated[float, Field(ge=0)] | None = None


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
    check: ResultCheck
    url: Annotated[str, Field(max_length=MAX_URL_CHARS)]
    url_expires_in_s: float


@dataclass(frozen=True, slots=True)
class RenewedLease(WireDocument):
    """A lease that goes on, and a fresh URL of the bytes."""

    expires_in_s: float
    url: Annotated[str, Field(max_length=MAX_URL_CHARS)]
    url_expires_in_s: float


@dataclass(frozen=True, slots=True)
class CheckerToken(WireDocument):
    """A token for a checker of the run."""

    token: str
