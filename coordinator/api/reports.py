"""Routes of the reports that members send in a round."""

from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from coordinator.api.requests import RUN, caller
from coordinator.handlers import Handlers
from runtime.http_bodies import document_response, openapi_answer, openapi_body, read_message
from state.messages import Attestation, CheckpointReport, FailureReport, ReadyReport, ResultCommitment, Standing


def report_routes(handlers: Handlers) -> APIRouter:
    """Return one route for each report; all answer with the client's standing."""
    router = APIRouter()

    reports: tuple[tuple[str, Any, Any, str], ...] = (
        ("ready", ReadyReport, handlers.report_ready, "I hold the model and the data"),
        ("results", ResultCommitment, handlers.commit_result, "Commit to a result"),
        ("attestations", Attestation, handlers.attest, "Attest what arrived in time"),
        ("checkpoints", CheckpointReport, handlers.report_checkpoint, "Claim a replica's digest"),
        ("failures", FailureReport, handlers.report_failure, "I cannot take this step"),
    )

    def add(place: str, kind: Any, take: Any, summary: str) -> None:
        async def report(run_id: str, request: Request) -> Response:
            del run_id
            client_id = caller(handlers, request)
            return document_response(await take(client_id, await read_message(request, kind)))

        router.add_api_route(
            f"{RUN}/{place}",
            report,
            methods=["POST"],
            name=f"report_{place}",
            summary=summary,
            openapi_extra=openapi_body(kind),
            responses=openapi_answer(Standing),
        )

    for place, kind, take, summary in reports:
        add(place, kind, take, summary)

    return router
