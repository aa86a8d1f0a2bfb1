"""Parts of a request: the member that sent it, and the digest in its path."""

from starlette.requests import Request

from coordinator.handlers import Handlers
from runtime.connections import vouch_for
from runtime.http_bodies import bearer_token
from state.errors import Refused
from state.refusals import Refusal
from state.wire import ClientId, Sha256

RUN = "/v1/runs/{run_id}"
_HEX = frozenset("0123456789abcdef")


def caller(handlers: Handlers, request: Request) -> ClientId:
    """Return the member that sent the request. Raise `Refused` unless it is a member of the run in the path."""
    run_id = request.path_params.get("run_id")
    if run_id is not None:
        handlers.check_run(run_id)
    client_id = handlers.authenticate(bearer_token(request.headers))
    vouch_for(request.scope, client_id)
    return client_id


def sha256_of(text: str) -> Sha256:
    """Return the digest in a path. Raise `Refused` (`not-found`) unless it is one."""
    if len(text) != 64 or not _HEX.issuperset(text):
        raise Refused(Refusal.NOT_FOUND, f"{text[:80]!r} is not a SHA-256 in lowercase hex")
    return Sha256(text)
