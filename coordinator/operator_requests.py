"""Requests of an operator about who may join, the end of the run, and audits; and what viewers see of them."""

import re
import secrets

from epochal.coordinator.insight.read_side import ReadSide
from epochal.coordinator.machine import operator_stimuli as stimuli
from epochal.coordinator.machine.run import Run
from epochal.coordinator.run.service import CoordinatorService
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
from epochal.state.messages.audit_reports import AuditHistory, AuditRecord
from epochal.state.refusals import Refusal
from epochal.state.wire import Sha256, client_id_of, sha256_hex

CODE_BYTES = 18
"""Random bytes of an invitation's code, which nobody can guess; its digest needs no salt."""
_KEY = re.compile(r"[0-9a-f]{64}")


class OperatorRequests:
    """The requests, as methods. Who may send them is checked before.

    Args:
        service: owns the run.
        insight: of the coordinator.
    """

    def __init__(self, service: CoordinatorService, insight: ReadSide) -> None:
        self._service = service
        self._insight = insight

    @property
    def _run(self) -> Run:
        return self._service.run

    async def finish(self, after_step: int | None) -> None:
        """End the run after a step, or take that back. Raise `Refused` as
        `epochal.coordinator.machine.ending.finish`."""
        await self._service.submit(stimuli.FinishRequested(after_step))

    async def invite(self, request: InvitationRequest) -> MadeInvitation:
        """Make an invitation; return it with its code. Raise `Refused` as
        `epochal.coordinator.machine.access.invite`."""
        code = secrets.token_urlsafe(CODE_BYTES)
        expires_s = None if request.expires_in_s is None else self._service.now_s() + request.expires_in_s
        sha256 = sha256_hex(code.encode())
        await self._service.submit(stimuli.InvitationMade(sha256, request.uses, expires_s))
        return MadeInvitation(sha256, code, request.uses, expires_s)

    async def revoke(self, invitation: Sha256) -> None:
        """Take an invitation back. Raise `Refused` as `epochal.coordinator.machine.access.revoke`."""
        await self._service.submit(stimuli.InvitationRevoked(invitation))

    def invitations(self) -> InvitationList:
        """Return the run's invitations, without their codes, which nobody keeps."""
        run, now_s = self._run, self._service.now_s()
        listed = run.state_file.access.invitations
        made = tuple(
            InvitationView(sha256, one.uses, one.used, one.made_s, one.expires_s, one.is_expired(now_s))
            for sha256, one in run.members.admissions.invitations.items()
        )
        used = sum(Sha256(sha256) in run.members.invitations_used for sha256 in listed)
        return InvitationList(made, len(listed), used)

    async def admit_key(self, public_key: str) -> None:
        """Let a key's owner join. Raise `Refused`: `invalid-parameter`, and as `epochal.coordinator.machine.access`."""
        await self._service.submit(stimuli.KeyAdmitted(_checked_key(public_key)))

    async def remove_key(self, public_key: str) -> None:
        """Take that back; its owner is a member no longer. Raise `Refused` as `admit_key`."""
        await self._service.submit(stimuli.KeyRemoved(_checked_key(public_key)))

    def access(self) -> AccessList:
        """Return who may join."""
        run = self._run
        access, admissions = run.state_file.access, run.members.admissions
        listed = [key for key in access.keys if key not in admissions.keys_removed]
        added = sorted(admissions.keys_added)
        keys = (
            *(_key_view(run, key, "state file") for key in listed),
            *(_key_view(run, key, "command") for key in added),
        )
        return AccessList(access.mode, keys, tuple(sorted(admissions.keys_removed)))

    async def record_audit(self, report: AuditRecord) -> None:
        """Keep what an audit found."""
        await self._service.submit(stimuli.AuditReported(report))

    async def audits(self) -> AuditHistory:
        """Return the audits that were reported last. Raise `Refused` (`overloaded`) while the history is read."""
        return await self._insight.audits()


def _key_view(run: Run, public_key: str, source: KeySource) -> KeyView:
    client_id = client_id_of(bytes.fromhex(public_key))
    member = run.members.by_id.get(client_id)
    return KeyView(public_key, client_id, source, member is not None, "" if member is None else member.name)


def _checked_key(text: str) -> str:
    if not _KEY.fullmatch(text):
        raise Refused(
            Refusal.INVALID_PARAMETER,
            f"{text[:80]!r} is not a public key; allowed: 64 lowercase hex characters, as `epochal key show` prints",
        )
    return text
