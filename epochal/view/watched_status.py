"""A run's status that is shown again whenever it changes, in place on a terminal and as lines elsewhere."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import typer
from rich.console import Console
from rich.live import Live

from epochal.cli.options.shared import trusted
from epochal.cli.output.bars import terminal
from epochal.cli.output.printing import say
from epochal.coordinator_client.follow import DocumentFeed
from epochal.coordinator_client.http import CoordinatorClient
from epochal.runtime.retry import RetryPolicy
from epochal.state.errors import CoordinatorUnreachable, Refused
from epochal.state.messages.requests import RunStatus
from epochal.state.phase_names import RunState
from epochal.state.refusals import Retry
from epochal.state.wire import canonical_json
from epochal.view.status_panel import status_line, status_panel

REFRESH_S = 2.0
"""Time after which a status is asked for again although no document has changed: who is ready is not in it."""
MIN_INTERVAL_S = 0.5
"""Shortest time between two requests."""

Shown = Callable[[RunStatus | None, str], None]
"""Takes the last status, and what is wrong with the coordinator; "" if nothing is."""


async def watch_status(url: str, tls_ca: Path | None, policy: RetryPolicy, *, as_json: bool) -> None:
    """Show a run's status until the run has finished.

    Args:
        url: the coordinator's.
        tls_ca: whom to trust.
        policy: how long to retry when it does not answer.
        as_json: print each status that differs as a line of JSON.

    Raises:
        CoordinatorUnreachable: it did not answer for too long.
    """
    async with await CoordinatorClient.connect(url, policy, trusted(tls_ca)) as client:
        with _display(as_json=as_json) as shown:
            await follow_status(client, policy, shown)


async def follow_status(client: CoordinatorClient, policy: RetryPolicy, shown: Shown) -> None:
    """Give each status to `shown`, until that of the finished run; at most one in `MIN_INTERVAL_S`."""
    feed, backoff = DocumentFeed(client), policy.begin()
    last: RunStatus | None = None
    while last is None or last.run_state is not RunState.FINISHED:
        began_s = time.monotonic()
        try:
            last = await client.status()
            backoff.reset()
            shown(last, "")
            if last.run_state is not RunState.FINISHED:
                await feed.poll(REFRESH_S)
        except (CoordinatorUnreachable, Refused) as error:
            if isinstance(error, Refused) and error.kind.retry is not Retry.LATER:
                raise
            shown(last, f"{error.message}; trying again for up to {policy.bound_s:.0f} s")
            await backoff.wait(error)
        await asyncio.sleep(max(0.0, began_s + MIN_INTERVAL_S - time.monotonic()))


@contextlib.contextmanager
def _display(*, as_json: bool) -> Iterator[Shown]:
    console = Console()
    if as_json or not console.is_terminal:
        yield _json_lines() if as_json else _lines()
        return
    with Live(console=terminal(console.file), auto_refresh=False) as live:

        def show(status: RunStatus | None, problem: str) -> None:
            is_over = status is not None and status.run_state is RunState.FINISHED
            notes = [problem] if problem else [] if is_over else ["Ctrl-C ends this view; the run continues."]
            live.update(status_panel(status, notes) if status is not None else problem, refresh=True)

        yield show


def _lines() -> Shown:
    """Return what prints a line for each change; the speed alone is no change."""
    before: object = None

    def show(status: RunStatus | None, problem: str) -> None:
        nonlocal before
        now = (problem, None if status is None else _state_of(status))
        if now != before:
            say(problem or ("" if status is None else status_line(status)))
        before = now

    return show


def _json_lines() -> Shown:
    before: object = None

    def show(status: RunStatus | None, problem: str) -> None:
        nonlocal before
        if problem:
            typer.echo(problem, err=True)
        elif status is not None and _state_of(status) != before:
            before = _state_of(status)
            say(canonical_json(status).decode())

    return show


def _state_of(status: RunStatus) -> object:
    """Return the part of a status that is worth a line."""
    counts = status.member_count, status.ready_count, status.resting_count
    return status.version, *counts, status.loss, status.store_problem, len(status.evaluations), status.pausing
