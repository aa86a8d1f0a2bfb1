"""The reasons for which a service refuses a request, with HTTP status and whether to retry."""

from enum import Enum, StrEnum
from typing import Self

PROBLEM_JSON = "application/problem+json"
"""Media type of a refusal's body over HTTP (RFC 9457)."""
PROBLEM_TYPE_PREFIX = "urn:epochal:problem:"


class Retry(Enum):
    """Whether a refused request may be sent again."""

    LATER = "later"
    """The same request may succeed later."""
    ANEW = "anew"
    """A new request may succeed: with another nonce, body or replica."""
    NEVER = "never"
    """The same request can never succeed."""
    LEAVE = "leave"
    """The client can do nothing more in this run; if it is unauthorized, not before it has joined again."""


class Refusal(StrEnum):
    """The reason for which a request is refused. The value is the stable last part of the problem's `type` (RFC 9457).

    Attributes:
        status: HTTP status code of the answer.
        retry: whether the sender may repeat the request.
    """

    status: int
    retry: Retry

    def __new__(cls, value: str, status: int, retry: Retry) -> Self:
        member = str.__new__(cls, value)
        member._value_ = value
        member.status = status
        member.retry = retry
        return member

    # The request itself
    INVALID_BODY = "invalid-body", 422, Retry.NEVER
    INVALID_PARAMETER = "invalid-parameter", 422, Retry.NEVER
    BODY_INCOMPLETE = "body-incomplete", 400, Retry.ANEW
    BODY_TIMEOUT = "body-timeout", 408, Retry.ANEW
    BODY_TOO_LARGE = "body-too-large", 413, Retry.NEVER
    HOST_MISSING = "host-missing", 400, Retry.NEVER
    HOST_NOT_ALLOWED = "host-not-allowed", 421, Retry.NEVER
    METHOD_NOT_ALLOWED = "method-not-allowed", 405, Retry.NEVER
    NOT_FOUND = "not-found", 404, Retry.NEVER
    RANGE_NOT_SATISFIABLE = "range-not-satisfiable", 416, Retry.NEVER

    # The sender
    UNAUTHORIZED = "unauthorized", 401, Retry.LEAVE
    NONCE_INVALID = "nonce-invalid", 401, Retry.ANEW
    NONCE_CONSUMED = "nonce-consumed", 409, Retry.ANEW
    ACCESS_DENIED = "access-denied", 403, Retry.LEAVE
    EJECTED = "ejected", 403, Retry.LEAVE
    FORBIDDEN = "forbidden", 403, Retry.NEVER
    KEY_IN_USE = "key-in-use", 409, Retry.LATER
    UNSUPPORTED_CODEC = "unsupported-codec", 409, Retry.LEAVE
    UNSUPPORTED_PROTOCOL = "unsupported-protocol", 409, Retry.LEAVE
    UNKNOWN_RUN = "unknown-run", 404, Retry.LEAVE
    FINGERPRINT_DIFFERS = "fingerprint-differs", 409, Retry.LEAVE

    # The run's present state
    ALREADY_COMMITTED = "already-committed", 409, Retry.NEVER
    DATA_UNDECIDED = "data-undecided", 409, Retry.ANEW
    BEHIND = "behind", 409, Retry.ANEW
    LATE_RESULT = "late-result", 409, Retry.NEVER
    NOT_COMMITTED = "not-committed", 409, Retry.NEVER
    NOT_IN_ROSTER = "not-in-roster", 409, Retry.NEVER
    NOT_NOW = "not-now", 409, Retry.NEVER
    OFFSET_DIFFERS = "offset-differs", 409, Retry.ANEW
    REPLICA_DIFFERS = "replica-differs", 409, Retry.NEVER
    STALE_ROUND = "stale-round", 409, Retry.NEVER

    # Results and checkpoints
    RESULT_INVALID = "result-invalid", 422, Retry.NEVER
    BLOB_MISMATCH = "blob-mismatch", 422, Retry.NEVER
    BLOB_TOO_LARGE = "blob-too-large", 413, Retry.NEVER
    BLOBS_FULL = "blobs-full", 507, Retry.NEVER
    GONE = "gone", 410, Retry.NEVER

    # The training service
    INCOMPLETE_STEP = "incomplete-step", 409, Retry.NEVER
    INVALID_TENSORS = "invalid-tensors", 422, Retry.NEVER
    STALE_STEP = "stale-step", 409, Retry.NEVER
    UNKNOWN_SESSION = "unknown-session", 404, Retry.NEVER
    UNTRAINABLE = "untrainable", 422, Retry.NEVER

    # The service itself
    OVERLOADED = "overloaded", 503, Retry.LATER
    RATE_LIMITED = "rate-limited", 429, Retry.LATER
    RUN_FULL = "run-full", 503, Retry.LATER
    STORE_FAILED = "store-failed", 503, Retry.LATER
    INTERNAL = "internal", 500, Retry.LATER

    UNKNOWN = "unknown", 500, Retry.NEVER
    """A service gave a reason that this program does not know."""

    @classmethod
    def of(cls, name: str) -> "Refusal":
        """Return the refusal of this name, or `UNKNOWN`."""
        return cls._value2member_map_.get(name, cls.UNKNOWN)  # type: ignore[return-value]

    @property
    def may_retry(self) -> bool:
        """Whether the same request, or a new one, may succeed."""
        return self.retry in (Retry.LATER, Retry.ANEW)
