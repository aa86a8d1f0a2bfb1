"""Many members of one coordinator: the time of their joins, each durable, and of a new version to reach them all."""

import asyncio
import json
import statistics
import subprocess
import time
from pathlib import Path

from benchmarks.bare_server import DOCUMENT_BYTES
from benchmarks.figures import Figure
from benchmarks.load import Connection, all_answered, connections, request_bytes
from benchmarks.servers import RUN_ID, CoordinatorProcess, bare_process, coordinator_process
from epochal.coordinator.machine.records import replay
from epochal.coordinator.store.open import open_store_reader
from epochal.coordinator_client.client_key import ClientKey
from epochal.runtime.connections.shedding import LOOPBACK
from epochal.state.codecs.codecs_by_name import SPOKEN
from epochal.state.errors import EpochalError
from epochal.state.messages.requests import Capabilities, JoinRequest, join_message
from epochal.state.wire import canonical_json

JOINS = 1000
POLLERS = 2000
VERSIONS = 6
"""Number of new versions, which are made by pausing and resuming the run."""
RUN = f"/v1/runs/{RUN_ID}"


def memory_bytes(pid: int) -> int:
    """Return the resident memory of a process."""
    found = subprocess.run(["ps", "-o", "rss=", "-p", str(pid)], check=True, capture_output=True, text=True)
    return int(found.stdout) * 1024


async def _ask(connection: Connection, request: bytes) -> bytes:
    await all_answered([connection.send(request)])
    if connection.status >= 400:
        raise EpochalError(f"the server answered {connection.status}: {connection.body[:300]!r}")
    return connection.body


async def _challenges(opened: list[Connection], keys: list[ClientKey]) -> list[bytes]:
    """Return a signed join request for each key."""
    requests = []
    for connection, key in zip(opened, keys, strict=True):
        body = json.dumps({"public_key": key.public_key}).encode()
        challenge = json.loads(await _ask(connection, request_bytes("POST", f"{RUN}/clients/challenge", body)))
        nonce, public_key = challenge["nonce"], key.public_key
        signature = key.sign(join_message(RUN_ID, nonce, public_key, challenge["coordinator_key"], LOOPBACK))
        join = JoinRequest(public_key, nonce, signature, LOOPBACK, Capabilities(codecs=SPOKEN))
        requests.append(request_bytes("POST", f"{RUN}/clients", canonical_json(join)))
    return requests


async def join_all(opened: list[Connection], keys: list[ClientKey]) -> tuple[float, list[str]]:
    """Return the seconds until all of them are members, and their session tokens."""
    requests = await _challenges(opened, keys)
    start_s = time.perf_counter()
    await all_answered([connection.send(request) for connection, request in zip(opened, requests, strict=True)])
    took_s = max(connection.answered_s for connection in opened) - start_s
    refused = [connection for connection in opened if connection.status != 200]
    if refused:
        raise EpochalError(f"{len(refused)} joins were refused; the first: {refused[0].body[:300]!r}")
    return took_s, [json.loads(connection.body)["session_token"] for connection in opened]


async def _spread(opened: list[Connection], polls: list[bytes], operator: Connection, change: bytes) -> float:
    """Return the seconds from the request that makes a version to the last answer with it."""
    answers = [connection.send(poll) for connection, poll in zip(opened, polls, strict=True)]
    await _everyone_waits(operator)
    start_s = time.perf_counter()
    changed = operator.send(change)
    await all_answered([*answers, changed])
    wrong = [connection for connection in opened if connection.status != 200]
    if wrong or operator.status >= 400:
        raise EpochalError(f"{len(wrong)} long polls got no document; the operator got {operator.status}")
    return max(connection.answered_s for connection in opened) - start_s


async def _everyone_waits(operator: Connection) -> None:
    """Wait until all polls have reached the server, which takes requests in order: a later request is answered."""
    for _ in range(10):
        await _ask(operator, request_bytes("GET", "/healthz"))
        await asyncio.sleep(0.05)


async def _coordinator_spreads(process: CoordinatorProcess, opened: list[Connection], tokens: list[str]) -> list[float]:
    spreads = []
    async with connections(process.url, 1) as (operator,):
        for number in range(VERSIONS):
            document = json.loads(await _ask(operator, request_bytes("GET", RUN)))
            path = f"{RUN}?after={document['version']}&lineage={document['lineage']}&wait_s=20"
            polls = [request_bytes("GET", path, token=token) for token in tokens]
            action = "pause" if number % 2 == 0 else "resume"
            change = request_bytes("POST", f"{RUN}/{action}", token=process.admin_token)
            spreads.append(await _spread(opened, polls, operator, change))
    return spreads


async def _bare_spreads(url: str) -> list[float]:
    poll, publish = request_bytes("GET", "/poll"), request_bytes("POST", "/publish")
    async with connections(url, POLLERS) as opened, connections(url, 1) as (operator,):
        return [await _spread(opened, [poll] * POLLERS, operator, publish) for _ in range(VERSIONS)]


async def _bare_joins(url: str, keys: list[ClientKey]) -> float:
    message = b"x" * 200
    bodies = [bytes.fromhex(key.public_key) + bytes.fromhex(key.sign(message)) + message for key in keys]
    requests = [request_bytes("POST", "/join", body) for body in bodies]
    async with connections(url, len(keys)) as opened:
        start_s = time.perf_counter()
        await all_answered([connection.send(request) for connection, request in zip(opened, requests, strict=True)])
        return max(connection.answered_s for connection in opened) - start_s


async def _kept_members(run_dir: Path) -> int:
    """Return the number of members that a start would find after the process was killed."""
    members = 0
    async for segment in open_store_reader(str(run_dir)).journal.history():
        members = len(replay(segment).run.members)
    return members


async def measure(folder: Path) -> list[Figure]:
    """Measure 1,000 joins, then 2,000 members that wait for a version."""
    keys = [ClientKey.from_seed(number.to_bytes(32, "big")) for number in range(1, POLLERS + 1)]
    async with coordinator_process(folder, init_min_clients=POLLERS + 1) as process:
        empty_bytes = memory_bytes(process.child.process.pid)
        async with connections(process.url, POLLERS) as opened:
            joined_s, tokens = await join_all(opened[:JOINS], keys[:JOINS])
            _, more = await join_all(opened[JOINS:], keys[JOINS:])
        async with connections(process.url, POLLERS) as opened:
            spreads = await _coordinator_spreads(process, opened, tokens + more)
            waiting_bytes = memory_bytes(process.child.process.pid)
        process.child.kill()
        await process.child.wait(10)
    kept = await _kept_members(process.run_dir)
    if kept != POLLERS:
        raise EpochalError(f"{kept} of {POLLERS} members were kept")
    async with bare_process(folder) as url:
        bare_join_s = await _bare_joins(url, keys[:JOINS])
        bare = statistics.median(await _bare_spreads(url))
    last = statistics.median(spreads)
    join_name = "bare uvicorn, a signature and an fsync each"
    poll_name = f"bare uvicorn, an event and {DOCUMENT_BYTES:,} constant bytes"
    return [
        Figure(f"{JOINS:,} joins, all kept", joined_s, "s", "≤ 5 s", bare_join_s, join_name),
        Figure(f"a version reaches {POLLERS:,} waiting members", last, "s", "≤ 0.2 s", bare, poll_name),
        Figure("memory per waiting member, membership included", (waiting_bytes - empty_bytes) / POLLERS / 1024, "KiB"),
    ]
