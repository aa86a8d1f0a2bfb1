"""Stimuli of an operator that change who may join, when the run ends, and what it says of itself.

They are part of the journal's format, as those of `coordinator/machine/stimuli.py` are.
"""

from dataclasses import dataclass
from typing import Literal, TypeAlias

from epochal.state.messages.audit_reports import AuditRecord
from epochal.state.wire import Sha256


@dataclass(frozen=True, slots=True)
class FinishRequested:
    """An operator ended the run after this step; None takes that back."""

    after_step: int | None
    type: Literal["finish_requested"] = "finish_requested"


@dataclass(frozen=True, slots=True)
class InvitationMade:
    """An operator invited clients. The code itself is left out: it is a secret, which must not be in a journal.

    Attributes:
        sha256: digest of the code.
        uses: number of clients that it admits.
        expires_s: time from which it admits no further client, on the coordinator's clock; None for never.
    """

    sha256: Sha256
    uses: int
    expires_s: float | None
    type: Literal["invitation_made"] = "invitation_made"


@dataclass(frozen=True, slots=True)
class InvitationRevoked:
    """An operator took an invitation back."""

    sha256: Sha256
    type: Literal["invitation_revoked"] = "invitation_revoked"


@dataclass(frozen=True, slots=True)
class KeyAdmitted:
    """An operator let the owner of a key join (raw Ed25519 public key, hex)."""

    public_key: str
    type: Literal["key_admitted"] = "key_admitted"


@dataclass(frozen=True, slots=True)
class KeyRemoved:
    """An operator took back that the owner of a key may join."""

    public_key: str
    type: Literal["key_removed"] = "key_removed"


@dataclass(frozen=True, slots=True)
class AuditReported:
    """An operator's command reported what an audit of the run found."""

    report: AuditRecord
    type: Literal["audit_reported"] = "audit_reported"


AccessCommand: TypeAlias = FinishRequested | InvitationMade | InvitationRevoked | KeyAdmitted | KeyRemoved
"""A stimulus that changes who may join, or when the run ends."""
