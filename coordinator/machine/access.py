"""An operator's commands on who may join. Pure handlers of `coordinator/machine/handle.py`."""

from dataclasses import replace

from epochal.coordinator.machine.membership import leave
from epochal.coordinator.machine.operator_stimuli import InvitationMade, InvitationRevoked, KeyAdmitted, KeyRemoved
from epochal.coordinator.machine.parts.admissions import MAX_INVITATIONS, MAX_KEYS_CHANGED, Invitation
from epochal.coordinator.machine.run import Handled, Run
from epochal.state.errors import Refused
from epochal.state.refusals import Refusal
from epochal.state.wire import client_id_of

LOST_ACCESS = "lost its access"


def invite(run: Run, event: InvitationMade) -> Handled:
    """Return the run with an invitation.

    Raises:
        Refused: `not-now` where nobody needs an invitation; `overloaded` if too many are held.
    """
    _check_mode(run, "invitations", "needs an invitation")
    held = run.members.admissions.invitations
    if event.sha256 in held:
        return run, ()
    if len(held) >= MAX_INVITATIONS:
        held = {sha256: one for sha256, one in held.items() if one.used or not one.is_expired(run.clock.now_s)}
    if len(held) >= MAX_INVITATIONS:
        raise Refused(
            Refusal.OVERLOADED, f"{MAX_INVITATIONS} invitations are held; revoke some, or invite more at once"
        )
    made = Invitation(event.uses, 0, run.clock.now_s, event.expires_s)
    return run.with_parts(
        replace(run.members, admissions=replace(run.members.admissions, invitations={**held, event.sha256: made}))
    ), ()


def revoke(run: Run, event: InvitationRevoked) -> Handled:
    """Return the run without an invitation: it admits nobody, nor those again that it admitted.

    Raises:
        Refused: `not-found` if no command made it.
    """
    admissions = run.members.admissions
    if event.sha256 not in admissions.invitations:
        raise Refused(Refusal.NOT_FOUND, f"no invitation {event.sha256} was made by a command, or it was taken back")
    kept = {sha256: one for sha256, one in admissions.invitations.items() if sha256 != event.sha256}
    admitted = {client: sha256 for client, sha256 in admissions.admitted.items() if sha256 != event.sha256}
    return run.with_parts(replace(run.members, admissions=replace(admissions, invitations=kept, admitted=admitted))), ()


def admit_key(run: Run, event: KeyAdmitted) -> Handled:
    """Return the run with a key whose owner may join.

    Raises:
        Refused: `not-now` where keys do not matter, or if its client was ejected; `overloaded` if there are too many.
    """
    _check_mode(run, "keys", "is asked for a known key")
    admissions, key = run.members.admissions, event.public_key
    client_id = client_id_of(bytes.fromhex(key))
    if client_id in run.members.ejected:
        raise Refused(Refusal.NOT_NOW, f"client {client_id} has this key, and was ejected from the run for good")
    if admissions.admits_key(key, run.state_file.access):
        return run, ()
    if len(admissions.keys_added) >= MAX_KEYS_CHANGED:
        raise Refused(
            Refusal.OVERLOADED, f"commands have admitted {MAX_KEYS_CHANGED} keys; list them in the state file"
        )
    is_listed = key in run.state_file.access.keys
    added = admissions.keys_added if is_listed else admissions.keys_added | {key}
    return run.with_parts(
        replace(
            run.members, admissions=replace(admissions, keys_added=added, keys_removed=admissions.keys_removed - {key})
        )
    ), ()


def remove_key(run: Run, event: KeyRemoved) -> Handled:
    """Return the run without a key, and without the member that has it.

    Raises:
        Refused: `not-now` where keys do not matter; `not-found` if the key may not join; `overloaded`.
    """
    _check_mode(run, "keys", "is asked for a known key")
    admissions, key = run.members.admissions, event.public_key
    if not admissions.admits_key(key, run.state_file.access):
        raise Refused(Refusal.NOT_FOUND, f"public key {key} is not among those that may join")
    removed = admissions.keys_removed
    if key in run.state_file.access.keys:
        removed = removed | {key}
        if len(removed) > MAX_KEYS_CHANGED:
            raise Refused(Refusal.OVERLOADED, f"commands have removed {MAX_KEYS_CHANGED} keys; edit the state file")
    changed = replace(admissions, keys_added=admissions.keys_added - {key}, keys_removed=removed)
    return leave(
        run.with_parts(replace(run.members, admissions=changed)), (client_id_of(bytes.fromhex(key)),), LOST_ACCESS
    )


def _check_mode(run: Run, wanted: str, what: str) -> None:
    """Raise `Refused` (`not-now`) unless this is the run's `[access] mode`."""
    mode = run.state_file.access.mode
    if mode != wanted:
        raise Refused(
            Refusal.NOT_NOW, f'[access] mode of this run is "{mode}": nobody {what}; allowed where it is "{wanted}"'
        )
