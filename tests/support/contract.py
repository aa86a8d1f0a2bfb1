"""The coordinator's description as a check on answers: each must be one that the description announces."""

import re
from functools import cache
from typing import Any

import httpx

from epochal.coordinator.api.public_route_facts import OPERATIONS
from epochal.runtime.http.openapi import EVERY_REQUEST
from epochal.state.refusals import PROBLEM_TYPE_PREFIX


@cache
def _paths() -> tuple[tuple[str, re.Pattern[str]], ...]:
    found = {path for _, path in OPERATIONS}
    patterns = [(path, re.compile(re.sub(r"\{[a-z0-9_]+\}", "[^/]+", path))) for path in found]
    return tuple(sorted(patterns, key=lambda one: one[0].count("{")))  # a path without parameters is meant literally


def check_described(answer: httpx.Response) -> None:
    """Assert that the description of the answered route announces a refusal of this kind."""
    path = next((path for path, pattern in _paths() if pattern.fullmatch(answer.request.url.path)), None)
    operation = OPERATIONS.get((answer.request.method, path or ""))
    if operation is None:
        assert answer.status_code in (404, 405), f"{answer.request.method} {answer.request.url.path} is not described"
        return
    body: dict[str, Any] = answer.json()
    announced = {PROBLEM_TYPE_PREFIX + refusal for refusal in (*EVERY_REQUEST, *operation.refusals)}
    assert body["type"] in announced, f"{answer.request.method} {path} answers {body['type']}, which is not described"
