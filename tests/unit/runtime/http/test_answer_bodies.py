"""Answers that are read whole: decoded, and bounded as they arrive and as they are decoded."""

import gzip
from collections.abc import AsyncIterator

import httpx
import pytest

from epochal.runtime.http import http_client
from epochal.runtime.http.http_client import bounded_body, whole_response

GZIP = httpx.Headers({"Content-Encoding": "gzip", "Content-Type": "application/json"})


def test_compressed_answer_is_decoded_once() -> None:
    answer = whole_response(200, GZIP, gzip.compress(b'{"a": 1}'))
    assert answer.json() == {"a": 1}
    assert "content-encoding" not in answer.headers
    assert answer.headers["content-type"] == "application/json"


@pytest.mark.parametrize(
    ("headers", "body", "reason"),
    [
        (GZIP, gzip.compress(bytes(101), mtime=0), "more than 100 bytes"),
        (GZIP, gzip.compress(bytes(50), mtime=0)[:-9], "breaks off"),
        (GZIP, b"no gzip", "not gzip"),
        (httpx.Headers({"Content-Encoding": "br"}), b"x", "nobody asked"),
        (httpx.Headers({"Content-Encoding": "gzip, gzip"}), b"x", "nobody asked"),
    ],
)
def test_answer_that_cannot_be_decoded_is_refused(
    headers: httpx.Headers, body: bytes, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_client, "MAX_ANSWER_BYTES", 100)
    with pytest.raises(httpx.HTTPError, match=reason):
        whole_response(200, headers, body)


async def test_body_without_an_end_is_given_up_at_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_client, "MAX_ANSWER_BYTES", 100)
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        while True:
            sent += 1
            yield bytes(30)

    with pytest.raises(httpx.RemoteProtocolError, match="more than 100 bytes"):
        await bounded_body(endless())
    assert sent == 4
