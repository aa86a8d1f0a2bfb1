"""`epochal notify`: try the addresses of a state file."""

import time
from pathlib import Path
from typing import Annotated

import typer

from epochal.cli.options.notified import notified_of
from epochal.cli.output.printing import run_to_end, say
from epochal.coordinator.notify.notice_sending import open_notice_client, tell
from epochal.state.messages.notices import Notice
from epochal.tools.state_files import read_supported_state


def notify(state_path: Annotated[Path, typer.Argument(metavar="STATE.toml", help="State file of a run.")]) -> None:
    """Send a test message to each address of a state file, and show what each answers (exit code 1 if one fails)."""
    state = read_supported_state(state_path)
    addresses = notified_of(state)
    if not addresses:
        say(f"{state_path} notifies nobody: there is no `[[notify.webhooks]]`")
        return
    failed = False

    async def tell_all() -> None:
        nonlocal failed
        async with open_notice_client() as client:
            for address in addresses:
                message = f"This is a test of {address.place}. It is notified of: {', '.join(address.on)}."
                notice = Notice(address.on[0], "test", message, time.time())
                answer = await tell(client, address, state.run_id, notice)
                failed |= answer.result != "delivered"
                said = "not delivered" if answer.result == "retried" else answer.result  # here nothing is repeated
                say(f"{address.place} ({address.scheme}://): {said}: {answer.reason}")

    run_to_end(tell_all())
    if failed:
        raise typer.Exit(1)
