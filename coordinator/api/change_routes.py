"""Routes on settings that change from a step on: anyone may read them, the operator announces and withdraws them."""

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from epochal.coordinator.api.request_parts import RUN, open_router, operator_router
from epochal.coordinator.handlers import Handlers
from epochal.coordinator.machine.commands.planned_changes import first_free_step
from epochal.coordinator.machine.run import Run
from epochal.coordinator.machine.stimuli import ChangeAnnounced, ChangeWithdrawn
from epochal.runtime.http.bodies import document_response, read_message
from epochal.runtime.http.openapi import takes
from epochal.state.messages.change_messages import ChangeList, ChangeRequest, announced_changes


def change_routes(handlers: Handlers) -> APIRouter:
    """Return the routes."""
    router, reading = operator_router(handlers), open_router(handlers)

    @router.post(
        f"{RUN}/changes",
        summary="Announce settings that change from a step on",
        response_model=ChangeList,
        openapi_extra=takes(body=ChangeRequest),
    )
    async def announce(request: Request) -> Response:
        wanted = await read_message(request, ChangeRequest)
        await handlers.submit(ChangeAnnounced(wanted.at_step, wanted.values, wanted.mix))
        return document_response(_changes_of(handlers.service.run))

    @router.delete(f"{RUN}/changes/{{at_step}}", summary="Take an announced change back", status_code=204)
    async def withdraw(at_step: int) -> Response:
        await handlers.submit(ChangeWithdrawn(at_step))
        return Response(status_code=204)

    @reading.get(f"{RUN}/changes", summary="The run's changes, past and announced", response_model=ChangeList)
    async def changes() -> Response:
        return document_response(_changes_of(handlers.service.run))

    router.routes += reading.routes
    return router


def _changes_of(run: Run) -> ChangeList:
    return ChangeList(first_free_step(run), announced_changes(run.identity.state_file, run.identity.applied_count))
