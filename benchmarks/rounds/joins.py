"""Many members join a coordinator at once, each with a key of its own."""

import json
import time

from benchmarks.load import Connection, all_answered, request_bytes
from benchmarks.servers import RUN_ID
from epochal.coordinator_client.client_key import ClientKey
from epochal.runtime.connections.shedding import LOOPBACK
from epochal.state.codecs.codecs_by_name import SPOKEN
from epochal.state.errors import EpochalError
from epochal.state.messages.requests import Capabilities, JoinRequest, join_message
from epochal.state.wire import canonical_json

RUN = f"/v1/runs/{RUN_ID}"


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
