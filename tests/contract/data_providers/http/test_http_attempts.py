"""One read over HTTP that fails and goes on: what may pass, how long it lasts, and what its errors say."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import epochal.data_providers.sources.http.requester
import epochal.data_providers.sources.http.source
from epochal.data_providers.protocol import CorruptData, Rejected, SourceUnavailable
from epochal.data_providers.sources.byte_source import read
from epochal.data_providers.sources.http.range_answers import MAX_SHOWN_CHARS, MAX_WHOLE_FILE_BYTES
from epochal.data_providers.sources.http.source import RETRY, HttpOptions, HttpSource
from epochal.state.errors import DataError
from epochal.state.intervals import DataIds
from tests.support.data.data_http_client import ONE_TRY, TOKENS, Faulty, opened, with_header
from tests.support.servers.data_http import HttpReply, HttpRequest, http_server

Fault = Callable[[HttpReply], HttpReply]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    TOKENS.tofile(tmp_path / "a.bin")
    return tmp_path


async def no_wait(seconds: float) -> None:
    """Time that passes at once."""


FOUR_TRIES = HttpOptions(retry=replace(RETRY, sleep=no_wait))


class InTurn:
    """Faults for the next answers, one each; the last one may last. Counts the answers."""

    def __init__(self, *faults: Fault, lasts: bool = False) -> None:
        self._faults = list(faults)
        self._lasts = lasts
        self.answers = 0

    def __call__(self, reply: HttpReply) -> HttpReply:
        self.answers += 1
        if not self._faults:
            return reply
        fault = self._faults[0] if self._lasts and len(self._faults) == 1 else self._faults.pop(0)
        return fault(reply)


PASSING: dict[str, tuple[Fault, type[DataError]]] = {
    "404": (lambda reply: HttpReply(404), Rejected),
    "403": (lambda reply: HttpReply(403), Rejected),
    "the whole large file": (
        lambda reply: HttpReply(200, b"", announced_bytes=MAX_WHOLE_FILE_BYTES + 1, hangs=True),
        Rejected,
    ),
    "a page": (lambda reply: HttpReply(200, b"<html>please sign in"), CorruptData),
    "no Content-Range": (lambda reply: replace(reply, headers={}), Rejected),
    "compressed": (lambda reply: with_header(reply, "Content-Encoding", "gzip"), Rejected),
}


@pytest.mark.parametrize("fault", [fault for fault, _ in PASSING.values()], ids=PASSING)
async def test_http_bad_answer_for_an_open_file_is_asked_again(fault: Fault, folder: Path) -> None:
    server = Faulty(folder)
    async with opened(server, options=FOUR_TRIES) as provider:
        server.fault = faults = InTurn(fault, fault, fault)
        assert (await provider.get_samples(DataIds(0, 0))).input_ids.tolist() == TOKENS[:64].tolist()
    assert faults.answers == 4


@pytest.mark.parametrize(("fault", "error"), PASSING.values(), ids=PASSING)
async def test_http_bad_answer_that_comes_each_time_is_refused(
    fault: Fault, error: type[DataError], folder: Path
) -> None:
    server = Faulty(folder)
    async with opened(server, options=FOUR_TRIES) as provider:
        server.fault = faults = InTurn(fault, lasts=True)
        with pytest.raises(error):
            await provider.get_samples(DataIds(0, 0))
    assert faults.answers == 4


async def test_http_refusal_among_failures_that_pass_is_not_for_good(folder: Path) -> None:
    server = Faulty(folder)
    async with opened(server, options=FOUR_TRIES) as provider:
        server.fault = InTurn(*[lambda reply: HttpReply(503)] * 3, lambda reply: HttpReply(404))
        with pytest.raises(SourceUnavailable, match="503"):
            await provider.get_samples(DataIds(0, 0))


@pytest.mark.parametrize("status", [400, 401, 410, 416])
async def test_http_refusal_that_does_not_pass_is_not_asked_again(status: int, folder: Path) -> None:
    server = Faulty(folder)
    async with opened(server, options=FOUR_TRIES) as provider:
        server.fault = faults = InTurn(lambda reply: HttpReply(status), lasts=True)
        with pytest.raises(Rejected, match=str(status)):
            await provider.get_samples(DataIds(0, 0))
    assert faults.answers == 1


async def test_http_bad_answer_of_a_place_redirected_to_is_asked_from_the_url(folder: Path) -> None:
    server, at_url = Faulty(folder), 0

    async def answer(request: HttpRequest) -> HttpReply:
        nonlocal at_url
        if request.path.startswith("/there"):
            return await server(request)
        at_url += 1
        return HttpReply(302, headers={"Location": "/there/a.bin"})

    async with opened(answer, options=FOUR_TRIES) as provider:
        server.fault = InTurn(PASSING["a page"][0])
        assert (await provider.get_samples(DataIds(0, 0))).sample_count == 1
    assert at_url == 2


async def test_http_server_that_drips_is_given_up(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = Faulty(folder)
    async with opened(server, options=FOUR_TRIES) as provider:
        monkeypatch.setattr(epochal.data_providers.sources.http.requester, "ANSWER_TIMEOUT_S", 0.05)
        monkeypatch.setattr(epochal.data_providers.sources.http.source, "MAX_ANSWERS_PER_READ", 5)
        server.fault = drip = InTurn(
            lambda reply: replace(reply, body=reply.body[:1], announced_bytes=len(reply.body), hangs=True), lasts=True
        )
        with pytest.raises(SourceUnavailable, match="does not answer in time"):
            await provider.get_samples(DataIds(0, 0))
    assert drip.answers == 5


async def test_http_slow_answers_of_enough_bytes_go_on(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = Faulty(folder)
    async with opened(server, options=FOUR_TRIES) as provider:
        monkeypatch.setattr(epochal.data_providers.sources.http.requester, "ANSWER_TIMEOUT_S", 0.1)
        server.fault = cut = InTurn(
            *[lambda reply: replace(reply, body=reply.body[:20], announced_bytes=len(reply.body), hangs=True)] * 5
        )
        assert (await provider.get_samples(DataIds(0, 0))).input_ids.tolist() == TOKENS[:64].tolist()
    assert cut.answers == 6


SAID: dict[str, tuple[Fault, str]] = {
    "an endless header": (
        lambda reply: with_header(reply, "Content-Range", "x\x9b" + "x" * 2000),
        f"with Content-Range: x\\udc9b{'x' * (MAX_SHOWN_CHARS - 2)}… to a request",
    ),
    "an endless version": (
        lambda reply: with_header(reply, "ETag", "x" * 3000),
        f"and now has 51200 and {'x' * MAX_SHOWN_CHARS}…",
    ),
}


@pytest.mark.parametrize(("fault", "said"), SAID.values(), ids=SAID)
async def test_http_error_shows_little_of_what_a_server_sent(fault: Fault, said: str, folder: Path) -> None:
    server = Faulty(folder)
    async with http_server(server) as url:
        source = await HttpSource.open([f"{url}/a.bin"], ONE_TRY)
        server.fault = fault
        with pytest.raises(DataError) as raised:
            await read(source, "a.bin", 0, 128)
        await source.aclose()
    assert said in str(raised.value)
