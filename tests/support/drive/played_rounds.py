"""Rounds of a served run, played by hand: each client delivers a result and attests all of them."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

from epochal.state.messages.requests import Attestation
from epochal.state.model.replica import Replica, replica_digest
from tests.support.bounds import BOUND_S
from tests.support.data.states import state_file
from tests.support.drive.served import DIFFERENCE, REPLICA, Served, WireClient, served, training


@dataclass
class Watched:
    """A run of which some rounds have ended, its clients, and where its page is."""

    coordinator: Served
    clients: list[WireClient]
    url: str

    async def asked(self, place: str) -> Any:
        """Return the API's own answer."""
        answer = await self.coordinator.http.get(f"{self.coordinator.run_url}{place}")
        assert answer.status_code == 200, answer.text
        return answer.json()


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
    await attest_all(coordinator, clients, replica)


async def attest_all(coordinator: Served, clients: Sequence[WireClient], replica: Replica) -> None:
    """Attest all results that have come, by client after client; return once the next round is under way."""
    service, digest = coordinator.service, replica_digest(replica)
    current = service.run.round
    assert current is not None
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


@contextlib.asynccontextmanager
async def played_run(rounds: int) -> AsyncIterator[tuple[Served, list[WireClient]]]:
    """Yield a run of which so many rounds have ended, and whose history is read, with its clients."""
    async with served(state_file(config__waiting_for_members_extra_time=0.001, config__total_steps=100)) as coordinator:
        clients = await training(coordinator)
        for _ in range(rounds):
            await play_round(coordinator, clients)
        await coordinator.insight.history.is_read.wait()
        yield coordinator, clients
