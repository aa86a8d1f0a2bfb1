"""Serving metrics from a process that serves no HTTP otherwise."""

import contextlib
from collections.abc import AsyncIterator

from prometheus_client import CollectorRegistry
from starlette.applications import Starlette

from epochal.runtime.connections.shedding import LOOPBACK, ConnectionLimits, ServerConnections
from epochal.runtime.http.allowed_hosts import CheckedHosts, allowed_hosts
from epochal.runtime.http.http_server import Endpoint, serving_app
from epochal.runtime.metrics.metrics_registry import MetricsEndpoint, metrics_route

MAX_SCRAPES = 16
"""Maximum number of connections of a server that shows metrics alone."""


@contextlib.asynccontextmanager
async def serving_metrics(registry: CollectorRegistry, port: int, host: str = LOOPBACK) -> AsyncIterator[str]:
    """Serve a registry to everyone who reaches the port; yield its URL.

    Args:
        registry: the metrics.
        port: 0 picks a free port.
        host: the address to listen on.

    Raises:
        InvalidInput: it cannot listen there.
    """
    app = Starlette(routes=[metrics_route(registry)])
    app.add_middleware(CheckedHosts, allowed=allowed_hosts(host, ()))
    async with serving_app(Endpoint(host, port), app, ServerConnections(ConnectionLimits(MAX_SCRAPES))) as url:
        yield url + MetricsEndpoint.path
