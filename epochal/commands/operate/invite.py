"""`epochal invite`: invitations to a run, without a restart."""

import shlex
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from epochal.cli.durations import parse_duration, shown_duration
from epochal.cli.options.coordinators import OwnCoordinator
from epochal.cli.options.shared import JsonOption
from epochal.coordinator_client.operator import revoke_invitation
from epochal.coordinator_client.viewer_client import ViewerClient
from epochal.runtime.http.redacted_urls import without_password
from epochal.state.errors import InvalidInput
from epochal.state.messages.access_commands import (
    MAX_INVITATION_S,
    MAX_INVITATION_USES,
    InvitationList,
    InvitationRequest,
    InvitationView,
    MadeInvitation,
)
from epochal.state.text.amounts import counted
from epochal.state.wire import canonical_json

if TYPE_CHECKING:  # with numpy, which this command does not need otherwise
    from epochal.state.shown.join_guide import JoinGuide

SHOWN_ID_DIGITS = 12


def invite(
    at: OwnCoordinator,
    uses: Annotated[
        int,
        typer.Option(
            metavar="NUMBER", help=f"Number of clients that the invitation admits, at most {MAX_INVITATION_USES}."
        ),
    ] = 1,
    expires: Annotated[
        str | None, typer.Option(metavar="TIME", help="Time after which it admits no other, such as 3d or 12h.")
    ] = None,
    lists: Annotated[
        bool, typer.Option("--list", help="List the invitations instead; codes are kept nowhere.")
    ] = False,
    revoke: Annotated[
        str | None,
        typer.Option(metavar="ID", help="Revoke an invitation instead: its id, or the beginning that --list shows."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Invite clients to a run that asks for invitations; list and revoke them."""
    if not 1 <= uses <= MAX_INVITATION_USES:
        raise InvalidInput(f"--uses {uses}: allowed: 1 to {MAX_INVITATION_USES} clients")
    if lists + (revoke is not None) + (uses != 1 or expires is not None) > 1:
        raise InvalidInput("give --list, or --revoke ID, or --uses and --expires for a new invitation")
    valid_s = None if expires is None else parse_duration("--expires", expires, MAX_INVITATION_S)
    if lists:
        found = at.order(lambda operator: operator.invitations())
        typer.echo(canonical_json(found).decode() if as_json else _listed(found))
    elif revoke is not None:
        prefix = revoke
        gone = at.order(lambda operator: revoke_invitation(operator, prefix))
        typer.echo(f"revoked invitation {gone.id[:SHOWN_ID_DIGITS]}, which had admitted {gone.used} of {gone.uses}")
    else:
        made, guide = at.order(lambda operator: _made(operator, InvitationRequest(uses, valid_s)))
        typer.echo(canonical_json(made).decode() if as_json else told(made, guide, at.url, at.tls_ca))


async def _made(operator: ViewerClient, request: InvitationRequest) -> tuple[MadeInvitation, "JoinGuide"]:
    guide = await operator.join_guide()
    return await operator.invite(request), guide


def told(made: MadeInvitation, guide: "JoinGuide", url: str, tls_ca: Path | None) -> str:
    """Return what is printed of a new invitation: its code, whom it admits, and the whole command that joins with it.

    Args:
        made: the invitation.
        guide: how a machine joins the run.
        url: of the coordinator, as the operator gave it.
        tls_ca: the certificate that the operator trusts, which those who join must trust as well; None without one.
    """
    from epochal.state.shown.join_guide import CERTIFICATE_FILE, shown_fingerprint

    own_certificate = guide.own_certificate if url.startswith("https:") else None
    trusted = CERTIFICATE_FILE if tls_ca is None and own_certificate is not None else tls_ca and tls_ca.name
    until = "" if made.expires_s is None else f", until {_time(made.expires_s)}"
    words = ["epochal", "client", without_password(url), "--key", "me.key", "--new-key"]
    words += ["--tls-ca", trusted] if trusted else []
    words += ["--trainer", guide.trainer] if guide.trainer else []
    words += ["--data", "PATH"] if guide.data.own else []
    words += ["--base", "DIR"] if guide.own_base else []
    words += ["--insecure"] if guide.data.insecure else []
    words += ["--invitation", made.code]
    own = [] if tls_ca is None else ["--tls-ca", str(tls_ca)]
    revoking = ["epochal", "invite", without_password(url), *own, "--revoke", made.id[:SHOWN_ID_DIGITS]]
    beside = (
        "" if own_certificate is None else f", beside the file {trusted} (SHA-256 {shown_fingerprint(own_certificate)})"
    )
    return "\n".join(
        (
            f"invitation {made.code}",
            f"  admits {counted(made.uses, 'client')}{until}; it is shown this once",
            f"  to revoke it: {shlex.join(revoking)}",
            f"to join{beside}:",
            f"  {shlex.join(words)}",
        )
    )


def _listed(found: InvitationList) -> str:
    lines = [_line(one) for one in found.invitations] or ["no invitation was made by a command"]
    if found.listed:
        lines.append(f"{found.listed} more in state.toml, for one client each; {found.listed_used} used")
    return "\n".join(lines)


def _line(one: InvitationView) -> str:
    until = "for ever"
    if one.expires_s is not None:
        left_s = one.expires_s - time.time()
        until = "expired" if one.expired else f"until {_time(one.expires_s)} ({shown_duration(max(0.0, left_s))} left)"
    made = f"made {_time(one.made_s)}"
    return f"{one.id[:SHOWN_ID_DIGITS]}  {one.used} of {one.uses} used, {until}, {made}"


def _time(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%d %H:%M UTC")
