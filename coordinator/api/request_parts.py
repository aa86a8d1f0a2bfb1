"""Parts of a request: its sender, and the digest in its path."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Security
from fastapi.security import HTTPBearer
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import Scope

from epochal.coordinator.auth.admin import OPERATOR
from epochal.coordinator.handlers import Handlers
from epochal.coordinator.run.long_polls import Reader, ReaderKind
from epochal.runtime.connections.shedding import vouch_for
from epochal.runtime.http.bodies import bearer_token
from epochal.runtime.http.openapi import SECONDS, DescribedRoute, in_query
from epochal.state.errors import Refused
from epochal.state.refusals import Refusal
from epochal.state.wire import ClientId, Sha256

RUN = "/v1/runs/{run_id}"
STALE_HEADER = "epochal-stale"
"""Header of an answer that may be older than its request."""
_HEX = frozenset("0123456789abcdef")


def _token(name: str, description: str) -> Any:
    """Return a token for the API's description. The routes check it themselves."""
    return Security(HTTPBearer(scheme_name=name, description=description, auto_error=False))


MEMBER = _token("session token", "A member's, from its join.")
CHECKER = _token("checker token", "A checker's, from `epochal token checker`.")
VERIFIER = _token("verifier token", "A verifier's, from `epochal token verifier`.")
ADMIN = _token("admin token", "The operator's, printed at the run's first start.")
WAIT_S = in_query("wait_s", SECONDS, "Maximum time to wait for news.", default=0)
PublicKey = Annotated[str, Path(json_schema_extra={"pattern": "^[0-9a-f]{64}$"})]
"""A raw Ed25519 public key in a path."""


def operator_router(handlers: Handlers) -> APIRouter:
    """Return a router for routes of the run that need the admin token."""

    async def check(run_id: str, request: Request) -> None:
        handlers.check_run(run_id)
        handlers.check_admin(bearer_token(request.headers))
        vouch_for(request.scope, OPERATOR)

    return APIRouter(route_class=DescribedRoute, dependencies=[ADMIN, Depends(check)])


def open_router(handlers: Handlers) -> APIRouter:
    """Return a router for routes of the run that anyone may read."""

    async def check(run_id: str) -> None:
        handlers.check_run(run_id)

    return APIRouter(route_class=DescribedRoute, dependencies=[Depends(check)])


def caller(handlers: Handlers, request: Request) -> ClientId:
    """Return the member that sent the request. Raise `Refused` unless it is a member of the run in the path."""
    run_id = request.path_params.get("run_id")
    if run_id is not None:
        handlers.check_run(run_id)
    client_id = handlers.authenticate(bearer_token(request.headers))
    _note_member(handlers, request.scope, client_id)
    return client_id


def blob_reader(handlers: Handlers, request: Request) -> ClientId:
    """Return who asks for a blob: a member, the operator or a verifier. Raise `Refused` for others."""
    client_id = handlers.blob_reader(bearer_token(request.headers))
    _note_member(handlers, request.scope, client_id)
    return client_id


def reader_of(handlers: Handlers, scope: Scope) -> Reader:
    """Return who sends a request that anyone may make.

    Raises:
        Refused: it shows a token that is not valid.
    """
    host, _ = scope.get("client") or ("", 0)
    token = bearer_token(Headers(scope=scope))
    try:
        reader = handlers.reader(token, host)
    except Refused:
        if token is None or not handlers.admin.matches(token):
            raise
        reader = Reader(ReaderKind.OPERATOR, OPERATOR)
    if reader.client_id is not None:
        _note_member(handlers, scope, reader.client_id)
    elif not reader.is_stranger:
        vouch_for(scope, reader.name)
    return reader


def _note_member(handlers: Handlers, scope: Scope, client_id: ClientId) -> None:
    connection = vouch_for(scope, client_id)
    if connection is not None:
        handlers.service.liveness.connected(client_id, connection)


def sha256_of(text: str) -> Sha256:
    """Return the digest in a path. Raise `Refused` (`not-found`) unless it is one."""
    if len(text) != 64 or not _HEX.issuperset(text):
        raise Refused(Refusal.NOT_FOUND, f"{text[:80]!r} is not a SHA-256 in lowercase hex")
    return Sha256(text)
