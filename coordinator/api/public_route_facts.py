"""Facts about each route for the API's description, beyond its messages: tokens, parameters, refusals.

The rule kept here: every answer that a route can give is described. A test compares the answers of all others with it.
"""

from collections.abc import Mapping
from dataclasses import is_dataclass
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from epochal.coordinator.api.access_route_facts import access_operations
from epochal.coordinator.api.page_routes import dashboard_operations
from epochal.coordinator.api.probe_routes import PROBE
from epochal.coordinator.api.request_parts import RUN
from epochal.coordinator.insight.history_views import DEFAULT_POINTS, MAX_POINTS
from epochal.runtime.http.bodies import openapi_answer, openapi_schemas
from epochal.runtime.http.openapi import (
    EVERY_MESSAGE,
    SECONDS,
    SHA256,
    TEXT,
    WHOLE,
    Operation,
    Operations,
    Parameter,
    Schema,
    content,
    described,
    description_operations,
)
from epochal.state import checkpoint_parts, documents
from epochal.state.documents import RunDocument
from epochal.state.generations import DataAppendSetting, DataHistory
from epochal.state.messages import access_commands as access_messages
from epochal.state.messages import audit_reports, evaluation_reports, history_rows
from epochal.state.messages import blob_messages as blob_messages
from epochal.state.messages import member_rows as members
from epochal.state.messages import requests as messages
from epochal.state.messages.deliveries import MEDIA_TYPE
from epochal.state.messages.probe import MAX_PROBE_BYTES, ProbeReport
from epochal.state.messages.requests import REPORT_PATHS
from epochal.state.refusals import Refusal
from epochal.state.shown import explanation, join_guide, operator_actions, trust
from epochal.state.shown.explanation import SpeedExplanation

SUMMARY = """Holds one training run.

A refused request is answered with application/problem+json, whose type says why. A path that is not listed here is
answered with 404, another method of a path with 405 and the header Allow, both as problems too."""

SESSION, DATA_SERVER, ADMIN, CHECKER = "session token", "data server token", "admin token", "checker token"
SECURITY: Mapping[str, Any] = {
    SESSION: {"type": "http", "scheme": "bearer", "bearerFormat": "JWT", "description": "A member's, from its join."},
    DATA_SERVER: {"type": "http", "scheme": "bearer", "description": "A data server's, from `epochal token`."},
    CHECKER: {"type": "http", "scheme": "bearer", "description": "A checker's, from `epochal token checker`."},
    ADMIN: {"type": "http", "scheme": "bearer", "description": "The operator's, printed at the run's first start."},
}
PATH_PARAMETERS: Mapping[str, Schema] = {
    "run_id": {**TEXT, "description": "The run's id, as GET /v1/runs lists it."},
    "sha256": {**SHA256, "description": "Digest of the document or of the blob's bytes."},
    "client_id": {"type": "string", "pattern": "^[0-9a-f]{32}$"},
    "public_key": {"type": "string", "pattern": "^[0-9a-f]{64}$", "description": "A raw Ed25519 public key."},
    "lease": {"type": "string", "description": "Names the lease, as its answer says."},
    "step": {**WHOLE, "description": "Number of the round's step."},
    "file": {**TEXT, "description": "Path of one of the page's files, such as main.js."},
    "number": {**WHOLE, "description": "Number of the round in the run's history, from 0."},
    "version": {**WHOLE, "description": "Version of the run document."},
}
_NAMES = vars(checkpoint_parts) | vars(documents) | vars(evaluation_reports) | vars(messages) | vars(blob_messages)
_NAMES |= vars(explanation) | vars(history_rows) | vars(join_guide) | vars(members) | vars(access_messages)
_NAMES |= vars(operator_actions) | vars(audit_reports) | vars(trust)
DOCUMENTS = (
    *(kind for kind in _NAMES.values() if isinstance(kind, type) and is_dataclass(kind)),
    DataAppendSetting,
    DataHistory,
    ProbeReport,
)
"""Every document and message."""

_OF_RUN = (Refusal.UNKNOWN_RUN, Refusal.STORE_FAILED)
_OF_MEMBER = (Refusal.UNAUTHORIZED, *_OF_RUN)
_OF_ADMIN = (Refusal.UNAUTHORIZED, Refusal.FORBIDDEN, *_OF_RUN)
_ACTS = (Refusal.OVERLOADED,)
_WAITS = (*_OF_MEMBER, Refusal.OVERLOADED, Refusal.INVALID_PARAMETER)
_READS_BLOB = (Refusal.UNAUTHORIZED, Refusal.STORE_FAILED, Refusal.NOT_FOUND)
_DELIVERS = (
    Refusal.BODY_INCOMPLETE, Refusal.BODY_TIMEOUT, Refusal.BLOB_MISMATCH, Refusal.BLOB_TOO_LARGE, Refusal.BLOBS_FULL,
    Refusal.RESULT_INVALID, Refusal.STORE_FAILED, Refusal.OVERLOADED,
)  # fmt: skip
_OF_ROUND = (Refusal.STALE_ROUND, Refusal.NOT_IN_ROSTER, Refusal.ALREADY_COMMITTED, Refusal.LATE_RESULT)
_REPORTS: Mapping[type, tuple[Refusal, ...]] = {
    messages.ReadyReport: (
        Refusal.NOT_NOW, Refusal.BEHIND, Refusal.REPLICA_DIFFERS, Refusal.FINGERPRINT_DIFFERS, Refusal.DATA_UNDECIDED,
    ),
    messages.ResultCommitment: (*_OF_ROUND, Refusal.NOT_NOW, Refusal.BLOB_TOO_LARGE),
    messages.Attestation: (*_OF_ROUND, Refusal.NOT_NOW),
    messages.CheckpointReport: (
        Refusal.NOT_NOW, Refusal.STALE_ROUND, Refusal.NOT_IN_ROSTER, Refusal.ALREADY_COMMITTED, Refusal.REPLICA_DIFFERS,
        Refusal.BLOB_TOO_LARGE, Refusal.RESULT_INVALID,
    ),
    messages.FailureReport: (*_OF_ROUND, Refusal.NOT_NOW),
    messages.TimesReport: (Refusal.STALE_ROUND,),
}  # fmt: skip

_READERS = (None, SESSION, DATA_SERVER)
_VIEWERS = (None, SESSION, ADMIN)
_LAST_EVENT_ID = "The id of the last event that was received: what was missed since is sent first."
_EVENTS = (
    "Events `document` (RunDocument), `rounds` (HistoryPage), `now` (RunNow), `reset`, `dropped` (with a `detail`)"
)
_WAIT_S = Parameter("wait_s", {**SECONDS, "description": "Most seconds to wait for news."}, default=0)
_BYTES: Schema = {"type": "string", "format": "binary"}
_BLOB_BODY = content("application/octet-stream", "The blob's bytes", _BYTES)
_BLOB = _BLOB_BODY["content"]
_DELIVERY = content(MEDIA_TYPE, "A ResultCommitment on a line of JSON, a line feed, and the result's bytes", _BYTES)
_MODEL_SPEC: Schema = {"type": "object", "required": ["architecture"], "properties": {"architecture": TEXT}}
_LOOKS = "1: it is not where an earlier answer led; 2: it has other bytes there."
_CONTENT_RANGE = {
    "type": "string",
    "pattern": "^bytes [0-9]{1,18}-[0-9]{1,18}/[0-9]{1,18}$",
    "description": "The body is the rest of a blob of which the bytes before it have arrived.",
}
_LOCATION = {"required": True, "schema": {"type": "string"}}
_CREATED, _DONE = {"description": "Taken, now or before"}, {"description": "Done"}


def _report_operations() -> Operations:
    every = (*_OF_MEMBER, *_ACTS, *EVERY_MESSAGE, Refusal.RATE_LIMITED)
    of_delivery = (*_REPORTS[messages.ResultCommitment], Refusal.RESULT_INVALID, Refusal.BLOBS_FULL)
    reports = {
        ("POST", f"{RUN}/{place}"): Operation((*every, *_REPORTS[kind]), (SESSION,))
        for kind, place in REPORT_PATHS.items()
    }
    delivery = Operation((*every, *of_delivery), (SESSION,), body=_DELIVERY)
    return {**reports, ("POST", f"{RUN}/deliveries"): delivery}


def _reading_operations() -> Operations:
    after = {"minimum": -1, "description": "The version that the reader has."}
    newer = {**openapi_answer(RunDocument)[200], "headers": {"ETag": {"required": True, "schema": {"type": "string"}}}}
    kept = Operation((*_OF_RUN, Refusal.NOT_FOUND))
    return {
        ("GET", "/v1/runs"): Operation(
            answers={200: content("application/json", "The run's id, in a list", _object(runs=_list_of(TEXT)))}
        ),
        ("GET", RUN): Operation(
            _WAITS,
            _READERS,
            (
                Parameter("after", {**WHOLE, **after}, default=-1),
                Parameter("lineage", TEXT),
                _WAIT_S,
                Parameter("If-None-Match", {"type": "string"}, "header"),
            ),
            {200: newer, 304: {"description": "Nothing newer within `wait_s`", "headers": newer["headers"]}},
            summary="The run document, as soon as it is newer than `after`; long poll",
        ),
        **{("GET", f"{RUN}/{place}/{{sha256}}"): kept for place in ("rosters", "work", "manifests")},
        ("GET", f"{RUN}/config/{{sha256}}"): Operation(
            kept.refusals, answers={200: content("application/json", "The state file as JSON", {"type": "object"})}
        ),
        ("GET", f"{RUN}/model/{{sha256}}"): Operation(
            kept.refusals, answers={200: content("application/json", "The model's spec as JSON", _MODEL_SPEC)}
        ),
        ("GET", f"{RUN}/rounds/{{step}}/outcome"): Operation((*kept.refusals, Refusal.INVALID_PARAMETER)),
        ("GET", f"{RUN}/rounds/{{step}}/results"): Operation(
            (*_WAITS, Refusal.STALE_ROUND),
            _READERS,
            (Parameter("attempt", WHOLE, default=0), Parameter("after", WHOLE, default=0), _WAIT_S),
        ),
        ("GET", f"{RUN}/checkpoints/latest"): kept,
        ("GET", f"{RUN}/checkpoints"): Operation(_OF_RUN),
        ("GET", f"{RUN}/status"): Operation(_OF_RUN),
        ("GET", f"{RUN}/quarantine"): Operation(_OF_RUN),
        ("GET", f"{RUN}/data-generations"): Operation(_OF_RUN),
        ("GET", f"{RUN}/evaluations"): Operation(_OF_RUN),
    }


def _history_operations() -> Operations:
    refusals = (*(*_OF_ADMIN, Refusal.OVERLOADED, Refusal.INVALID_PARAMETER),)
    seen = Parameter("If-None-Match", {"type": "string"}, "header")
    tag = {"headers": {"ETag": {"required": True, "schema": {"type": "string"}}}}
    same: dict[int | str, Any] = {304: {"description": "The reader has it", **tag}}

    def answers(kind: type) -> dict[int | str, Any]:
        return {200: {**openapi_answer(kind)[200], **tag}, **same}

    slowest = Parameter(
        "slowest", {**WHOLE, "description": "Most clients of a round, the slowest first; all by default."}
    )
    points = {**WHOLE, "minimum": 1, "maximum": MAX_POINTS, "description": "Most rows; more are merged."}
    return {
        ("GET", f"{RUN}/history"): Operation(
            (*refusals, Refusal.RATE_LIMITED),
            _VIEWERS,
            (
                Parameter("from", {**WHOLE, "description": "Number of the first round."}, default=0),
                Parameter("to", {**WHOLE, "description": "Number of the last one; the last of all by default."}),
                Parameter("points", points, default=DEFAULT_POINTS),
                seen,
            ),
            answers(history_rows.HistoryPage),
        ),
        ("GET", f"{RUN}/history/rounds/{{number}}"): Operation(
            (*refusals, Refusal.NOT_FOUND), _VIEWERS, (slowest, seen), answers(history_rows.RoundDetail)
        ),
        ("GET", f"{RUN}/history/versions/{{version}}"): Operation(
            (*refusals, Refusal.NOT_FOUND, Refusal.RATE_LIMITED),
            _VIEWERS,
            (slowest, seen),
            answers(history_rows.Moment),
        ),
        ("GET", f"{RUN}/history/present"): Operation(refusals, _VIEWERS, (slowest, seen), answers(history_rows.Moment)),
        ("GET", f"{RUN}/members"): Operation(refusals, _VIEWERS, (seen,), answers(members.MembersPage)),
        ("GET", f"{RUN}/members/{{client_id}}"): Operation((*refusals, Refusal.NOT_FOUND), _VIEWERS),
        ("GET", f"{RUN}/history/explanation"): Operation(refusals, _VIEWERS, (seen,), answers(SpeedExplanation)),
        ("GET", f"{RUN}/join"): Operation(_OF_ADMIN, _VIEWERS),
        ("GET", f"{RUN}/events"): Operation(
            refusals,
            _VIEWERS,
            (Parameter("Last-Event-ID", {"type": "string", "description": _LAST_EVENT_ID}, "header"),),
            {200: content("text/event-stream", _EVENTS)},
            summary="News of the run, as server-sent events, without end",
        ),
    }


def _probe_operations() -> Operations:
    count = {**WHOLE, "minimum": 1, "maximum": MAX_PROBE_BYTES, "description": "Number of bytes."}
    busy = (Refusal.OVERLOADED, Refusal.RATE_LIMITED)
    return {
        ("GET", PROBE): Operation(
            (*busy, Refusal.INVALID_PARAMETER),
            parameters=(Parameter("bytes", count, default=MAX_PROBE_BYTES),),
            answers={200: content("application/octet-stream", "Bytes that mean nothing", _BYTES)},
        ),
        ("POST", PROBE): Operation(
            (*busy, Refusal.BODY_TOO_LARGE, Refusal.BODY_INCOMPLETE, Refusal.BODY_TIMEOUT),
            body=content("application/octet-stream", "Any bytes", {**_BYTES, "minLength": 1}),
        ),
    }


def _membership_operations() -> Operations:
    clients = f"{RUN}/clients"
    joins = (
        Refusal.NONCE_INVALID, Refusal.UNAUTHORIZED, Refusal.NONCE_CONSUMED, Refusal.ACCESS_DENIED, Refusal.EJECTED,
        Refusal.UNSUPPORTED_PROTOCOL, Refusal.UNSUPPORTED_CODEC, Refusal.KEY_IN_USE, Refusal.RATE_LIMITED,
        Refusal.RUN_FULL,
    )  # fmt: skip
    return {
        ("POST", f"{clients}/challenge"): Operation((*_OF_RUN, *EVERY_MESSAGE)),
        ("POST", clients): Operation((*_OF_RUN, *_ACTS, *EVERY_MESSAGE, *joins)),
        ("GET", f"{clients}/me"): Operation(_OF_MEMBER, (SESSION,)),
        ("DELETE", f"{clients}/me"): Operation((*_OF_MEMBER, *_ACTS), (SESSION,), answers={204: _DONE}),
        ("POST", f"{clients}/me/token"): Operation((*_OF_MEMBER, Refusal.RATE_LIMITED), (SESSION,)),
    }


def _blob_operations() -> Operations:
    announced = (
        *(*_READS_BLOB, Refusal.NOT_COMMITTED, Refusal.RESULT_INVALID),
        *(Refusal.LATE_RESULT, Refusal.NOT_NOW, Refusal.RATE_LIMITED),
    )
    size = {"headers": {"Accept-Ranges": {"required": True, "schema": {"type": "string"}}}, "content": _BLOB}
    return {
        ("GET", "/v1/blobs/{sha256}"): Operation(
            (
                *(*_READS_BLOB, Refusal.NOT_NOW, Refusal.RANGE_NOT_SATISFIABLE),
                *(Refusal.OVERLOADED, Refusal.INVALID_PARAMETER),
            ),
            (SESSION, ADMIN),
            (
                Parameter("Range", {"type": "string", "description": "One range of bytes."}, "header"),
                Parameter("looks", {**WHOLE, "description": _LOOKS}, default=0),
            ),
            {
                200: {"description": "The whole blob", **size},
                206: {"description": "The range", **size},
                307: {"description": "It is in an object store", "headers": {"Location": _LOCATION}},
            },
        ),
        ("POST", "/v1/blobs/{sha256}/grant"): Operation((*announced, Refusal.BLOBS_FULL), (SESSION,)),
        ("POST", "/v1/blobs/{sha256}/arrival"): Operation(
            (*announced, *_DELIVERS),
            (SESSION,),
            answers={201: _CREATED, 202: {"description": "Being taken in: ask again"}},
        ),
        ("GET", "/v1/blobs/{sha256}/upload"): Operation(announced, (SESSION,)),
        ("PUT", "/v1/blobs/{sha256}"): Operation(
            (*announced, *_DELIVERS, Refusal.OFFSET_DIFFERS, Refusal.INVALID_PARAMETER),
            (SESSION,),
            (Parameter("Content-Range", _CONTENT_RANGE, "header"),),
            answers={201: _CREATED},
            body={"content": _BLOB},
        ),
    }


def _operator_operations() -> Operations:
    acts = Operation((*_OF_ADMIN, *_ACTS), (ADMIN,), answers={204: _DONE})
    holds = Operation((*acts.refusals, Refusal.NOT_NOW), (ADMIN,), answers={204: _DONE})
    return {
        ("POST", f"{RUN}/pause"): holds,
        ("POST", f"{RUN}/resume"): holds,
        ("POST", f"{RUN}/clients/{{client_id}}/eject"): Operation(
            (*acts.refusals, Refusal.NOT_FOUND), (ADMIN,), answers={204: _DONE}
        ),
        ("POST", f"{RUN}/tokens/data-server"): Operation(_OF_ADMIN, (ADMIN,)),
        ("PUT", f"{RUN}/fingerprint"): Operation((*acts.refusals, *EVERY_MESSAGE), (ADMIN,), answers={204: _DONE}),
        ("PUT", f"{RUN}/data-generations"): Operation((*_OF_ADMIN, *_ACTS, *EVERY_MESSAGE, Refusal.NOT_NOW), (ADMIN,)),
        ("PUT", f"{RUN}/genesis/{{sha256}}"): Operation(
            (*_OF_ADMIN, *_DELIVERS, Refusal.NOT_FOUND, Refusal.NOT_NOW, Refusal.INVALID_PARAMETER),
            (ADMIN,),
            body={"content": _BLOB},
        ),
        ("POST", f"{RUN}/quarantine/release"): Operation(
            (*_OF_ADMIN, *_ACTS, *EVERY_MESSAGE, Refusal.NOT_FOUND), (ADMIN,)
        ),
        ("POST", f"{RUN}/evaluations"): Operation(
            (*_OF_ADMIN, *_ACTS, *EVERY_MESSAGE, Refusal.NOT_FOUND, Refusal.REPLICA_DIFFERS),
            (ADMIN,),
            answers={204: _DONE},
        ),
    }


def _check_operations() -> Operations:
    of_checker = (Refusal.UNAUTHORIZED, *_OF_RUN)
    of_lease = (*of_checker, Refusal.GONE)
    checks = f"{RUN}/checks"
    return {
        ("POST", checks): Operation(
            (*of_lease, Refusal.NOT_NOW, Refusal.INVALID_PARAMETER),
            (CHECKER,),
            (_WAIT_S,),
            {**openapi_answer(blob_messages.LeasedCheck), 204: {"description": "Nothing to check within `wait_s`"}},
        ),
        ("POST", f"{checks}/{{lease}}/renewal"): Operation(of_lease, (CHECKER,)),
        ("POST", f"{checks}/{{lease}}/verdict"): Operation(
            (*of_lease, *EVERY_MESSAGE), (CHECKER,), answers={204: _DONE}
        ),
        ("DELETE", f"{checks}/{{lease}}"): Operation(of_lease, (CHECKER,), answers={204: _DONE}),
        ("GET", f"{RUN}/parameters"): Operation((*of_checker, Refusal.NOT_NOW, Refusal.NOT_FOUND), (CHECKER,)),
        ("POST", f"{RUN}/tokens/checker"): Operation(_OF_ADMIN, (ADMIN,)),
    }


def _process_operations() -> Operations:
    metrics = content("text/plain", "For Prometheus")
    return {
        ("GET", "/healthz"): Operation(answers={200: content("text/plain", "The process is alive")}),
        ("GET", "/readyz"): Operation(
            answers={200: content("text/plain", "Ready"), 503: content("text/plain", "Not accepting messages, and why")}
        ),
        ("GET", "/metrics"): Operation(answers={200: metrics}, summary="Metrics for Prometheus"),
        **dashboard_operations(),
        **description_operations(),
    }


def _object(**fields: Schema) -> Schema:
    return {"type": "object", "required": list(fields), "properties": dict(fields)}


def _list_of(item: Schema) -> Schema:
    return {"type": "array", "items": dict(item)}


OPERATIONS: Operations = {
    **_reading_operations(),
    **_history_operations(),
    **_probe_operations(),
    **_membership_operations(),
    **_report_operations(),
    **_blob_operations(),
    **_operator_operations(),
    **access_operations(ADMIN, _OF_ADMIN, _VIEWERS),
    **_check_operations(),
    **_process_operations(),
}
"""Every method of every path."""


def describe(app: FastAPI) -> dict[str, Any]:
    """Return the description of a coordinator's application."""
    found = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
    schemas = found.setdefault("components", {}).setdefault("schemas", {})
    schemas.update(openapi_schemas(DOCUMENTS))
    found["components"]["securitySchemes"] = dict(SECURITY)
    return described(found, OPERATIONS, PATH_PARAMETERS)
