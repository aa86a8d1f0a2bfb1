"""Requests that two readers could read differently, or that a page in a browser sends under a name of its own."""

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
import pytest_asyncio

from epochal.coordinator.serve import ServeOptions, serving
from epochal.runtime.http.http_server import Endpoint
from tests.support.bounds import BOUND_S
from tests.support.data.states import state_file

RUN = "/v1/runs/test-run"


pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def url(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    folder = tmp_path_factory.mktemp("run")
    async with serving(state_file(), ServeOptions(str(folder), Endpoint(port=0))) as running:
        yield running.url


async def raw(url: str, request: bytes) -> bytes:
    """Return the whole answer to these bytes."""
    host, _, port = url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(request)
    async with asyncio.timeout(BOUND_S):
        answer = await reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", answer)
        answer += await reader.readexactly(int(length[1])) if length else b""
    writer.close()
    return answer


@pytest.mark.parametrize("query", ["after=1_0", "after=%2B1", "wait_s=", "after=1&after=2", "wait_s=inf"])
async def test_parameter_with_two_readings_is_refused(url: str, query: str) -> None:
    async with httpx.AsyncClient(base_url=url) as http:
        assert (await http.get(f"{RUN}?{query}")).status_code == 422


async def test_message_with_two_readings_is_refused(url: str) -> None:
    body = b'{"public_key":"%s","public_key":"%s"}' % (b"a" * 64, b"b" * 64)
    async with httpx.AsyncClient(base_url=url) as http:
        answer = await http.post(f"{RUN}/clients/challenge", content=body)
    assert answer.status_code == 422
    assert "'public_key' occurs twice" in answer.json()["detail"]


@pytest.mark.parametrize("hosts", [[], ["a", "b"], [""], ["http://a/"], ["[::]]"]])
async def test_request_without_one_host_is_refused(url: str, hosts: list[str]) -> None:
    lines = "".join(f"Host: {host}\r\n" for host in hosts)
    answer = await raw(url, f"GET /healthz HTTP/1.1\r\n{lines}\r\n".encode())
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"urn:epochal:problem:host-missing" in answer


@pytest.mark.parametrize("host", ["rebound.example", "rebound.example:8000", "192.0.2.1", "127.0.0.1.rebound.example"])
async def test_page_under_a_name_of_its_own_reaches_nothing(url: str, host: str) -> None:
    for more in ("", "X-Forwarded-Host: localhost\r\nForwarded: host=localhost\r\n"):
        answer = await raw(url, f"GET {RUN}/status HTTP/1.1\r\nHost: {host}\r\n{more}\r\n".encode())
        assert answer.startswith(b"HTTP/1.1 421 ")
        assert f"--allowed-host {host.partition(':')[0]}".encode() in answer


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:9", "127.0.0.1:80", "127.9.9.9", "[::1]:8000", "localhost."])
async def test_names_of_this_machine_are_answered(url: str, host: str) -> None:
    assert (await raw(url, f"GET /healthz HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())).startswith(b"HTTP/1.1 200 ")


async def test_old_request_without_a_host_is_answered(url: str) -> None:
    assert (await raw(url, b"GET /healthz HTTP/1.0\r\n\r\n")).startswith(b"HTTP/1.1 200 ")


async def test_names_that_the_operator_gives_are_the_only_others(tmp_path: Path) -> None:
    endpoint = Endpoint("0.0.0.0", 0, insecure=True)
    options = ServeOptions(str(tmp_path), endpoint, allowed_hosts=("Run.Example.org", "2001:db8::1"))
    async with serving(state_file(), options) as running:
        url = running.url.replace("0.0.0.0", "127.0.0.1")
        for host, status in (
            ("run.example.org", 200),
            ("run.example.org.:443", 200),
            ("[2001:DB8:0::1]:443", 200),
            ("127.0.0.1", 200),
            ("other.example.org", 421),
        ):
            answer = await raw(url, f"GET /healthz HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
            assert answer.startswith(b"HTTP/1.1 %d " % status), host
