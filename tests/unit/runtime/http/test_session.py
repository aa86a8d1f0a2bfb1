"""Sessions: an address that may not be connected is not, however a request comes to it."""

import asyncio
import socket
import struct
from typing import Any

import aiohttp
import pytest
from yarl import URL

from epochal.runtime.connections.allowed_addresses import AddressKind, Reach
from epochal.runtime.http.environment_proxies import Proxies
from epochal.runtime.http.session import open_session
from epochal.state.errors import InvalidInput, NotAllowed
from tests.support.servers.data_http import HttpReply, HttpRequest, http_server
from tests.support.servers.spy import spying

NOWHERE = Reach()


async def greeting(request: HttpRequest) -> HttpReply:
    return HttpReply(200, b"hello")


async def status_of(url: str, reach: Reach | None, proxy: str | None = None) -> int:
    async with open_session(reach) as session, session.get(url, proxy=proxy) as answer:
        return answer.status


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "localhost", "127.1", "2130706433", "0177.0.0.1", "0x7f.0.0.1", "0.0.0.0", "[::ffff:7f00:1]"]
)
async def test_forbidden_address_however_written_is_not_connected(host: str) -> None:
    async with spying() as spy:
        with pytest.raises((NotAllowed, aiohttp.InvalidURL)):
            await status_of(f"http://{host}:{spy.port}/", NOWHERE)
        assert spy.connections == 0


async def test_name_that_resolves_to_a_forbidden_address_is_not_connected(monkeypatch: pytest.MonkeyPatch) -> None:
    def getaddrinfo(host: str, port: int, *_: object, **__: object) -> list[tuple[Any, ...]]:
        return [(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", ("127.0.0.1", port))]

    async with spying() as spy:
        monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
        with pytest.raises(NotAllowed, match=r"data\.example"):
            await status_of(f"http://data.example:{spy.port}/", NOWHERE)
        assert spy.connections == 0


async def test_redirect_does_not_lead_to_a_forbidden_address() -> None:
    async with spying() as spy:

        async def redirect(request: HttpRequest) -> HttpReply:
            return HttpReply(302, headers={"Location": f"http://127.0.0.1:{spy.port}/"})

        async with http_server(redirect) as url:
            with pytest.raises(NotAllowed):
                await status_of(url.replace("127.0.0.1", "localhost"), Reach(hosts=frozenset({"localhost"})))
        assert spy.connections == 0


async def test_proxy_is_connected_where_it_is_and_asked_for_what_is_allowed() -> None:
    async with spying() as spy:
        proxy = f"http://127.0.0.1:{spy.port}"
        with pytest.raises(NotAllowed):
            await status_of("http://127.0.0.1:1/", NOWHERE, proxy)
        assert spy.connections == 0
        assert await status_of("http://93.184.216.34:1/", NOWHERE, proxy) == 418


async def test_connection_that_is_reset_at_once_is_a_failed_request(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    connect = loop.sock_connect
    with socket.create_server(("127.0.0.1", 0)) as listener:

        async def connect_to_be_reset(connecting: socket.socket, address: Any) -> None:
            await connect(connecting, address)
            accepted, _ = listener.accept()
            accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            accepted.close()

        monkeypatch.setattr(loop, "sock_connect", connect_to_be_reset)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(aiohttp.ClientError):
            await status_of(url, Reach().of_coordinator(url))


async def test_home_that_was_connected_is_met() -> None:
    async with http_server(greeting) as url:
        reach = Reach().of_coordinator(url)
        assert await status_of(url, reach) == 200
    assert reach.met == {AddressKind.LOOPBACK}


async def test_first_address_that_does_not_answer_costs_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    real = socket.getaddrinfo

    def getaddrinfo(host: str, port: int, *args: Any, **options: Any) -> list[tuple[Any, ...]]:
        silent = (socket.AF_INET6, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", ("100::1", port, 0, 0))
        return [silent, *real("127.0.0.1", port, *args, **options)]

    async with http_server(greeting) as url:
        monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
        assert await status_of(url.replace("127.0.0.1", "two.example"), None) == 200


@pytest.mark.parametrize("proxy", ["http://h:99999", "socks5://h:1"])
def test_proxy_that_cannot_be_used_is_refused(proxy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", proxy)
    with pytest.raises(InvalidInput, match="for https:// cannot be used"):
        Proxies()


def test_proxy_is_not_named_for_what_no_proxy_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "proxy.example:3128")
    monkeypatch.setenv("no_proxy", "near.example")
    proxies = Proxies()
    assert proxies.of(URL("http://far.example/")) == URL("http://proxy.example:3128")
    assert proxies.of(URL("http://near.example/")) is None


def test_file_without_certificates_is_refused(tmp_path: Any) -> None:
    (tmp_path / "none.pem").write_text("none")
    with pytest.raises(InvalidInput, match="--tls-ca"):
        open_session(trust=str(tmp_path / "none.pem"))
