"""Long documents come compressed to those who read that, and plain to others; the client gets the same document."""

import gzip
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
from starlette.datastructures import Headers

from epochal.coordinator.api.encoded_documents import MAX_DOCUMENTS, EncodedDocuments, takes_gzip
from epochal.coordinator.machine import stimuli
from epochal.coordinator_client.http import CoordinatorClient
from epochal.runtime.retry import RetryPolicy
from epochal.state.wire import Sha256, canonical_json
from tests.support.drive.served import Served, served_over_sockets, training


@asynccontextmanager
async def in_a_round(folder: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Served, Sha256]]:
    monkeypatch.setattr("epochal.coordinator.api.encoded_documents.MIN_COMPRESSED_BYTES", 1)
    async with served_over_sockets(folder) as run:
        await training(run)
        current = run.service.run.round
        assert current is not None
        yield run, current.tasks.roster_sha256


@pytest.mark.parametrize(
    ("accepts", "encoding"), [("gzip", "gzip"), ("identity", None), ("gzip;q=0", None), ("", None)]
)
async def test_long_document_is_compressed_for_those_who_take_it(
    tmp_path: Path, accepts: str, encoding: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with in_a_round(tmp_path, monkeypatch) as (run, roster):
        assert run.service.run.round is not None
        request = run.http.build_request("GET", f"{run.run_url}/rosters/{roster}", headers={"Accept-Encoding": accepts})
        answer = await run.http.send(request, stream=True)
        body = b"".join([piece async for piece in answer.aiter_raw()])
        await answer.aclose()
        assert answer.headers.get("content-encoding") == encoding
        assert answer.headers["vary"] == "Accept-Encoding"
        plain = canonical_json(run.service.run.round.tasks.roster)
        assert (gzip.decompress(body) if encoding else body) == plain


async def test_status_is_compressed_for_those_who_take_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with in_a_round(tmp_path, monkeypatch) as (run, _):
        found = {}
        for accepts in ("gzip", "identity"):
            answer = await run.http.get(f"{run.run_url}/status", headers={"Accept-Encoding": accepts})
            assert answer.headers["vary"] == "Accept-Encoding"
            found[answer.headers.get("content-encoding")] = answer.json()["members"][0]["client_id"]
        assert set(found) == {"gzip", None}
        assert len(set(found.values())) == 1


async def test_status_of_a_changed_run_is_not_an_older_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with in_a_round(tmp_path, monkeypatch) as (run, _):
        for is_pausing in (True, False):
            await run.handlers.submit(stimuli.PauseRequested() if is_pausing else stimuli.ResumeRequested())
            answer = await run.http.get(f"{run.run_url}/status", headers={"Accept-Encoding": "gzip"})
            assert answer.headers["content-encoding"] == "gzip"
            assert answer.json()["pausing"] is is_pausing


async def test_client_reads_a_compressed_document(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    async with (
        in_a_round(tmp_path, monkeypatch) as (run, roster),
        await CoordinatorClient.connect(str(run.http.base_url), RetryPolicy()) as client,
    ):
        assert run.service.run.round is not None
        assert await client.roster(roster) == run.service.run.round.tasks.roster


@pytest.mark.parametrize(
    ("header", "takes"),
    [("gzip", True), ("br, GZIP ; q=0.5", True), ("gzip;q=0", False), ("gzip; q=0.0", False), ("*", False)],
)
def test_gzip_is_taken_if_it_is_offered(header: str, takes: bool) -> None:
    assert takes_gzip(Headers({"accept-encoding": header})) is takes


async def test_documents_are_encoded_once_and_the_oldest_forgotten() -> None:
    made: list[str] = []
    documents = EncodedDocuments()

    def encode(name: str) -> bytes:
        made.append(name)
        return name.encode()

    for name in [*map(str, range(MAX_DOCUMENTS)), "1", "new", "1", "0"]:
        assert documents.plain(name, partial(encode, name)) == name.encode()
    assert made == [*map(str, range(MAX_DOCUMENTS)), "new", "0"]
    assert await documents.compressed("x", b"body") is await documents.compressed("x", b"body")
