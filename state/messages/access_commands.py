"""Messages of an operator on who may join, and on the end of the run."""

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from epochal.state.documents import Count, HexId, HexSha256
from epochal.state.messages.requests import HexKey
from epochal.state.wire_document import WireDocument

MAX_INVITATION_USES = 10_000
MAX_INVITATION_S = 10 * 365 * 86_400.0
"""Longest time for which an invitation may be valid."""


@dataclass(frozen=True, slots=True)
class InvitationRequest(WireDocument):
    """An invitation to make (`POST …/invitations`).

    Attributes:
        uses: number of clients that it admits.
        expires_in_s: seconds for which it admits them; None for ever.
    """

    uses: Annotated[int, Field(ge=1, le=MAX_INVITATION_USES)] = 1
    expires_in_s: Annotated[float, Field(gt=0, le=MAX_INVITATION_S)] | None = None


@dataclass(frozen=True, slots=True)
class MadeInvitation(WireDocument):
    """An invitation that was made: its code is in this answer only, and stored nowhere.

    Attributes:
        id: digest of the code, by which it is listed and revoked.
        code: to give to clients.
        expires_s: when it ends, in seconds since 1970 on the coordinator's clock; None for never.
    """

    id: HexSha256
    code: str
    uses: Count
    expires_s: float | None


@dataclass(frozen=True, slots=True)
class InvitationView(WireDocument):
    """An invitation that a command made; see `MadeInvitation`.

    Attributes:
        used: number of clients that it has admitted.
        made_s: when it was made, in seconds since 1970.
        expired: whether it admits nobody else because of its time.
    """

    id: HexSha256
    uses: Count
    used: Count
    made_s: float
    expires_s: float | None
    expired: bool


@dataclass(frozen=True, slots=True)
class InvitationList(WireDocument):
    """The invitations of a run (`GET …/invitations`).

    Attributes:
        invitations: those that commands made and nobody revoked, the oldest first.
        listed, listed_used: number of those in the state file, and of those of them that a client has used.
    """

    invitations: tuple[InvitationView, ...]
    listed: Count
    listed_used: Count


KeySource = Literal["state file", "command"]


@dataclass(frozen=True, slots=True)
class KeyView(WireDocument):
    """A key whose owner may join.

    Attributes:
        source: who says so.
        member: whether its owner is a member now.
        name: of that member; "" without one.
    """

    public_key: HexKey
    client_id: HexId
    source: KeySource
    member: bool
    name: str


@dataclass(frozen=True, slots=True)
class AccessList(WireDocument):
    """The clients that may join (`GET …/access`).

    Attributes:
        mode: `[access] mode` of the state file.
        keys: those that may, where the mode is "keys".
        removed: those that the state file lists and a command removed.
    """

    mode: Literal["open", "keys", "invitations"]
    keys: tuple[KeyView, ...]
    removed: tuple[HexKey, ...]


@dataclass(frozen=True, slots=True)
class FinishSetting(WireDocument):
    """The step after which the run ends (`PUT …/finish`); None takes an earlier such command back."""

    after_step: Annotated[int, Field(ge=0)] | None
