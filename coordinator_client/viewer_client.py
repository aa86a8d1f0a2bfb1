"""`ViewerClient`: the requests with which a run is viewed (its history, one round, one version, and news) and operated.

`[access] dashboard` sets which viewers are admitted; their token goes with a viewer's requests alone, because members
read the run document with another one. Most of an operator's requests need the admin token.
"""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

import httpx

from epochal.coordinator_client.http import CoordinatorClient
from epochal.coordinator_client.stored_blobs import CONNECT_TIMEOUT_S
from epochal.coordinator_client.token_check import check_admin_token
from epochal.runtime.http.http_client import error_of, read_whole, streamed
from epochal.state.errors import InvalidDocument
from epochal.state.messages.access_commands import (
    AccessList,
    FinishSetting,
    InvitationList,
    InvitationRequest,
    MadeInvitation,
)
from epochal.state.messages.audit_reports import AuditHistory, AuditRecord
from epochal.state.messages.change_messages import ChangeList, ChangeRequest
from epochal.state.messages.history_rows import HistoryPage, Moment, RoundDetail
from epochal.state.messages.member_rows import MemberDetail, MembersPage
from epochal.state.messages.receipts import Receipt, ReceiptRequest
from epochal.state.messages.rewinds import RewindChoices, RewindRequest
from epochal.state.shown.explanation import SpeedExplanation
from epochal.state.wire import ClientId, Sha256

if TYPE_CHECKING:  # with numpy, which other requests do not need
    from epochal.state.shown.join_guide import JoinGuide

T = TypeVar("T")

MAX_PAGE_ROUNDS = 4096
"""Number of rounds in a page for which no rows are merged: the maximum number of rows that a coordinator sends."""
SILENCE_S = 60.0
"""Maximum time without a byte of a stream of events, in which a coordinator sends a comment each 15 s."""
MAX_EVENT_BYTES = 64 * 1024 * 1024
"""Maximum size of one event."""


@dataclass(frozen=True, slots=True)
class RunEvent:
    """A server-sent event of a run (`docs/rest-api.md`).

    Attributes:
        kind: `document`, `rounds`, `reset` or `dropped`.
        id: with which a viewer comes back; "" if it has none.
        data: JSON.
    """

    kind: str
    id: str
    data: bytes


class ViewerClient(CoordinatorClient):
    """A coordinator over HTTP, with the requests of viewers and operators of its run."""

    _viewer_headers: dict[str, str] | None = None

    def show(self, token: str | None) -> None:
        """Show this token with a viewer's requests: the admin token or a member's; None shows none.

        Raises:
            InvalidInput: no header can carry it.
        """
        if token is not None:
            check_admin_token(token)
        self._viewer_headers = None if token is None else {"Authorization": f"Bearer {token}"}

    async def history(self, first: int = 0, last: int | None = None, points: int = MAX_PAGE_ROUNDS) -> HistoryPage:
        """Return the rows of the rounds from number `first` to `last` (None: all that have ended), at most `points`.

        Raises:
            Refused: the token is not one that may see it; or the history is being read (`overloaded`), try again.
        """
        query = {"from": first, "points": points} | ({} if last is None else {"to": last})
        return await self._viewed(HistoryPage, "/history", query)

    async def round_detail(self, number: int) -> RoundDetail:
        """Return a round with each of its clients.

        Raises:
            Refused: `not-found` if these are not held; and as `history`.
        """
        return await self._viewed(RoundDetail, f"/history/rounds/{number}")

    async def join_guide(self) -> "JoinGuide":
        """Return how a machine joins the run. Raise as `history`."""
        from epochal.state.shown.join_guide import JoinGuide

        return await self._viewed(JoinGuide, "/join")

    async def present(self, slowest: int | None = None) -> Moment:
        """Return the run as it is, or was a moment ago. Raise as `history`."""
        query = None if slowest is None else {"slowest": slowest}
        return await self._viewed(Moment, "/history/present", query)

    async def explanation(self) -> SpeedExplanation:
        """Return why the run is not faster. Raise as `history`."""
        return await self._viewed(SpeedExplanation, "/history/explanation")

    async def members(self) -> MembersPage:
        """Return all members as columns. Raise as `history`."""
        return await self._viewed(MembersPage, "/members")

    async def member(self, client_id: ClientId) -> MemberDetail:
        """Return a member, present or former. Raise `Refused`: `not-found`, and as `history`."""
        return await self._viewed(MemberDetail, f"/members/{quote(client_id, safe='')}")

    async def events(self, last_id: str | None = None) -> AsyncGenerator[RunEvent, None]:
        """Yield the run's news until the coordinator ends the stream, which it does at least once an hour.

        Args:
            last_id: of the last event that was seen.

        Raises:
            Refused, CoordinatorUnreachable, InvalidDocument: as every request, also in the middle of the stream.
        """
        path = f"{self._run}/events"
        headers = {**self._headers, **(self._viewer_headers or {}), "Accept": "text/event-stream"}
        if last_id is not None:
            headers["Last-Event-ID"] = last_id
        timeout = httpx.Timeout(SILENCE_S, connect=CONNECT_TIMEOUT_S)
        request = self._http.build_request("GET", path, headers=headers, timeout=timeout)
        try:
            async with streamed(self._http, request) as answer:
                if not answer.is_success:
                    raise error_of(await read_whole(answer), f"GET {path}")
                async with aclosing(_events_in(answer.aiter_bytes())) as events:
                    async for event in events:
                        yield event
        except httpx.HTTPError as error:
            raise self._unreachable(f"GET {path}", error) from error

    async def receipt(self, request: ReceiptRequest) -> Receipt:
        """Return the receipt of a key. Raise `Refused`: `not-found` if nothing is known of it; its signature counts."""
        return await self._fetch(Receipt, "POST", "/clients/receipt", message=request)

    async def finish(self, after_step: int | None) -> None:
        """End the run after a step; None takes that back. Raise `Refused`: `not-now` if it cannot end there."""
        await self._request("PUT", "/finish", message=FinishSetting(after_step))

    async def rewind_choices(self) -> RewindChoices:
        """Return the steps to which the run can go back, and what each would take back."""
        return await self._fetch(RewindChoices, "GET", "/rewind")

    async def rewind(self, to_step: int, *, skip: bool = False) -> RewindChoices:
        """Take the run back to a kept checkpoint; return the steps to which it can go back then.

        Args:
            to_step: of the checkpoint.
            skip: whether the data are passed over that were applied since, or are under way.

        Raises:
            Refused: `not-found` if no checkpoint of that step is kept.
        """
        return await self._fetch(RewindChoices, "POST", "/rewind", message=RewindRequest(to_step, skip))

    async def changes(self) -> ChangeList:
        """Return the run's changes of settings, past and announced."""
        return await self._fetch(ChangeList, "GET", "/changes")

    async def announce_change(self, request: ChangeRequest) -> ChangeList:
        """Let settings change from a step on; return all changes. Raise `Refused` with every reason against it."""
        return await self._fetch(ChangeList, "POST", "/changes", message=request)

    async def withdraw_change(self, at_step: int) -> None:
        """Take a change back. Raise `Refused`: `not-found` if there is none, `not-now` if it is too late."""
        await self._request("DELETE", f"/changes/{at_step}")

    async def invite(self, request: InvitationRequest) -> MadeInvitation:
        """Make an invitation. Raise `Refused`: `not-now` where none is needed."""
        return await self._fetch(MadeInvitation, "POST", "/invitations", message=request)

    async def invitations(self) -> InvitationList:
        """Return the run's invitations, without their codes."""
        return await self._fetch(InvitationList, "GET", "/invitations")

    async def revoke(self, invitation: Sha256) -> None:
        """Take an invitation back. Raise `Refused`: `not-found` if no command made it."""
        await self._request("DELETE", f"/invitations/{invitation}")

    async def access(self) -> AccessList:
        """Return who may join."""
        return await self._fetch(AccessList, "GET", "/access")

    async def admit_key(self, public_key: str) -> None:
        """Let a key's owner join. Raise `Refused`: `not-now` where keys do not matter."""
        await self._request("PUT", f"/access/{public_key}")

    async def remove_key(self, public_key: str) -> None:
        """Keep a key's owner out. Raise `Refused`: `not-now`, or `not-found` if it may not join."""
        await self._request("DELETE", f"/access/{public_key}")

    async def record_audit(self, report: AuditRecord) -> None:
        """Report what an audit found."""
        await self._request("POST", "/audits", message=report)

    async def audits(self) -> AuditHistory:
        """Return the audits that were reported last. Raise as `history`."""
        return await self._viewed(AuditHistory, "/audits")

    async def _viewed(self, kind: type[T], place: str, query: dict[str, Any] | None = None) -> T:
        return await self._fetch(kind, "GET", place, params=query, headers=self._viewer_headers)


async def _events_in(pieces: AsyncIterator[bytes]) -> AsyncGenerator[RunEvent, None]:
    """Yield the events in a stream (HTML, section 9.2.6). A coordinator writes each field on one line."""
    waiting = b""
    async for piece in pieces:
        *events, waiting = (waiting + piece).split(b"\n\n")
        if len(waiting) > MAX_EVENT_BYTES:
            raise InvalidDocument(f"an event has more than {MAX_EVENT_BYTES} bytes, which no coordinator sends")
        for event in events:
            found: dict[bytes, bytes] = {}
            for line in event.split(b"\n"):
                name, _, value = line.partition(b":")
                found[name] = value.removeprefix(b" ")
            if b"event" in found and b"data" in found:
                yield RunEvent(found[b"event"].decode(), found.get(b"id", b"").decode(), found[b"data"])
