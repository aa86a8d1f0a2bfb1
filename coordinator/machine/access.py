"""An operator's commands on who may join. Pure handlers of `coordinator/machine/handle.py`."""

from dataclasses import replace

from epochal.coordinator.machine.parts.admissions import MAX_INVITATIONS, MAX_KEYS_CHANGED, Admissions, Invitation
from epochal.coordinator.machine.parts.run_members import RunMembers
from epochal.coordinator.machine.stimuli import InvitationMade, InvitationRevoked, KeyAdmitted, KeyRemoved
from epochal.state.config.state_file import Access
from epochal.state.errors import Refused
from epochal.state.refusals import Refusal
from epochal.state.wire import client_id_of

LOST_ACCESS = "lost its access"


def invite(admissions: Admissions, access: Access, event: InvitationMade, now_s: float) -> Admissions:
    """Return the admissions with an invitation.

    Raises:
        Refused: `not-now` where nobody needs an invitation; `overloaded` if too many are held.
    """
    _check_mode(access, "invitations", "needs an invitation")
    held = admissions.invitations
    if event.sha256 in held:
        return admissions
    if len(held) >= MAX_INVITATIONS:
        held = {sha256: one for sha256, one in held.items() if one.used or not one.is_expired(now_s)}
    if len(held) >= MAX_INVITATIONS:
        raise Refused(
            Refusal.OVERLOADED, f"{MAX_INVITATIONS} invitations are held; revoke some, or invite more at once"
        )
    made = Invitation(event.uses, 0, now_s, event.expires_s)
    return replace(admissions, invitations={**held, event.sha256: made})


def revoke(admissions: Admissions, event: InvitationRevoked) -> Admissions:
    """Return the admissions without an invitation: it admits nobody, nor those again that it admitted.

    Raises:
        Refused: `not-found` if no command made it.
    """
    if event.sha256 not in admissions.invitations:
        raise Refused(Refusal.NOT_FOUND, f"no invitation {event.sha256} was made by a command, or it was taken back")
    kept = {sha256: one for sha256, one in admissions.invitations.items() if sha256 != event.sha256}
    admitted = {client: sha256 for client, sha256 in admissions.admitted.items() if sha256 != event.sha256}
    return replace(admissions, invitations=kept, admitted=admitted)


def admit_key(members: RunMembers, access: Access, event: KeyAdmitted) -> Admissions:
    """Return the admissions with a key whose owner may join.

    Raises:
        Refused: `not-now` where keys do not matter, or if its client was ejected; `overloaded` if there are too many.
    """
    _check_mode(access, "keys", "is asked for a known key")
    admissions, key = members.admissions, event.public_key
    client_id = client_id_of(bytes.fromhex(key))
    if client_id in members.ejected:
        raise Refused(Refusal.NOT_NOW, f"client {client_id} has this key, and was ejected from the run for good")
    if admissions.admits_key(key, access):
        return admissions
    if len(admissions.keys_added) >= MAX_KEYS_CHANGED:
        raise Refused(
            Refusal.OVERLOADED, f"commands have admitted {MAX_KEYS_CHANGED} keys; list them in the state file"
        )
    added = admissions.keys_added if key in access.keys else admissions.keys_added | {key}
    return replace(admissions, keys_added=added, keys_removed=admissions.keys_removed - {key})


def remove_key(admissions: Admissions, access: Access, event: KeyRemoved) -> Admissions:
    """Return the admissions without a key.

    Raises:
        Refused: `not-now` where keys do not matter; `not-found` if the key may not join; `overloaded`.
    """
    _check_mode(access, "keys", "is asked for a known key")
    key = event.public_key
    if not admissions.admits_key(key, access):
        raise Refused(Refusal.NOT_FOUND, f"public key {key} is not among those that may join")
    removed = admissions.keys_removed
    if key in access.keys:
        removed = removed | {key}
        if len(removed) > MAX_KEYS_CHANGED:
            raise Refused(Refusal.OVERLOADED, f"commands have removed {MAX_KEYS_CHANGED} keys; edit the state file")
    return replace(admissions, keys_added=admissions.keys_added - {key}, keys_removed=removed)


def _check_mode(access: Access, wanted: str, what: str) -> None:
    """Raise `Refused` (`not-now`) unless this is the run's `[access] mode`."""
    if access.mode != wanted:
        raise Refused(
            Refusal.NOT_NOW,
            f'[access] mode of this run is "{access.mode}": nobody {what}; allowed where it is "{wanted}"',
        )
