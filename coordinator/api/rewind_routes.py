"""Routes for the operator on going back to a kept checkpoint (admin token)."""

import secrets

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from epochal.coordinator.api.request_parts import RUN, operator_router
from epochal.coordinator.handlers import Handlers
from epochal.coordinator.machine.commands.rewinding import choices_of
from epochal.coordinator.machine.parts.run_identity import LINEAGE_CHARACTERS
from epochal.coordinator.machine.stimuli import RunRewound
from epochal.runtime.http.bodies import document_response, read_message
from epochal.runtime.http.openapi import takes
from epochal.state.messages.rewinds import RewindChoices, RewindRequest


def rewind_routes(handlers: Handlers) -> APIRouter:
    """Return the routes."""
    router = operator_router(handlers)

    @router.get(f"{RUN}/rewind", summary="The steps to which the run can go back", response_model=RewindChoices)
    async def choices() -> Response:
        return document_response(choices_of(handlers.service.run))

    @router.post(
        f"{RUN}/rewind",
        summary="Go back to a kept checkpoint",
        response_model=RewindChoices,
        openapi_extra=takes(body=RewindRequest),
    )
    async def rewind(request: Request) -> Response:
        wanted = await read_message(request, RewindRequest)
        lineage = secrets.token_hex(LINEAGE_CHARACTERS // 2)
        await handlers.submit(RunRewound(wanted.to_step, wanted.skip, lineage))
        return document_response(choices_of(handlers.service.run))

    return router
