"""A run that is read again whenever it changes, and printed as lines where there is no terminal."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from epochal.cli.output.printing import say
from epochal.coordinator_client.follow import DocumentFeed
from epochal.coordinator_client.viewer_client import ViewerClient
from epochal.runtime.retry import RetryPolicy
from epochal.state.errors import CoordinatorUnreachable, Refused
from epochal.state.messages.history_rows import Moment
from epochal.state.messages.requests import RunStatus
from epochal.state.phase_names import RunState
from epochal.state.refusals import Retry
from epochal.view.status_panel import status_line

REFRESH_S = 1.0
"""Time after which a run is read again although no document has changed: who is ready is not in it."""
MIN_INTERVAL_S = 0.5
"""Shortest time between two requests."""
SHOWN_CLIENTS = 200
"""Number of clients of a round that are asked for, the slowest."""


@dataclass(slots=True)
class RunPicture:
    """The last that is known of a run.

    Attributes:
        status: of the run; None before the first answer.
        moment: its rounds; None before the first answer, or if they are not read.
        problem: what is wrong with the coordinator; "" if it answers.
    """

    status: RunStatus | None = None
    moment: Moment | None = None
    problem: str = ""

    @property
    def is_over(self) -> bool:
        """Return whether the run has finished."""
        return self.status is not None and self.status.run_state is RunState.FINISHED


async def follow_run(
    client: ViewerClient, policy: RetryPolicy, picture: RunPicture, shown: Callable[[], None], *, rounds: bool = False
) -> None:
    """Read a run until it has finished, and call `shown` after each change of the picture.

    Args:
        client: the coordinator.
        policy: how long to retry when it does not answer.
        picture: to be kept.
        shown: is called when it has changed.
        rounds: read the rounds, too, and continue after the run's end, until cancelled.

    Raises:
        CoordinatorUnreachable: the coordinator did not answer for as long as the policy allows.
        Refused: it shows the run to others only.
        InvalidDocument: something else answers.
    """
    feed, backoff = DocumentFeed(client), policy.begin()
    while rounds or not picture.is_over:
        began_s = time.monotonic()
        try:
            picture.status = await client.status()
            if rounds:
                picture.moment = await client.present(SHOWN_CLIENTS)
            backoff.reset()
            picture.problem = ""
            shown()
            if rounds or not picture.is_over:
                await feed.poll(REFRESH_S)
        except (CoordinatorUnreachable, Refused) as error:
            if isinstance(error, Refused) and error.kind.retry is not Retry.LATER:
                raise
            picture.problem = f"{error.message}; trying again for up to {policy.bound_s:.0f} s"
            shown()
            await backoff.wait(error)
        await asyncio.sleep(max(0.0, began_s + MIN_INTERVAL_S - time.monotonic()))


async def watch_as_lines(client: ViewerClient, policy: RetryPolicy) -> None:
    """Print a line for each change of a run until it has finished. Raise as `follow_run`."""
    picture = RunPicture()
    await follow_run(client, policy, picture, changes_printed(picture))


def changes_printed(picture: RunPicture) -> Callable[[], None]:
    """Return what prints a line if a picture has changed; the speed alone is no change."""
    before: object = None

    def show() -> None:
        nonlocal before
        status, problem = picture.status, picture.problem
        now = (problem, None if status is None else _state_of(status))
        if now == before:
            return
        before = now
        if problem:
            say(problem)
        elif status is not None:
            say(status_line(status))

    return show


def _state_of(status: RunStatus) -> object:
    """Return the part of a status that is worth a line."""
    counts = status.member_count, status.ready_count, status.resting_count
    return status.version, *counts, status.loss, status.store_problem, len(status.evaluations), status.pausing
