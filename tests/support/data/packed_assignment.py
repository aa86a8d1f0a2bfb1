"""The packed rows of a data assignment as a client of one process has them, and records to pack."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np

from epochal.batching.packing.packed_batches import Packing
from epochal.batching.round_plan import RoundPlan
from epochal.data_providers.fetcher import DataFetcher, FetchSettings
from epochal.data_providers.open_data import open_provider
from epochal.data_providers.protocol import TokenBatch
from epochal.runtime.permissions import OWNERS
from epochal.runtime.retry import system_jitter
from epochal.runtime.worker_thread import InlineWorker
from epochal.state.config.state_file import StateFile


def write_answers(path: Path, count: int, bad: int | None = None) -> None:
    """Records of a prompt, from which nothing is learned, and a completion; record `bad` is of another form."""
    lengths = np.random.default_rng(count).integers(0, 6, (count, 2)).tolist()
    records = [{"prompt": "what?" * (one + 1), "completion": "so. " * other} for one, other in lengths]
    lines = [json.dumps(record if number != bad else {"question": 1}) for number, record in enumerate(records)]
    path.write_text("\n".join(lines))


async def packed_data(state: StateFile, plan: RoundPlan) -> AsyncIterator[TokenBatch]:
    """The rows of the plan's assignment."""
    provider = await open_provider(state, lambda: "", OWNERS)
    packing = Packing.of(state, 256, InlineWorker(), OWNERS)
    assert packing is not None
    async with asyncio.TaskGroup() as group:
        fetcher = DataFetcher(provider, FetchSettings.of(state), system_jitter, 256)
        rows = [row async for row in packing.rows_of(plan.assignment, fetcher.fetch_data(plan.assignment, group))]
    await provider.aclose()
    for row in rows:
        yield row
