"""The route that says how a machine joins the run, for those whom `[access] dashboard` lets see the run."""

from fastapi import APIRouter
from starlette.responses import Response

from epochal.coordinator.api.request_parts import RUN
from epochal.coordinator.api.viewer_access import ViewerAccess, viewer_router
from epochal.coordinator.handlers import Handlers
from epochal.runtime.http.bodies import document_response
from epochal.state.errors import Refused
from epochal.state.refusals import Refusal
from epochal.state.shown.join_guide import JoinGuide, JoinRoom, join_guide, room_of
from epochal.state.wire import Sha256


def join_routes(handlers: Handlers, access: ViewerAccess, version: str, own_certificate: Sha256 | None) -> APIRouter:
    """Return the route of the guide.

    Args:
        handlers: of the coordinator.
        access: says who may see the run.
        version: the program's.
        own_certificate: SHA-256 of the coordinator's, if only those trust it who have it.
    """
    router = viewer_router(access)

    @router.get(f"{RUN}/join", summary="How a machine joins the run", response_model=JoinGuide)
    async def join() -> Response:
        room = await _room(handlers)
        guide = join_guide(handlers.service.run.state_file, version, room, own_certificate)
        return document_response(guide, "no-cache")

    return router


async def _room(handlers: Handlers) -> JoinRoom | None:
    """Return the room that a client needs; None before the first checkpoint."""
    run = handlers.service.run
    if run.models.checkpoint is None:
        return None
    try:
        layout = await handlers.intake.layout()
    except Refused as refusal:
        if refusal.kind is Refusal.NOT_NOW:
            return None
        raise
    base = {} if run.models.spec is None else run.models.spec.base or {}
    base_bytes = sum(file.size_bytes for file in base.values())
    return room_of(run.state_file, layout, run.models.checkpoint.size_bytes, base_bytes)
