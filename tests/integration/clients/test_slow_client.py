"""A run whose slowest client is slow for a reason says which client it is, and what it is slow at."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from epochal.state.messages.history_rows import ClientFigures, RoundDetail
from epochal.state.shown.explanation import SpeedExplanation
from epochal.state.wire import parse_document
from epochal.tools.testnet.child_processes import Child
from tests.support.drive.processes import RealRun, in_training, prepared_run
from tests.support.servers.limited_link import LimitedLink, ServerBuckets, limited_link

STATE: dict[str, Any] = {
    "config__init_min_clients": 3,
    "config__min_clients": 3,
    "config__global_batch_size_start": 12,
    "config__global_batch_size_end": 12,
    "config__total_steps": 1000,
    "config__max_round_train_time": 60,
    "model__LLM__ngram": {"context": 2, "embedding": 16, "hidden": 150},
    "merge__codec": "float32",
}
UP_BYTES_PER_S = 50_000.0
ROUNDS = 5


class NamedRun:
    """A run of three clients, each with a name and behind a link of its own."""

    def __init__(self, run: RealRun) -> None:
        self.run = run
        self.clients: list[Child] = []
        self.links: list[LimitedLink] = []

    async def get(self, place: str) -> bytes:
        answer = await self.run.http.get(f"/v1/runs/{self.run.watch.api.run_id}/history{place}")
        assert answer.status_code == 200, answer.text
        return answer.content

    async def explanation(self) -> SpeedExplanation:
        found: SpeedExplanation = parse_document(SpeedExplanation, await self.get("/explanation"))
        return found

    async def figures(self, number: int, client: int) -> ClientFigures:
        detail: RoundDetail = parse_document(RoundDetail, await self.get(f"/rounds/{number}"))
        client_id = self.run.client_id_of(self.clients[client])
        return next(found for found in detail.clients if found.client_id == client_id)


@pytest.fixture
async def named(tmp_path: Path) -> AsyncIterator[NamedRun]:
    server = ServerBuckets()
    async with contextlib.AsyncExitStack() as stack:
        run = await stack.enter_async_context(prepared_run(tmp_path, **STATE))
        found = NamedRun(run)
        await run.start_coordinator()
        direct = run.url
        for name in ("lab-a", "lab-b", "lab-c"):
            found.links.append(await stack.enter_async_context(limited_link(int(direct.rpartition(":")[2]), server)))
            run.url = found.links[-1].url
            found.clients.append(await run.start_client("--name", name))
        run.url = direct
        yield found


@pytest.mark.nightly
async def test_slow_upload_is_named_with_client_and_rate(named: NamedRun) -> None:
    document = await named.run.until(in_training(2))
    named.links[1].up.bytes_per_s = UP_BYTES_PER_S
    await named.run.until(in_training(document.step + ROUNDS))
    slow, quick = await named.figures(ROUNDS - 1, 1), await named.figures(ROUNDS - 1, 0)
    assert slow.upload_s is not None
    assert slow.uploaded_bytes is not None
    assert slow.uploaded_bytes / slow.upload_s == pytest.approx(UP_BYTES_PER_S, rel=0.3)
    assert quick.upload_s is not None
    assert quick.upload_s < slow.upload_s / 4
    found = await named.explanation()
    client_id = named.run.client_id_of(named.clients[1])
    largest = found.parts[0]
    assert (largest.kind, largest.client_id, largest.name) == ("upload", client_id, "lab-b"), found.sentence
    assert f"without the upload of client {client_id[:12]} ('lab-b') at " in found.sentence
    assert largest.bytes_per_s == pytest.approx(UP_BYTES_PER_S, rel=0.3)
    status = await named.run.status()
    assert status.explanation.endswith(".")
    assert status.waiting
