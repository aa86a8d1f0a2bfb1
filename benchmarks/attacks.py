"""Attackers, each a process of its own: `python -m benchmarks.attacks NAME ARGUMENTS…`, until it is killed.

They speak the real protocols to servers on this machine, and are bounded in number. An attacker prints
`attacking COUNT` once everything that it opens, a number of COUNT, is open.
"""

import asyncio
import contextlib
import resource
import secrets
import selectors
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from dataclasses import replace
from ipaddress import IPv4Address
from typing import Any
from urllib.parse import urlsplit

from epochal.coordinator_client.api import DocumentMark
from epochal.coordinator_client.http import CoordinatorClient
from epochal.data_providers.tcp.frames import CONNECTION_REQUEST, FrameKind, Hello, get_frame, json_frame
from epochal.runtime.retry import RetryPolicy
from epochal.state.assignment import assign_data_for_state
from epochal.state.documents import RoundHead, RunDocument
from epochal.state.errors import CoordinatorUnreachable, EpochalError, Refused
from epochal.state.intervals import DataIds
from epochal.state.messages.requests import (
    Attestation,
    Capabilities,
    JoinRequest,
    ReadyReport,
    ResultCommitment,
    ResultMetrics,
)
from epochal.state.phase_names import RunState
from epochal.state.wire import ClientId, sha256_hex
from tests.support.drive.hand_client import HandClient

ATTACKING = "attacking"
OPEN_AT_ONCE = 250
OPEN_TIMEOUT_S = 1.5
"""Time after which a connection that the server does not accept is given up."""
DRIP_S = 2.0
"""Seconds between two bytes of a dripping upload."""
WITHDRAW_S = 10.0
"""Seconds between two times that half of the members of dripping uploads withdraw."""
DRIPPED_BYTES = 100_000
TOP_UP_S = 1.0
POLL_S = 5.0
TICK_S = 0.01
FIRST_ADDRESS = IPv4Address("127.1.0.0")
ADDRESSES = 2**22
UNFINISHED_BODY = (
    b"POST /v1/runs/benchmark/clients/challenge HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{"
)


class Attacker(HandClient):
    """A member that follows the run, says that it is ready, and delivers nothing.

    Attributes:
        share: the share that it claims.
    """

    def __init__(self, api: CoordinatorClient, number: int, share: int = 1) -> None:
        super().__init__(api, number)
        self.share = share

    async def join_request(self, invitation: str | None = None) -> JoinRequest:
        """Return a join request that claims the share."""
        request = await super().join_request(invitation)
        return replace(request, capabilities=Capabilities(self.share, "silent"))

    async def follow(self) -> AsyncIterator[RunDocument]:
        """Yield each new run document, joining again whenever the coordinator wants that."""
        mark: DocumentMark | None = None
        while True:
            try:
                if self.session is None:
                    await self.join()
                document = await self.api.run_document(mark, POLL_S)
            except Refused as refusal:
                if refusal.kind == "unauthorized":
                    self.session = None
                await asyncio.sleep(TOP_UP_S)
                continue
            except CoordinatorUnreachable:
                await asyncio.sleep(TOP_UP_S)
                continue
            if document is not None:
                mark = DocumentMark(document.lineage, document.version)
                yield document

    async def be_ready(self, document: RunDocument) -> None:
        """Report the replica of the checkpoint; the run refuses it where it has moved on."""
        checkpoint = document.checkpoint
        if checkpoint is None or checkpoint.step != document.step - 1:
            return
        fingerprint = document.data_fingerprint or "made up"
        with contextlib.suppress(EpochalError):
            await self.api.report(ReadyReport(checkpoint.step, checkpoint.replica_digest, fingerprint))


async def _member(url: str, number: int, share: int = 1) -> Attacker:
    api = await CoordinatorClient.connect(url, RetryPolicy(attempts=3))
    attacker = Attacker(api, number, share)
    await attacker.join()
    return attacker


async def silent(url: str, share: str = "1") -> None:
    """Be one member that claims the share, is ready in every Warmup, polls, and never delivers."""
    attacker = await _member(url, 201, int(share))
    _attacking(1)
    async for document in attacker.follow():
        if document.run_state is RunState.WARMUP:
            await attacker.be_ready(document)


async def chatty(url: str) -> None:
    """Be one member that sends every report that it can think of, as fast as it is answered."""
    attacker = await _member(url, 202)
    _attacking(1)

    async def shout() -> None:
        number = 0
        while True:
            number += 1
            document = await attacker.api.run_document(None, 0)
            if document is None or document.round is None:
                await asyncio.sleep(0.05)
                continue
            head, digest = document.round, f"{number:064x}"
            received = ("f" if number % 2 else "1") * 1000
            reports = (
                Attestation(head.step, head.attempt, sha256_hex(b"x"), received),
                ResultCommitment(head.step, head.attempt, sha256_hex(digest.encode()), 100, ResultMetrics(None, 0, 0)),
                ReadyReport(head.step - 1, sha256_hex(b"x"), digest),
            )
            for report in reports:
                with contextlib.suppress(Refused):
                    await attacker.api.report(report)
            if number % 5 == 0:
                with contextlib.suppress(Refused):
                    await attacker.join()

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(_shouting(shout))
        async for document in attacker.follow():
            if document.run_state is RunState.WARMUP:
                await attacker.be_ready(document)


async def _shouting(shout: Callable[[], Coroutine[Any, Any, None]]) -> None:
    while True:
        try:
            await shout()
        except EpochalError:
            await asyncio.sleep(TOP_UP_S)


async def drip(url: str, members: str, per_member: str) -> None:
    """Have members, in each round that gives them work, commit to results and begin uploads that drip; say how many.

    Now and then half of the members withdraw while their uploads run, and join again. The connections stay as long as
    the coordinator lets them.
    """
    attackers = {
        attacker.client_id: attacker for attacker in [await _member(url, n) for n in range(1, int(members) + 1)]
    }
    address = urlsplit(url)
    has_begun = False
    withdraw_at_s = 0.0
    async with asyncio.TaskGroup() as tasks:
        async for document in next(iter(attackers.values())).follow():
            if document.run_state is RunState.WARMUP:
                for attacker in attackers.values():
                    tasks.create_task(attacker.be_ready(document))
            if document.run_state is not RunState.ROUND_TRAIN or document.round is None:
                continue
            committed = await _committed(attackers, document.round)
            uploads = [request for _, request in committed for _ in range(int(per_member))]
            if not uploads:
                continue
            tasks.create_task(_drip_all(address.hostname or "", address.port or 0, uploads))
            if time.monotonic() >= withdraw_at_s:
                withdraw_at_s = time.monotonic() + WITHDRAW_S
                for attacker, _ in committed[::2]:
                    with contextlib.suppress(EpochalError):
                        await attacker.api.withdraw()
                        await attacker.join()
            if not has_begun:
                has_begun = True
                _attacking(len(uploads))


async def _committed(attackers: Mapping[ClientId, Attacker], head: RoundHead) -> list[tuple[Attacker, bytes]]:
    """Return the attackers whose results of this round are awaited now, each with its upload's head."""
    some = next(iter(attackers.values()))
    try:
        roster, work = await some.api.roster(head.roster_sha256), await some.api.work(head.work_sha256)
    except EpochalError:  # the round is long over
        return []
    assigned = assign_data_for_state(roster, work, head.assignment_seed, head.seed)

    async def commit(attacker: Attacker) -> tuple[Attacker, bytes] | None:
        digest = sha256_hex(f"{attacker.client_id} {head.step} {head.attempt}".encode())
        commitment = ResultCommitment(head.step, head.attempt, digest, DRIPPED_BYTES, ResultMetrics(None, 0, 0.0))
        try:
            await attacker.api.report(commitment)
        except EpochalError:  # the round is over
            return None
        lines = (f"PUT /v1/blobs/{digest} HTTP/1.1", "Host: localhost", f"Authorization: Bearer {attacker.token}")
        return attacker, "\r\n".join((*lines, f"Content-Length: {DRIPPED_BYTES}", "", "")).encode()

    workers = [attackers[client_id] for client_id, batches in assigned.items() if batches and client_id in attackers]
    async with asyncio.TaskGroup() as tasks:
        commits = [tasks.create_task(commit(attacker)) for attacker in workers]
    return [found for task in commits if (found := task.result()) is not None]


async def _drip_all(host: str, port: int, uploads: list[bytes]) -> None:
    """Send a byte of each upload now and then, until the server has closed all of them."""
    async with _sockets(host, port, uploads) as opened:
        while any(not writer.is_closing() for _, writer in opened):
            for _, writer in opened:
                if not writer.is_closing():
                    writer.write(b"x")
            await asyncio.sleep(DRIP_S)


async def polls(url: str, run_id: str, count: str) -> None:
    """Hold anonymous long polls, each begun again when it is answered."""
    address = urlsplit(url)
    request = f"GET /v1/runs/{run_id}?after=1000000000&wait_s=10 HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
    await _hold(address.hostname or "", address.port or 0, [request] * int(count), again=True)


async def sockets(url: str, count: str) -> None:
    """Hold connections, each with one byte of an unfinished request."""
    address = urlsplit(url)
    await _hold(address.hostname or "", address.port or 0, [UNFINISHED_BODY] * int(count))


async def fresh_sockets(url: str, count: str, per_s: str) -> None:
    """Open connections with unfinished requests from addresses all over loopback, each anew when it is shed.

    At most `per_s` are opened in a second, and at most `count` are held. It uses sockets alone, to be cheap itself.
    """
    address = urlsplit(url)
    most, seconds_each, opened = int(count), 1 / int(per_s), 0
    heads = (b"GET /v1/runs/benchmark HTTP/1.1\r\nHost: loc", UNFINISHED_BODY)
    _raise_files_limit()
    held, due_s, has_begun = selectors.DefaultSelector(), time.monotonic(), False
    while True:
        while due_s <= time.monotonic() and len(held.get_map()) < most:
            due_s, opened = due_s + seconds_each, opened + 1
            with contextlib.suppress(OSError):
                held.register(*_opened_from_anywhere(address.hostname or "", address.port or 0, heads[opened % 2]))
        due_s = max(due_s, time.monotonic() - TICK_S)
        for key, _ in held.select(TICK_S):
            connection, head = key.fileobj, key.data
            assert isinstance(connection, socket.socket)
            with contextlib.suppress(OSError):
                if head is not None:
                    connection.send(head)
                    held.modify(connection, selectors.EVENT_READ)
                    continue
                if connection.recv(4096):
                    continue
            held.unregister(connection)
            connection.close()
        if not has_begun and opened >= int(per_s):
            has_begun = True
            _attacking(opened)


def _opened_from_anywhere(host: str, port: int, head: bytes) -> tuple[socket.socket, int, bytes]:
    """Return a connection that is being opened, and what to register it for: sending the head."""
    connection = socket.socket()
    try:
        connection.setblocking(False)
        connection.bind((str(FIRST_ADDRESS + secrets.randbelow(ADDRESSES)), 0))
        connection.connect_ex((host, port))
    except OSError:
        connection.close()
        raise
    return connection, selectors.EVENT_WRITE, head


async def half_open(host: str, port: str, count: str) -> None:
    """Hold connections to a data server without a word, each opened again when it is closed."""
    await _hold(host, int(port), [b""] * int(count))


async def unread_samples(url: str, host: str, port: str, members: str, per_member: str) -> None:
    """Ask the data server for samples over and over, and never read the answers."""
    requests = []
    for number in range(1, int(members) + 1):
        attacker = await _member(url, number)
        assert attacker.session is not None
        hello = json_frame(
            FrameKind.HELLO, CONNECTION_REQUEST, Hello(attacker.api.run_id, attacker.session.data_ticket)
        )
        asked = b"".join(get_frame(request, DataIds(0, 15)) for request in range(1, 500))
        requests += [hello + asked] * int(per_member)
    await _hold(host, int(port), requests, reads=False)


async def unread_blobs(url: str, count: str) -> None:
    """Ask for the newest checkpoint over and over on many connections, and never read it."""
    attacker = await _member(url, 203)
    document = await attacker.api.run_document(None, 0)
    assert document is not None
    assert document.checkpoint is not None
    digest, token = document.checkpoint.blob_sha256, attacker.token
    lines = f"GET /v1/blobs/{digest} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\r\n"
    address = urlsplit(url)
    await _hold(address.hostname or "", address.port or 0, [lines.encode() * 4] * int(count), reads=False)


_Opened = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@contextlib.asynccontextmanager
async def _sockets(host: str, port: int, first: list[bytes]) -> AsyncIterator[list[_Opened]]:
    """Yield open connections, each with these first bytes sent; those that are refused are left out."""
    _raise_files_limit()
    opened: list[_Opened] = []

    async def open_one(data: bytes) -> None:
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(OPEN_TIMEOUT_S):
                reader, writer = await asyncio.open_connection(host, port, limit=1024)
            writer.write(data)
            opened.append((reader, writer))

    for start in range(0, len(first), OPEN_AT_ONCE):
        async with asyncio.TaskGroup() as tasks:
            for data in first[start : start + OPEN_AT_ONCE]:
                tasks.create_task(open_one(data))
    try:
        yield opened
    finally:
        for _, writer in opened:
            writer.transport.abort()


def _raise_files_limit() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


async def _hold(host: str, port: int, first: list[bytes], *, reads: bool = True, again: bool = False) -> None:
    """Hold connections with these first bytes; open those anew that the server closes, at most once a second each."""

    async def hold_one(data: bytes, opened: _Opened | None) -> None:
        while True:
            try:
                reader, writer = opened or await asyncio.open_connection(host, port, limit=1024)
                if opened is None:
                    writer.write(data)
                opened = None
                while reads and (answer := await reader.read(4096)):
                    if again and answer.startswith(b"HTTP/"):  # the first piece of an answer
                        writer.write(data)
                if not reads:
                    await asyncio.get_running_loop().create_future()
                writer.transport.abort()
            except OSError:
                opened = None
            await asyncio.sleep(TOP_UP_S)

    async with _sockets(host, port, first) as opened, asyncio.TaskGroup() as tasks:
        _attacking(len(opened))
        for data, connection in zip(first, opened, strict=False):
            if not reads:
                connection[1].transport.pause_reading()  # type: ignore[attr-defined]
            tasks.create_task(hold_one(data, connection))


def _attacking(count: int) -> None:
    sys.stdout.write(f"{ATTACKING} {count}\n")
    sys.stdout.flush()


ATTACKS: dict[str, Callable[..., Coroutine[Any, Any, None]]] = {
    attack.__name__: attack
    for attack in (silent, chatty, drip, polls, sockets, fresh_sockets, half_open, unread_samples, unread_blobs)
}

if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(ATTACKS[sys.argv[1]](*sys.argv[2:]))
