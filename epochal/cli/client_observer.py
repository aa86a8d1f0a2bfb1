"""Who observes a client: its log, and its metrics where they are asked for."""

import contextlib
from collections.abc import AsyncIterator
from functools import partial

from epochal.cli.event_log import log_event
from epochal.cli.run import say
from run_manager.events import Event, Observer


@contextlib.asynccontextmanager
async def observing(metrics_address: tuple[int, str] | None, url: str) -> AsyncIterator[Observer]:
    """Yield an observer that logs the client's events and, if there is an address, serves metrics of them there.

    Args:
        metrics_address: port and host of the metrics; None for nowhere.
        url: the coordinator's, whose page of this client the log names.
    """
    log = partial(log_event, url=url)
    if metrics_address is None:
        yield log
        return
    from run_manager.metrics import ClientMetrics
    from runtime.metrics import new_registry
    from runtime.metrics_server import serving_metrics

    registry = new_registry()
    metrics = ClientMetrics(registry)

    def observe(event: Event) -> None:
        log(event)
        metrics.observe(event)

    async with serving_metrics(registry, *metrics_address) as url:
        say(f"metrics at {url}")
        yield observe
