"""Routes that read: round documents, results as they arrive, outcomes, the last checkpoint.

Anyone may use them, but for what a single member needs of an outcome.
"""

from functools import partial
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from epochal.coordinator.api.compressed import long_document
from epochal.coordinator.api.encoded_documents import EncodedDocuments
from epochal.coordinator.api.request_parts import MEMBER, RUN, WAIT_S, caller, reader_of, sha256_of
from epochal.coordinator.handlers import Handlers
from epochal.coordinator.run.long_polls import LongPolls
from epochal.runtime.connections.shedding import gone_of
from epochal.runtime.http.bodies import IMMUTABLE, document_response, has_gone, json_response
from epochal.runtime.http.openapi import WHOLE, DescribedRoute, Number, in_query, takes
from epochal.runtime.http.parameters import Query, parse_whole
from epochal.state.checkpoint_parts import CheckpointManifest
from epochal.state.documents import CheckpointRef, KeptCheckpoints, Outcome, OwnOutcome, Roster, UpdateRef, WorkList
from epochal.state.errors import Refused
from epochal.state.messages.requests import ResultsPage
from epochal.state.refusals import Refusal
from epochal.state.wire import canonical_json


def reading_routes(handlers: Handlers, polls: LongPolls) -> APIRouter:
    """Return the routes that anyone may read."""
    router = APIRouter(route_class=DescribedRoute)

    @router.get("/v1/runs", summary="The run that this coordinator serves", response_model=dict[str, list[str]])
    async def runs() -> Response:
        return document_response({"runs": [handlers.service.run.state_file.run_id]})

    _add_documents(router, handlers)

    @router.get(
        f"{RUN}/rounds/{{step}}/results",
        summary="Verified results of the round under way, as they arrive; long poll",
        response_model=ResultsPage,
        openapi_extra=takes(in_query("attempt", WHOLE, default=0), in_query("after", WHOLE, default=0), WAIT_S),
    )
    async def results(run_id: str, step: Number, request: Request) -> Response:
        handlers.check_run(run_id)
        reader = reader_of(handlers, request.scope)
        query, number = Query(request.scope["query_string"]), parse_whole("step", step)
        attempt, after, wait_s = query.whole("attempt", 0), query.whole("after", 0), query.seconds("wait_s")
        async with polls.place(reader, wait_s):
            with handlers.service.waiting(reader.client_id, gone_of(request.scope, partial(has_gone, request.receive))):
                page = await handlers.results(number, attempt, after, wait_s, reader)
        if not page.results:
            handlers.check_store(reader.client_id)
        return json_response(handlers.service.readers.pages.encoded(page))

    @router.get(f"{RUN}/checkpoints/latest", summary="The last verified checkpoint", response_model=CheckpointRef)
    async def latest_checkpoint(run_id: str) -> Response:
        handlers.check_run(run_id)
        found = handlers.service.run.models.checkpoint
        if found is None:
            raise Refused(Refusal.NOT_FOUND, "there is no checkpoint yet")
        return document_response(found, "no-cache")

    @router.get(
        f"{RUN}/checkpoints",
        summary="Every verified checkpoint that is held, the newest last",
        response_model=KeptCheckpoints,
    )
    async def kept_checkpoints(run_id: str) -> Response:
        handlers.check_run(run_id)
        return document_response(KeptCheckpoints(handlers.service.run.models.checkpoints), "no-cache")

    return router


def _add_documents(router: APIRouter, handlers: Handlers) -> None:
    """Add the routes of documents that never change, which are compressed once."""
    encoded = EncodedDocuments()

    async def sent(name: str, body: bytes, request: Request) -> Response:
        return await long_document(encoded, name, body, request, IMMUTABLE)

    async def immutable(run_id: str, sha256: str, request: Request) -> Response:
        handlers.check_run(run_id)
        return await sent(sha256, handlers.immutable(sha256_of(sha256)), request)

    for place, kind in (("rosters", Roster), ("work", WorkList)):
        path = f"{RUN}/{place}/{{sha256}}"
        router.add_api_route(path, immutable, summary=f"A {kind.__name__} by digest", response_model=kind)
    router.add_api_route(
        f"{RUN}/manifests/{{sha256}}",
        immutable,
        summary="The parts of a checkpoint by digest",
        response_model=CheckpointManifest,
    )
    for place, words in (("config", "The state file, as JSON,"), ("model", "The model's spec, as JSON,")):
        path, model = f"{RUN}/{place}/{{sha256}}", dict[str, Any]
        router.add_api_route(path, immutable, summary=f"{words} by digest", response_model=model)

    @router.get(f"{RUN}/rounds/{{step}}/update", summary="The update of a step", response_model=UpdateRef)
    async def update(run_id: str, step: Number) -> Response:
        handlers.check_run(run_id)
        return document_response(handlers.update(parse_whole("step", step)), "no-cache")

    @router.get(f"{RUN}/rounds/{{step}}/outcome", summary="The outcome of a step", response_model=Outcome)
    async def outcome(run_id: str, step: Number, request: Request) -> Response:
        handlers.check_run(run_id)
        found = handlers.outcome(parse_whole("step", step))
        name = f"{handlers.service.run.identity.lineage} {found.step} {found.attempt} {found.seed}"
        return await sent(name, encoded.plain(name, lambda: canonical_json(found)), request)

    @router.get(
        f"{RUN}/rounds/{{step}}/outcome/mine",
        summary="What a member needs of the outcome of a step",
        response_model=OwnOutcome,
        dependencies=[MEMBER],
    )
    async def own_outcome(run_id: str, step: Number, request: Request) -> Response:
        del run_id
        client_id = caller(handlers, request)
        return document_response(handlers.own_outcome(parse_whole("step", step), client_id))
