"""The requests of an operator's commands, over the client that everybody uses."""

import re
from collections.abc import Sequence
from typing import Any

from epochal.coordinator_client.http import CoordinatorClient
from epochal.coordinator_client.token_check import check_admin_token
from epochal.coordinator_client.viewer_client import ViewerClient
from epochal.runtime.http.session import Trust
from epochal.runtime.retry import RetryPolicy
from epochal.state.config.changes import differences
from epochal.state.config.planned_changes import AT_A_ROUND, may_change, value_at
from epochal.state.config.state_file import StateFile
from epochal.state.documents import RunDocument
from epochal.state.errors import InvalidInput
from epochal.state.intervals import BatchId
from epochal.state.messages.access_commands import InvitationView
from epochal.state.messages.requests import RunStatus
from epochal.state.wire import ClientId

_CLIENT_ID_DIGITS = 32
_NOT_SHOWN = ("run_state", "progress", "changes", "access", "run.", "notify", "blobs")
ALL_BATCHES = "all"
_BATCHES = re.compile(r"(\d{1,19})(?:-(\d{1,19}))?", re.ASCII)
_CLIENT_ID = re.compile(rf"[0-9a-f]{{4,{_CLIENT_ID_DIGITS}}}")


async def connect_operator(url: str, admin_token: str | None = None, verify: Trust = True) -> ViewerClient:
    """Return a client for one command: it does not wait for a coordinator that is not up.

    Args:
        url: the coordinator's base URL, or that of a run (`…/v1/runs/RUN_ID`).
        admin_token: for requests that change the run.
        verify: as `CoordinatorClient.connect`.

    Raises:
        InvalidInput: the URL, the token or the file is wrong.
        CoordinatorUnreachable: there was no answer.
    """
    if admin_token is not None:
        check_admin_token(admin_token)
    client = await ViewerClient.connect(url, RetryPolicy(attempts=1), verify)
    client.use_token(admin_token)
    client.show(admin_token)
    return client


async def config_of(operator: CoordinatorClient) -> tuple[RunDocument, StateFile]:
    """Return the run document and the run's configuration, in which `run_state`, `progress` and `access` are absent.

    A client with the admin token cannot ask for them, because readers have a session token or none.
    """
    document = await operator.run_document(None, 0.0)
    assert document is not None, "a request that names no version is answered at once"
    return document, await operator.config(document.config_sha256)


def check_client_id(client_id: str, *, is_whole: bool = False) -> None:
    """Raise `InvalidInput` unless it can be a client's id or, where not the whole is wanted, the beginning of one."""
    if not _CLIENT_ID.fullmatch(client_id) or (is_whole and len(client_id) < _CLIENT_ID_DIGITS):
        allowed = (
            f"all {_CLIENT_ID_DIGITS} hex digits, as the notice has them"
            if is_whole
            else "4 to 32 hex digits, as `status` shows them"
        )
        raise InvalidInput(f"{client_id!r} is not a client id; allowed: {allowed}")


def parse_batches(texts: Sequence[str]) -> tuple[BatchId, ...] | None:
    """Return the batches that a command names (`17`, `17-20`), or None for `all`. Raise `InvalidInput` for others."""
    if list(texts) == [ALL_BATCHES]:
        return None
    return tuple(_interval(text) for text in texts)


def _interval(text: str) -> BatchId:
    found = _BATCHES.fullmatch(text)
    if found is None:
        raise InvalidInput(f"{text!r} does not name batches; allowed: 17, 17-20, or {ALL_BATCHES} alone")
    return BatchId(int(found[1]), int(found[2] or found[1]))


async def pause_run(operator: CoordinatorClient) -> tuple[RunStatus, RunStatus]:
    """Pause a run; return its status before and after the request."""
    before = await operator.status()
    await operator.pause()
    return before, await operator.status()


async def resume_run(operator: CoordinatorClient) -> tuple[RunStatus, RunStatus]:
    """Let a paused run continue; return its status before and after the request."""
    before = await operator.status()
    await operator.resume()
    return before, await operator.status()


async def finish_run(operator: ViewerClient, after_step: int | None) -> tuple[RunStatus, RunStatus]:
    """End a run after a step, or take that back with None; return its status before and after the request."""
    before = await operator.status()
    await operator.finish(after_step)
    return before, await operator.status()


async def edited_values(operator: CoordinatorClient, edited: StateFile, at_step: int) -> dict[str, Any]:
    """Return the fields in which an edited state file differs from the run's settings of a step, with their new values.

    Tables that members are not shown, and the coordinator's own lines, are left out.

    Raises:
        InvalidInput: another field differs, which cannot change from a step on.
    """
    known = (await config_of(operator))[1].at(at_step)
    shown = [one.path for one in differences(known, edited) if not one.path.startswith(_NOT_SHOWN)]
    refused = [path for path in shown if not may_change(path)]
    if refused:
        allowed = ", ".join(AT_A_ROUND)
        raise InvalidInput(f"the file differs in {', '.join(refused)}; fields that may change: {allowed}")
    return {path: value_at(edited.to_plain(), path) for path in shown}


async def revoke_invitation(operator: ViewerClient, beginning: str) -> InvitationView:
    """Revoke the invitation of this id, or of the only one that begins so; return it as it was.

    Raises:
        InvalidInput: it is not the beginning of exactly one invitation's id.
    """
    held = (await operator.invitations()).invitations
    found = [one for one in held if one.id.startswith(beginning)]
    if not re.fullmatch("[0-9a-f]{4,64}", beginning) or len(found) != 1:
        raise InvalidInput(
            f"{len(found) or 'no'} invitations have an id that begins with {beginning[:80]!r}; allowed: 4 to 64 hex "
            "digits of one, as `epochal invite URL --list` shows them"
        )
    await operator.revoke(found[0].id)
    return found[0]


async def eject(operator: CoordinatorClient, client_id: str) -> ClientId:
    """Remove a client, and return its whole id.

    Args:
        operator: the coordinator.
        client_id: the id, or a beginning of it that no other client's has.

    Raises:
        InvalidInput: `client_id` is malformed, or not the beginning of exactly one member's id.
    """
    check_client_id(client_id)
    if len(client_id) < _CLIENT_ID_DIGITS:
        members = [member.client_id for member in (await operator.status()).members]
        found = [member for member in members if member.startswith(client_id)]
        if len(found) != 1:
            raise InvalidInput(f"{len(found) or 'no'} members have an id that begins with {client_id}")
        client_id = found[0]
    await operator.eject(ClientId(client_id))
    return ClientId(client_id)
