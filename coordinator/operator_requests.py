"""Requests of an operator about who may join, and their answers."""

import re
import secrets

from epochal.coordinator.handlers import Handlers
from epochal.coordinator.machine import stimuli
from epochal.coordinator.machine.run import Run
from epochal.state.errors import Refused
from epochal.state.messages.access_commands import (
    AccessList,
    InvitationList,
    InvitationRequest,
    InvitationView,
    KeySource,
    KeyView,
    MadeInvitation,
)
from epochal.state.refusals import Refusal
from epochal.state.wire import Sha256, client_id_of, sha256_hex

CODE_BYTES = 18
"""Random bytes of an invitation's code, which nobody can guess; its digest needs no salt."""
_KEY = re.compile(r"[0-9a-f]{64}")


async def invite(handlers: Handlers, request: InvitationRequest) -> MadeInvitation:
    """Make an invitation; return it with its code. Raise `Refused` as `epochal.coordinator.machine.access.invite`."""
    code = secrets.token_urlsafe(CODE_BYTES)
    expires_s = None if request.expires_in_s is None else handlers.service.now_s() + request.expires_in_s
    sha256 = sha256_hex(code.encode())
    await handlers.submit(stimuli.InvitationMade(sha256, request.uses, expires_s))
    return MadeInvitation(sha256, code, request.uses, expires_s)


def invitations_of(run: Run, now_s: float) -> InvitationList:
    """Return the run's invitations, without their codes, which nobody keeps."""
    listed = run.state_file.access.invitations
    made = tuple(
        InvitationView(sha256, one.uses, one.used, one.made_s, one.expires_s, one.is_expired(now_s))
        for sha256, one in run.members.admissions.invitations.items()
    )
    used = sum(Sha256(sha256) in run.members.invitations_used for sha256 in listed)
    return InvitationList(made, len(listed), used)


def access_of(run: Run) -> AccessList:
    """Return who may join."""
    access, admissions = run.state_file.access, run.members.admissions
    listed = [key for key in access.keys if key not in admissions.keys_removed]
    added = sorted(admissions.keys_added)
    keys = (*(_key_view(run, key, "state file") for key in listed), *(_key_view(run, key, "command") for key in added))
    return AccessList(access.mode, keys, tuple(sorted(admissions.keys_removed)))


def _key_view(run: Run, public_key: str, source: KeySource) -> KeyView:
    client_id = client_id_of(bytes.fromhex(public_key))
    member = run.members.by_id.get(client_id)
    return KeyView(public_key, client_id, source, member is not None, "" if member is None else member.name)


def checked_key(text: str) -> str:
    """Return a public key. Raise `Refused` (`invalid-parameter`) unless it is one."""
    if not _KEY.fullmatch(text):
        raise Refused(
            Refusal.INVALID_PARAMETER,
            f"{text[:80]!r} is not a public key; allowed: 64 lowercase hex characters, as `epochal key show` prints",
        )
    return text
