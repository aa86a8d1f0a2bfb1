"""`epochal access add`, `remove` and `list`: whose keys may join a run, without a restart."""

import re
from typing import Annotated

import typer

from epochal.cli.options.coordinators import OwnCoordinator
from epochal.cli.options.shared import JsonOption
from epochal.coordinator_client.viewer_client import ViewerClient
from epochal.state.errors import InvalidInput
from epochal.state.messages.access_commands import AccessList
from epochal.state.text.visible import visible
from epochal.state.wire import canonical_json

_KEY = re.compile(r"[0-9a-f]{64}")
Keys = Annotated[
    list[str],
    typer.Argument(metavar="KEY…", help="Public keys, 64 hex digits each, as `epochal key show` prints them."),
]


def add(at: OwnCoordinator, keys: Keys) -> None:
    """Let the owners of public keys join a run that asks for known keys, without a restart.

    They stay admitted when the coordinator restarts, also if its state file does not list them.
    """
    wanted = checked_keys(keys)

    async def admit(operator: ViewerClient) -> None:
        for key in wanted:
            await operator.admit_key(key)
            typer.echo(f"the owner of {key} may join")

    at.order(admit)


def remove(at: OwnCoordinator, keys: Keys) -> None:
    """Keep the owners of public keys out; those who are members leave.

    They stay out when the coordinator restarts, also if its state file lists them, until `epochal access add`.
    """
    wanted = checked_keys(keys)

    async def shut_out(operator: ViewerClient) -> None:
        for key in wanted:
            await operator.remove_key(key)
            typer.echo(f"the owner of {key} may not join")

    at.order(shut_out)


def list_(at: OwnCoordinator, as_json: JsonOption = False) -> None:
    """List the keys whose owners may join."""
    found = at.order(lambda operator: operator.access())
    typer.echo(canonical_json(found).decode() if as_json else "\n".join(_lines(found)))


def _lines(found: AccessList) -> list[str]:
    if found.mode != "keys":
        return [f'[access] mode of this run is "{found.mode}": no key is asked for']
    lines = [] if found.keys else ["no key may join; `epochal access add` admits some"]
    for one in found.keys:
        member = f", member {visible(one.name)}".rstrip() if one.member else ""
        lines.append(f"{one.public_key}  {one.source}{member}")
    lines += [f"{key}  removed; the state file lists it" for key in found.removed]
    return lines


def checked_keys(keys: list[str]) -> list[str]:
    """Return public keys as they are.

    Raises:
        InvalidInput: one of them is no key.
    """
    for key in keys:
        if not _KEY.fullmatch(key):
            raise InvalidInput(
                f"{key[:80]!r} is not a public key; allowed: 64 lowercase hex digits, as `epochal key show` prints them"
            )
    return keys
