"""Rounds of a served run, played by hand: each client delivers a result and attests all of them."""

import asyncio
from collections.abc import Sequence

from epochal.state.messages.requests import Attestation
from epochal.state.model.replica import Replica, replica_digest
from tests.support.bounds import BOUND_S
from tests.support.drive.served import DIFFERENCE, REPLICA, Served, WireClient


async def play_round(coordinator: Served, clients: Sequence[WireClient], replica: Replica = REPLICA) -> None:
    """Play the round under way; return once the next one is."""
    service = coordinator.service
    current = service.run.round
    assert current is not None
    for client in clients:
        if current.tasks.plan.assignments[client.client_id]:
            data = client.result(replica, DIFFERENCE)
            assert (await client.commit(data)).status_code == 200
            assert (await client.put_blob(data)).status_code == 201
    digest = replica_digest(replica)
    for client in clients:
        under_way = service.run.round
        if under_way is None or (under_way.number.step, under_way.number.attempt) != (
            current.number.step,
            current.number.attempt,
        ):
            break
        attestation = Attestation(
            current.number.step, current.number.attempt, digest, f"{under_way.results.verified_bits or 0:x}"
        )
        assert (await client.send("POST", "/attestations", attestation)).status_code == 200
    async with asyncio.timeout(BOUND_S):
        while service.run.progress.step == current.number.step:
            await service.readers.wait_published(service.published.version, None, 1.0)
