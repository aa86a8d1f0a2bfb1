"""`runtime/http/problem_json.py`: every error as a problem with the refusal's status; `refusal_in` reads it back."""

import json
import logging

import httpx
import pytest
from starlette.exceptions import HTTPException
from starlette.responses import Response

from epochal.runtime.http.http_client import refusal_in
from epochal.runtime.http.problem_json import problem_of, problem_response
from epochal.state.errors import InvalidInput, Refused
from epochal.state.refusals import Refusal


def as_client_sees(response: Response) -> httpx.Response:
    return httpx.Response(response.status_code, headers=dict(response.headers), content=bytes(response.body))


@pytest.mark.parametrize(
    "kind", [kind for kind in Refusal if kind.status not in (429, 503) and kind is not Refusal.INTERNAL]
)
def test_refusal_survives_its_way_over_http(kind: Refusal) -> None:
    answer = as_client_sees(problem_response(Refused(kind, "so it is", step=12, size_bytes=7)))
    refused = refusal_in(answer)
    assert refused is not None
    assert (answer.status_code, refused.kind, refused.message) == (kind.status, kind, "so it is")
    assert refused.context == {"retry": kind.may_retry, "step": 12, "size_bytes": 7}


def test_problem_names_type_title_status_and_detail() -> None:
    body = json.loads(bytes(problem_response(Refused(Refusal.STALE_ROUND, "it is over")).body))
    assert body == {
        "type": "urn:epochal:problem:stale-round",
        "title": "stale round",
        "status": 409,
        "detail": "it is over",
        "retry": False,
    }


@pytest.mark.parametrize(
    ("kind", "header", "value"),
    [
        (Refusal.OVERLOADED, "Retry-After", "1"),
        (Refusal.RATE_LIMITED, "Retry-After", "5"),
        (Refusal.UNAUTHORIZED, "WWW-Authenticate", "Bearer"),
        (Refusal.BODY_TIMEOUT, "Connection", "close"),
        (Refusal.RANGE_NOT_SATISFIABLE, "Content-Range", "bytes */7"),
    ],
)
def test_problem_has_the_header_that_its_status_asks_for(kind: Refusal, header: str, value: str) -> None:
    context = {"retry_after_s": 4.2} if kind is Refusal.RATE_LIMITED else {"size_bytes": 7}
    assert problem_response(Refused(kind, "no", **context)).headers[header] == value


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (InvalidInput("no number"), Refusal.INVALID_BODY),
        (HTTPException(404), Refusal.NOT_FOUND),
        (HTTPException(405), Refusal.METHOD_NOT_ALLOWED),
        (KeyError("secret"), Refusal.INTERNAL),
    ],
)
def test_error_of_another_kind_becomes_a_refusal(error: Exception, kind: Refusal) -> None:
    assert problem_of(error).kind is kind


def test_bug_is_logged_and_not_shown(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        response = problem_response(KeyError("secret"))
    assert b"secret" not in bytes(response.body)
    assert [record.message for record in caplog.records] == ["request_failed"]
