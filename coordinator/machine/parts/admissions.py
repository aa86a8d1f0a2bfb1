"""Who may join, beyond what the state file says: invitations and keys that an operator's commands made or took back.

The last decision on a key counts, whether of the state file or of a command: a command may admit a key that the file
does not list, and remove one that it lists; a file that is edited to list a key admits it again. An invitation of a
command admits as many clients as it says, until it expires; those that it has admitted stay admitted, until it is
taken back.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from epochal.coordinator.machine.stimuli import ClientJoined
from epochal.state.config.state_file import Access
from epochal.state.wire import ClientId, Sha256

MAX_INVITATIONS = 1_000
"""Maximum number of a command's invitations that are held; expired ones that nobody used are dropped for new ones."""
MAX_ADMITTED = 100_000
"""Maximum number of clients that these invitations have admitted."""
MAX_KEYS_CHANGED = 100_000
"""Maximum number of keys that commands have admitted, and of those that they have removed."""


@dataclass(frozen=True, slots=True)
class Invitation:
    """An invitation that a command made.

    Attributes:
        uses, used: number of clients that it admits, and that it has admitted.
        made_s, expires_s: when it was made, and from when it admits nobody else; None for never.
    """

    uses: int
    used: int
    made_s: float
    expires_s: float | None

    def is_expired(self, now_s: float) -> bool:
        """Whether it admits no further client because of its time."""
        return self.expires_s is not None and now_s >= self.expires_s


@dataclass(frozen=True, slots=True)
class Admissions:
    """The admissions that commands made and took back.

    Attributes:
        invitations: by the digest of the code.
        admitted: the invitation by which each client was admitted; it may have been taken back since.
        keys_added: keys that may join although the state file does not list them.
        keys_removed: keys that may not although it does.
    """

    invitations: Mapping[Sha256, Invitation] = field(default_factory=dict)
    admitted: Mapping[ClientId, Sha256] = field(default_factory=dict)
    keys_added: frozenset[str] = frozenset()
    keys_removed: frozenset[str] = frozenset()

    def admits_key(self, public_key: str, access: Access) -> bool:
        """Whether the owner of a key may join, where `[access] mode` is "keys"."""
        return public_key not in self.keys_removed and (public_key in self.keys_added or public_key in access.keys)

    def has_admitted(self, client_id: ClientId) -> bool:
        """Whether the client has used an invitation that was not taken back; it needs no other."""
        return self.admitted.get(client_id) in self.invitations

    def after_edit(self, before: Access, after: Access) -> "Admissions":
        """Return the admissions once the state file was edited: what it says anew of a key is the last word."""
        listed, known = frozenset(after.keys), frozenset(before.keys)
        removed = (self.keys_removed & listed) - (listed - known)
        added = self.keys_added - listed
        if (added, removed) == (self.keys_added, self.keys_removed):
            return self
        return replace(self, keys_added=added, keys_removed=removed)


NO_ADMISSIONS = Admissions()


@dataclass(frozen=True, slots=True)
class Applicant:
    """Who wants to join, and with which invitation."""

    client_id: ClientId
    public_key: str
    invitation_sha256: Sha256 | None


def invitation_denial(admissions: Admissions, applicant: Applicant, now_s: float) -> str | None:
    """Return why a command's invitation does not admit a client, or None if it does.

    Args:
        admissions: with the invitation that the client offers.
        applicant: the client.
        now_s: on the coordinator's clock.
    """
    assert applicant.invitation_sha256 is not None, "the client offers it"
    found = admissions.invitations[applicant.invitation_sha256]
    if found.is_expired(now_s):
        return "this invitation has expired; ask the run's operator for another"
    if found.used >= found.uses:
        return f"this invitation is used up: it admits {_clients(found.uses)}"
    if len(admissions.admitted) >= MAX_ADMITTED:
        return f"the run's invitations have admitted {MAX_ADMITTED} clients, as many as they may"
    return None


def with_use(admissions: Admissions, event: ClientJoined) -> Admissions:
    """Return the admissions once a client has joined with the invitation that it offers, if it needs one."""
    offered = event.invitation_sha256
    found = None if offered is None else admissions.invitations.get(offered)
    if offered is None or found is None or admissions.has_admitted(event.client_id):
        return admissions
    used = {**admissions.invitations, offered: replace(found, used=found.used + 1)}
    return replace(admissions, invitations=used, admitted={**admissions.admitted, event.client_id: offered})


def _clients(count: int) -> str:
    return "one client" if count == 1 else f"{count} clients"
