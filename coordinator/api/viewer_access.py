"""Who may see the run: those whom `[access] dashboard` lets."""

import contextlib

from fastapi import APIRouter, Depends
from starlette.requests import Request

from epochal.coordinator.auth.admin import OPERATOR
from epochal.coordinator.handlers import Handlers
from epochal.coordinator.run.long_polls import Reader, ReaderKind, stranger_at
from epochal.runtime.http.bodies import bearer_token
from epochal.runtime.http.openapi import DescribedRoute
from epochal.state.errors import Refused


class ViewerAccess:
    """Decides who may see one coordinator's run.

    Args:
        handlers: of the coordinator.
    """

    def __init__(self, handlers: Handlers) -> None:
        self._handlers = handlers

    def check(self, run_id: str, token: str | None) -> None:
        """Raise `Refused` unless the run is served, and `[access] dashboard` lets the owner of the token see it.

        A member that views the page does not count as alive by that: its client may be gone while its page is open.

        Args:
            run_id: in the request's path.
            token: a member's session token or the admin token; None if the request shows none.
        """
        self._handlers.check_run(run_id)
        rule = self._handlers.service.run.state_file.access.dashboard
        if rule == "public" or (token is not None and self._handlers.admin.matches(token)):
            return
        if rule == "members":
            self._handlers.member_of(token)
        else:
            self._handlers.check_admin(token)

    def viewer(self, run_id: str, token: str | None, host: str) -> Reader:
        """Return the viewer: the operator, a member, or a stranger, who may show any other token. Raise as `check`.

        Args:
            run_id: in the request's path.
            token: as in `check`.
            host: from which the request comes.
        """
        self.check(run_id, token)
        if token is not None:
            if self._handlers.admin.matches(token):
                return Reader(ReaderKind.OPERATOR, OPERATOR)
            with contextlib.suppress(Refused):
                return Reader(ReaderKind.MEMBER, self._handlers.member_of(token))
        return stranger_at(host)


def viewer_router(access: ViewerAccess) -> APIRouter:
    """Return a router for routes of the run that those may read whom `[access] dashboard` lets see it."""

    async def check(run_id: str, request: Request) -> None:
        access.check(run_id, bearer_token(request.headers))

    return APIRouter(route_class=DescribedRoute, dependencies=[Depends(check)])
