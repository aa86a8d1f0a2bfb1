"""The connections of data over HTTP: raw servers that misbehave, TLS, proxies, redirects; over real sockets."""

import asyncio
import base64
import socket
import ssl
from pathlib import Path

import pytest

import epochal.runtime.http.session
from epochal.data_providers.protocol import Rejected, SourceUnavailable
from epochal.data_providers.sources.byte_source import read
from epochal.data_providers.sources.http.requester import MAX_REDIRECTS
from epochal.data_providers.sources.http.source import HttpSource
from epochal.state.errors import InvalidInput
from tests.support.bounds import BOUND_S
from tests.support.data.data_http_client import ONE_TRY, TOKENS
from tests.support.servers.certificates import self_signed
from tests.support.servers.data_http import FileServer, HttpReply, HttpRequest, http_server
from tests.support.servers.ports import free_port
from tests.support.servers.raw_http import Speak, head_of, proxy, raw_server

DATA = TOKENS.tobytes()
HEAD = f"HTTP/1.1 206 Partial Content\r\nETag: x\r\nContent-Range: bytes 0-0/{len(DATA)}\r\n".encode()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    TOKENS.tofile(tmp_path / "a.bin")
    return tmp_path


def saying(*pieces: bytes) -> Speak:
    """Answers every request with these bytes, each piece by itself."""

    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await head_of(reader)
        for piece in pieces:
            writer.write(piece)
            await writer.drain()

    return speak


async def open_at(port: int, path: str = "a.bin") -> HttpSource:
    async with asyncio.timeout(BOUND_S):
        return await HttpSource.open([f"http://127.0.0.1:{port}/{path}"], ONE_TRY)


@pytest.mark.parametrize(
    "pieces",
    [
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n1;x=y\r\n" + DATA[:1] + b"\r\n0\r\n\r\n",),
        (HEAD + b"\r\n" + DATA[:1],),
        (b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + HEAD + b"Content-Length: 1\r\n\r\n" + DATA[:1],),
    ],
    ids=["chunked", "until it closes", "early hints"],
)
async def test_answer_in_any_form_of_http_1_is_read(pieces: tuple[bytes, ...]) -> None:
    async with raw_server(saying(*pieces)) as port:
        source = await open_at(port)
        assert source.files[0].size_bytes == len(DATA)
        assert await read(source, "a.bin", 0, 1) == DATA[:1]
        await source.aclose()


@pytest.mark.parametrize(
    ("pieces", "message"),
    [
        ((b"",), "closed the connection .does it serve https"),
        ((b"SSH-2.0-x\r\n\r\n",), "not HTTP"),
        ((b"HTTP/1.1 206 OK\r\nX: " + b"x" * 70_000,), "not HTTP"),
        ((HEAD + b"Content-Length: 5\r\n",), "closed the connection"),
    ],
    ids=["silence", "ssh", "endless head", "half a head"],
)
async def test_answer_that_is_not_http_is_unavailable(pieces: tuple[bytes, ...], message: str) -> None:
    async with raw_server(saying(*pieces)) as port:
        with pytest.raises(SourceUnavailable, match=message):
            await open_at(port)


async def test_server_that_sends_a_byte_now_and_then_is_given_up_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("epochal.data_providers.sources.http.requester.ANSWER_TIMEOUT_S", 0.2)

    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await head_of(reader)
        for byte in HEAD * 100:
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(0.02)

    async with raw_server(drip) as port:
        with pytest.raises(SourceUnavailable, match="in time"):
            await open_at(port)


async def test_server_that_does_not_finish_tls_is_given_up_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(epochal.runtime.http.session, "CONNECT_TIMEOUT_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as listening, pytest.raises(SourceUnavailable, match="in time"):
        await HttpSource.open([f"https://127.0.0.1:{listening.getsockname()[1]}/a.bin"], ONE_TRY)


async def test_connection_that_closed_while_idle_costs_no_attempt() -> None:
    connections = 0

    async def close_after_one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await head_of(reader)
        writer.write(HEAD + b"Content-Length: 1\r\n\r\n" + DATA[:1])
        await head_of(reader)  # the next request is not answered

    async with raw_server(close_after_one) as port:
        source = await open_at(port)
        for _ in range(3):
            assert await read(source, "a.bin", 0, 1) == DATA[:1]
        await source.aclose()
    assert connections == 4


# ---------------------------------------------------------------- TLS


@pytest.fixture
def certificate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ssl.SSLContext:
    """A server's own certificate, which the client trusts."""
    certificate, key = self_signed(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    return context


def serving(files: FileServer) -> Speak:
    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            lines = (await head_of(reader)).split("\r\n")
            headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
            reply = await files(HttpRequest(lines[0].split(" ")[1], {}, headers))
            fields = "".join(f"{name}: {value}\r\n" for name, value in reply.headers.items())
            head = f"HTTP/1.1 {reply.status} x\r\n{fields}Content-Length: {len(reply.body)}\r\n\r\n"
            writer.write(head.encode() + reply.body)
            await writer.drain()

    return speak


async def test_data_come_over_tls(folder: Path, certificate: ssl.SSLContext) -> None:
    async with raw_server(serving(FileServer(folder)), certificate) as port:
        source = await HttpSource.open([f"https://127.0.0.1:{port}/a.bin"], ONE_TRY)
        assert await read(source, "a.bin", 0, len(DATA)) == DATA
        await source.aclose()


async def test_certificate_of_another_name_is_refused(folder: Path, certificate: ssl.SSLContext) -> None:
    async with raw_server(serving(FileServer(folder)), certificate) as port:
        with pytest.raises(SourceUnavailable, match="certificate"):
            await HttpSource.open([f"https://localhost:{port}/a.bin"], ONE_TRY)


# ---------------------------------------------------------------- proxies


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_data_come_through_the_proxy_of_the_environment(
    folder: Path, certificate: ssl.SSLContext, scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    async with (
        raw_server(serving(FileServer(folder)), certificate if scheme == "https" else None) as port,
        raw_server(proxy(asked)) as proxy_port,
    ):
        monkeypatch.setenv(f"{scheme}_proxy", f"http://user:secret@127.0.0.1:{proxy_port}")
        monkeypatch.delenv("no_proxy", raising=False)
        source = await HttpSource.open([f"{scheme}://127.0.0.1:{port}/a.bin"], ONE_TRY)
        assert await read(source, "a.bin", 0, 100) == DATA[:100]
        await source.aclose()
        assert asked
        monkeypatch.setenv(f"{scheme}_proxy", f"http://other:wrong@127.0.0.1:{proxy_port}")
        with pytest.raises((SourceUnavailable, Rejected), match="407") as refused:
            await HttpSource.open([f"{scheme}://127.0.0.1:{port}/a.bin"], ONE_TRY)
        assert "wrong" not in str(refused.value)
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        asked.clear()
        source = await HttpSource.open([f"{scheme}://127.0.0.1:{port}/a.bin"], ONE_TRY)
        await source.aclose()
    assert not asked


async def test_proxy_of_an_unknown_kind_is_refused_unshown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "socks5://user:secret@127.0.0.1:1")
    with pytest.raises(InvalidInput, match="proxy") as refused:
        await HttpSource.open(["http://127.0.0.1:1/a.bin"], ONE_TRY)
    assert "secret" not in str(refused.value)


# ---------------------------------------------------------------- redirects


async def test_redirect_is_asked_for_once_in_a_while(folder: Path) -> None:
    files, moves = FileServer(folder), 0

    async def answer(request: HttpRequest) -> HttpReply:
        nonlocal moves
        if request.path == "/a.bin":
            moves += 1
            return HttpReply(302, headers={"Location": f"/signed/{moves}/a.bin"})
        if not request.path.startswith(f"/signed/{moves}/"):
            return HttpReply(403, b"the signature has expired")
        return await files(request)

    async with http_server(answer) as url:
        source = await HttpSource.open([f"{url}/a.bin"], ONE_TRY)
        for _ in range(3):
            assert await read(source, "a.bin", 0, 9) == DATA[:9]
        assert moves == 1
        moves += 1
        assert await read(source, "a.bin", 0, 9) == DATA[:9], "where it led is asked for again"
        await source.aclose()


@pytest.mark.parametrize(("redirects", "is_read"), [(MAX_REDIRECTS, True), (MAX_REDIRECTS + 1, False)])
async def test_redirects_are_followed_up_to_a_number(folder: Path, redirects: int, is_read: bool) -> None:
    files = FileServer(folder)

    async def answer(request: HttpRequest) -> HttpReply:
        number = int(request.query.get("n", "0"))
        return await files(request) if number == redirects else HttpReply(307, b"", {"Location": f"?n={number + 1}"})

    async with http_server(answer) as url:
        if is_read:
            source = await HttpSource.open([f"{url}/a.bin"], ONE_TRY)
            assert await read(source, "a.bin", 0, 9) == DATA[:9]
            await source.aclose()
        else:
            with pytest.raises(Rejected, match="redirects"):
                await HttpSource.open([f"{url}/a.bin"], ONE_TRY)


async def test_user_and_password_of_a_url_go_to_its_server_alone(folder: Path) -> None:
    home, abroad = FileServer(folder), FileServer(folder)
    async with http_server(abroad) as other_url:

        async def redirect(request: HttpRequest) -> HttpReply:
            await home(request)
            return HttpReply(302, headers={"Location": f"{other_url}/a.bin"})

        async with http_server(redirect) as url:
            source = await HttpSource.open([f"{url}/a.bin".replace("//", "//user:p%40ss@")], ONE_TRY)
            await read(source, "a.bin", 0, 9)
            await source.aclose()
    expected = "Basic " + base64.b64encode(b"user:p@ss").decode()
    assert home.requests[0].headers["authorization"] == expected
    assert abroad.requests
    assert not [request for request in abroad.requests if "authorization" in request.headers]


async def test_host_that_nobody_serves_is_unavailable() -> None:
    with pytest.raises(SourceUnavailable, match="connection refused"):
        await HttpSource.open([f"http://localhost:{free_port()}/a.bin"], ONE_TRY)
