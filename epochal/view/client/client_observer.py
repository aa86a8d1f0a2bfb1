"""The observers of a client: its log, and its metrics if requested."""

import contextlib
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial

from epochal.cli.output.client_log import log_event
from epochal.cli.output.logs import LogFormat
from epochal.cli.output.printing import say
from epochal.cli.output.screens import can_be_drawn_on
from epochal.run_manager.events import Event, Observer


@dataclass(frozen=True, slots=True)
class ObserverOptions:
    """The receivers of a client's events besides its log.

    Attributes:
        metrics_address: port and host of metrics; None for nowhere.
        has_view: whether they are shown in a view on standard error.
    """

    metrics_address: tuple[int, str] | None
    has_view: bool


def may_have_view(log_format: LogFormat, *, wanted: bool) -> bool:
    """Return whether a client's view is shown: where its log is text for people, on a terminal."""
    return wanted and log_format is LogFormat.TEXT and can_be_drawn_on(sys.stderr)


@contextlib.asynccontextmanager
async def observing(options: ObserverOptions, url: str) -> AsyncIterator[Observer]:
    """Yield an observer that logs the client's events, and shows them and counts them as the options say.

    Args:
        options: where else they go.
        url: the coordinator's, whose page of this client the log names.
    """
    observers: list[Observer] = [partial(log_event, url=url)]

    def observe(event: Event) -> None:
        for observer in observers:
            observer(event)

    async with contextlib.AsyncExitStack() as stack:
        if options.metrics_address is not None:
            from epochal.run_manager.client_metrics import ClientMetrics
            from epochal.runtime.http.metrics_server import serving_metrics
            from epochal.runtime.metrics.metrics_registry import new_registry

            registry = new_registry()
            observers.append(ClientMetrics(registry).observe)
            place = await stack.enter_async_context(serving_metrics(registry, *options.metrics_address))
            say(f"metrics at {place}")
        if options.has_view:
            from epochal.view.client.client_view import open_view

            view = open_view(url)
            observers.append(view.observe)
            stack.enter_context(view.shown())
        yield observe
