"""`OperatorClient`: a coordinator as its operator asks it about access, the end of the run, audits and actions."""

from epochal.coordinator_client.viewer_client import ViewerClient
from epochal.state.messages.access_commands import (
    AccessList,
    FinishSetting,
    InvitationList,
    InvitationRequest,
    MadeInvitation,
)
from epochal.state.messages.audit_reports import AuditHistory, AuditRecord
from epochal.state.wire import Sha256, canonical_json, parse_document


class OperatorClient(ViewerClient):
    """A coordinator over HTTP, with what its operator asks for. Most requests need the admin token."""

    async def finish(self, after_step: int | None) -> None:
        """End the run after a step; None takes that back. Raise `Refused`: `not-now` if it cannot end there."""
        await self._request("PUT", f"{self._run}/finish", content=canonical_json(FinishSetting(after_step)))

    async def invite(self, request: InvitationRequest) -> MadeInvitation:
        """Make an invitation. Raise `Refused`: `not-now` where none is needed."""
        return parse_document(MadeInvitation, await self._post("/invitations", request))

    async def invitations(self) -> InvitationList:
        """Return the run's invitations, without their codes."""
        return parse_document(InvitationList, (await self._request("GET", f"{self._run}/invitations")).content)

    async def revoke(self, invitation: Sha256) -> None:
        """Take an invitation back. Raise `Refused`: `not-found` if no command made it."""
        await self._request("DELETE", f"{self._run}/invitations/{invitation}")

    async def access(self) -> AccessList:
        """Return who may join."""
        return parse_document(AccessList, (await self._request("GET", f"{self._run}/access")).content)

    async def admit_key(self, public_key: str) -> None:
        """Let a key's owner join. Raise `Refused`: `not-now` where keys do not matter."""
        await self._request("PUT", f"{self._run}/access/{public_key}")

    async def remove_key(self, public_key: str) -> None:
        """Keep a key's owner out. Raise `Refused`: `not-now`, or `not-found` if it may not join."""
        await self._request("DELETE", f"{self._run}/access/{public_key}")

    async def record_audit(self, report: AuditRecord) -> None:
        """Report what an audit found."""
        await self._post("/audits", report)

    async def audits(self) -> AuditHistory:
        """Return the audits that were reported last. A viewer's token is shown, as with the next requests."""
        return parse_document(AuditHistory, await self._viewed("/audits"))
