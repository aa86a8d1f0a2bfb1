"""The coordinator's REST service as a FastAPI application. Its routes only translate between HTTP and the handlers.

The layers that every request passes, and the hot routes, come before the framework: each of its layers takes time, and
memory for a request that waits.
"""

from starlette.types import ASGIApp, Receive, Scope, Send

from epochal.coordinator.api.coordinator_metrics import CoordinatorMetrics
from epochal.coordinator.api.fresh_view import FreshView
from epochal.coordinator.api.hot_routes import HotRoutes
from epochal.coordinator.api.member_facing import blob_routes, document_routes, membership_routes, reading_routes
from epochal.coordinator.api.operator_and_worker import (
    access_routes,
    change_routes,
    check_routes,
    health_routes,
    operator_routes,
    replay_routes,
    rewind_routes,
    status_routes,
)
from epochal.coordinator.api.viewer_facing import (
    ViewerAccess,
    dashboard_routes,
    history_routes,
    join_routes,
    member_routes,
)
from epochal.coordinator.auth.join_hosts import JoinHosts
from epochal.coordinator.handlers import Handlers
from epochal.coordinator.insight.history_views import HistoryViews
from epochal.coordinator.insight.member_views import MemberViews
from epochal.coordinator.insight.viewers import Viewers
from epochal.coordinator.run.long_polls import LongPolls
from epochal.runtime.http.allowed_hosts import ANY_HOST, CheckedHosts
from epochal.runtime.http.openapi import DescribedApp
from epochal.runtime.http.route_errors import answer_errors
from epochal.runtime.metrics.metrics_registry import MeasuredRequests, metrics_route, new_registry
from epochal.runtime.worker_thread import SharedThreads

SUMMARY = """Holds one training run.

A refused request is answered with application/problem+json, whose type says why. A path that is not listed here is
answered with 404, another method of a path with 405 and the header Allow, both as problems too."""


class CoordinatorApp(DescribedApp):
    """The framework's application, and what a request passes through before it.

    Attributes:
        front: takes each request, and passes it on to `behind` if need be.
    """

    front: ASGIApp | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await (self.front or self.behind)(scope, receive, send)

    async def behind(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the framework answer."""
        await super().__call__(scope, receive, send)


def create_app(
    handlers: Handlers,
    version: str,
    metrics: CoordinatorMetrics | None = None,
    hosts: frozenset[str] | None = ANY_HOST,
    join_hosts: JoinHosts | None = None,
) -> CoordinatorApp:
    """Return the application over these handlers.

    Args:
        handlers: answer every request.
        version: the program's.
        metrics: new ones by default.
        hosts: the names under which the application answers.
        join_hosts: those under which it is joined, beside the address to which a connection was made.
    """
    metrics, join_hosts = metrics or CoordinatorMetrics(new_registry()), join_hosts or JoinHosts()
    app = CoordinatorApp(
        title="Epochal coordinator",
        version=version,
        description=SUMMARY,
        redirect_slashes=False,  # a redirect would name the host and scheme that the request names
    )
    answer_errors(app)
    polls = LongPolls()
    document = document_routes(handlers, polls)
    insight, access = handlers.insight, ViewerAccess(handlers)
    views = HistoryViews(insight, SharedThreads())
    viewers = app.state.viewers = Viewers(insight, views)
    metrics.watch(handlers.service, insight, polls, handlers.arrivals, viewers, handlers.replays)
    reading, membership = reading_routes(handlers, polls), membership_routes(handlers, join_hosts)
    blobs = blob_routes(handlers)
    hot = HotRoutes(app.behind, [*document.routes, *reading.routes, *membership.routes, *blobs.routes])
    app.front = MeasuredRequests(CheckedHosts(FreshView(hot, handlers), hosts), metrics.http)
    for router in (
        document,
        reading,
        membership,
        blobs,
        check_routes(handlers),
        replay_routes(handlers),
        status_routes(handlers),
        operator_routes(handlers),
        history_routes(access, views, viewers, insight),
        member_routes(access, MemberViews(insight, SharedThreads())),
        access_routes(handlers),
        rewind_routes(handlers),
        change_routes(handlers),
        join_routes(handlers, access, version, join_hosts.own_certificate),
        health_routes(handlers, metrics.http.notes),
    ):
        app.router.routes += router.routes  # `include_router` would put each together once more, at the first request
    app.router.routes += [metrics_route(metrics.registry), *dashboard_routes()]
    return app
