"""TCP data servers over TLS, and tickets that must not travel in clear."""

import asyncio
import socket
import ssl
import tracemalloc
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from cryptography import x509

from epochal.data_providers.protocol import DatasetSpec, Rejected, SourceUnavailable
from epochal.data_providers.providers.local import LocalDataProvider
from epochal.data_providers.tcp.client_connection import DataServerAccess, DataServerAddress
from epochal.data_providers.tcp.data_client import TcpDataProvider
from epochal.data_providers.tcp.server import DataServer
from epochal.data_providers.tcp.server_limits import ServerLimits
from epochal.runtime.connections.shedding import Peer
from epochal.state.errors import InvalidInput
from epochal.state.intervals import DataIds
from tests.support.bounds import BOUND_S
from tests.support.data.data_files import SPEC, write_dataset
from tests.support.data.open_gate import OpenGate
from tests.support.servers.certificates import LOOPBACK, self_signed
from tests.support.servers.data_server import HOST, open_client, serving

ALL = DataIds(0, 40)
IDLE = 8
MOST_IDLE_BYTES = 48 * 1024


@pytest.fixture
def source(tmp_path: Path) -> LocalDataProvider:
    (tmp_path / "data").mkdir()
    return LocalDataProvider.open(write_dataset(tmp_path / "data"), SPEC)


def tls_for(folder: Path, holder: x509.GeneralName = LOOPBACK) -> tuple[ssl.SSLContext, str]:
    """Return a server's side of TLS, and the file with which clients trust it."""
    certificate, key = self_signed(folder, holder)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    return context, str(certificate)


def trusting(trust: bool | str) -> DataServerAccess:
    return DataServerAccess(lambda: "good", trust=trust)


async def test_large_answers_over_tls_arrive_whole(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(np.arange(2**22, dtype="<u2").tobytes())
    spec = DatasetSpec(2, 2**20)
    source = LocalDataProvider.open(tmp_path / "a.bin", spec)
    tls, certificate = tls_for(tmp_path)
    async with serving(source, tls=tls, spec=spec) as (_, address), asyncio.timeout(BOUND_S):
        assert str(address) == f"tls://{HOST}:{address.port}"
        client = await TcpDataProvider.open(address, trusting(certificate))
        expected = (await source.get_samples(DataIds(0, 3))).input_ids
        assert np.array_equal((await client.get_samples(DataIds(0, 3))).input_ids, expected)
        await client.aclose()


async def test_server_that_is_not_trusted_gets_no_ticket(tmp_path: Path, source: LocalDataProvider) -> None:
    tls, _ = tls_for(tmp_path)
    async with serving(source, tls=tls) as (_, address):
        with pytest.raises(Rejected, match=r"not trusted .*self-signed.*--tls-ca"):
            await TcpDataProvider.open(address, trusting(True))


async def test_certificate_of_another_host_is_not_trusted(tmp_path: Path, source: LocalDataProvider) -> None:
    tls, certificate = tls_for(tmp_path, x509.DNSName("elsewhere.example"))
    async with serving(source, tls=tls) as (_, address):
        with pytest.raises(Rejected, match=r"not trusted .*; give the address with a name that the certificate has"):
            await TcpDataProvider.open(address, trusting(certificate))


async def test_file_without_certificates_is_the_users_fault(tmp_path: Path, source: LocalDataProvider) -> None:
    (tmp_path / "empty.pem").write_text("nothing")
    async with serving(source, tls=tls_for(tmp_path)[0]) as (_, address):
        with pytest.raises(InvalidInput, match=r"--tls-ca .*empty\.pem"):
            await TcpDataProvider.open(address, trusting(str(tmp_path / "empty.pem")))


async def test_client_without_tls_is_told_the_right_address(tmp_path: Path, source: LocalDataProvider) -> None:
    async with serving(source, tls=tls_for(tmp_path)[0]) as (_, address):
        with pytest.raises(SourceUnavailable, match="if it speaks TLS, its address is tls://"):
            await open_client(replace(address, tls=False))


async def test_client_with_tls_is_told_the_right_address(source: LocalDataProvider) -> None:
    async with serving(source) as (_, address):
        with pytest.raises(Rejected, match="does not speak TLS: its address is tcp://"):
            await open_client(replace(address, tls=True))


async def test_handshakes_that_do_not_end_keep_nobody_out(tmp_path: Path, source: LocalDataProvider) -> None:
    tls, certificate = tls_for(tmp_path)
    limits = ServerLimits(shutdown_timeout_s=0.2)
    async with serving(source, limits=limits, tls=tls) as (server, address), asyncio.timeout(BOUND_S):
        with ExitStack() as held:
            for _ in range(30):
                held.enter_context(socket.create_connection((HOST, address.port)))
            client = await TcpDataProvider.open(address, trusting(certificate))
            assert (await client.get_samples(ALL)).sample_count == ALL.count
            assert server.connections.count(Peer.STRANGER) == 30
            await client.aclose()


@pytest.fixture
def own_address() -> Iterator[str]:
    """An address of this machine that is not loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing
        except OSError:
            pytest.skip("this machine has no address but loopback")
        yield probe.getsockname()[0]


async def test_ticket_goes_to_another_machine_in_clear_only_with_consent(
    own_address: str, source: LocalDataProvider
) -> None:
    tickets: list[str] = []

    def ticket() -> str:
        tickets.append("good")
        return "good"

    async with asyncio.TaskGroup() as tasks:
        server = DataServer(source, SPEC, OpenGate())
        address = DataServerAddress(own_address, await server.start(tasks, own_address, 0), "a-run")
        with pytest.raises(Rejected, match="ticket would travel unencrypted; write tls://"):
            await TcpDataProvider.open(address, DataServerAccess(ticket))
        assert not tickets
        client = await TcpDataProvider.open(address, DataServerAccess(ticket, insecure=True))
        assert (await client.get_samples(ALL)).sample_count == ALL.count
        await client.aclose()
        await server.aclose()


async def test_last_error_arrives_over_tls_too(tmp_path: Path, source: LocalDataProvider) -> None:
    tls, certificate = tls_for(tmp_path)
    async with serving(source, tls=tls) as (server, address), asyncio.timeout(BOUND_S):
        client = await TcpDataProvider.open(address, trusting(certificate))
        connection = client._connection
        await server.aclose()
        while connection.lost is None:  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0)
        assert "the data server is closing" in connection.lost.message
        await client.aclose()


def shaken_hands(stack: ExitStack, port: int, certificate: str) -> None:
    """Connect over TLS, say no more, and stay. Blocks."""
    connection = stack.enter_context(socket.create_connection((HOST, port)))
    context = ssl.create_default_context(cafile=certificate)
    stack.enter_context(context.wrap_socket(connection, server_hostname=HOST))


async def test_idle_connection_over_tls_holds_little_memory(tmp_path: Path, source: LocalDataProvider) -> None:
    tls, certificate = tls_for(tmp_path)
    async with serving(source, tls=tls) as (server, address), asyncio.timeout(BOUND_S):
        with ExitStack() as held:
            await asyncio.to_thread(shaken_hands, held, address.port, certificate)
            tracemalloc.start()
            try:
                for _ in range(IDLE):
                    await asyncio.to_thread(shaken_hands, held, address.port, certificate)
                assert server.connections.count(Peer.STRANGER) == 1 + IDLE
                assert tracemalloc.get_traced_memory()[0] < IDLE * MOST_IDLE_BYTES
            finally:
                tracemalloc.stop()
