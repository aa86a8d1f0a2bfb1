"""A round of three clients that do no arithmetic, as real processes, beside its bare requests and fsyncs."""

import asyncio
import statistics
import time
from pathlib import Path

from benchmarks.figures import Figure
from benchmarks.load import Connection, all_answered, connections, request_bytes
from benchmarks.servers import bare_process, coordinator_process
from epochal.coordinator.machine.instructions import Instruction
from epochal.coordinator.machine.records import Kept, replay
from epochal.coordinator.machine.run import Run
from epochal.coordinator.machine.views import document_of
from epochal.coordinator.store.open import open_store_reader
from epochal.state.errors import EpochalError
from epochal.state.phase_names import RunState
from epochal.state.wire import canonical_json
from epochal.tools.testnet.child_processes import Children

CLIENTS = 3
ROUNDS = 100
FIRST_MEASURED = 10
"""The rounds before it warm the processes up."""
RUN_TIMEOUT_S = 120.0
RESULT_BYTES = 16_000
"""About as long as a result of the embedded model."""
BARE_NAME = f"{CLIENTS} x 2 reads and 2 fsynced writes on bare uvicorn"


async def round_starts(store: str) -> tuple[dict[int, float], int]:
    """Return when RoundTrain of each step began, from the journal in a store, and the size of the longest document."""
    starts: dict[int, float] = {}
    longest_bytes = 0

    def watch(run: Run, _instructions: tuple[Instruction, ...], _kept: Kept) -> None:
        nonlocal longest_bytes
        longest_bytes = max(longest_bytes, len(canonical_json(document_of(run, version=10**9))))
        if run.clock.phase is RunState.ROUND_TRAIN:
            starts.setdefault(run.progress.step, run.clock.phase_started_s)

    async for segment in open_store_reader(store).journal.history():
        replay(segment, watch)
    return starts, longest_bytes


async def _bare_round(connection: Connection) -> None:
    """Send a client's requests of a round: document; a result with its commitment; the results; an attestation."""
    read = request_bytes("GET", "/")
    for request in (
        read,
        request_bytes("POST", "/deliver", b"x" * RESULT_BYTES),
        read,
        request_bytes("POST", "/attest", b"x" * 300),
    ):
        await all_answered([connection.send(request)])


async def null_round_s(children: Children, url: str, store: str) -> tuple[float, int]:
    """Run `CLIENTS` null clients until the run in this store is finished, which has `ROUNDS` steps.

    Returns:
        the median time from one RoundTrain to the next, in seconds, and the size of the longest document.

    Raises:
        EpochalError: a client fails.
    """
    clients = [
        await children.start(f"client-{number}", "client", url, "--trainer", "null") for number in range(CLIENTS)
    ]
    for client in clients:
        if await client.wait(RUN_TIMEOUT_S) != 0:
            raise EpochalError(f"{client.name} did not finish:\n{client.log_tail()}")
    starts, longest_bytes = await round_starts(store)
    steps = range(FIRST_MEASURED, ROUNDS)
    return statistics.median(starts[step + 1] - starts[step] for step in steps), longest_bytes


async def bare_round_s(url: str) -> float:
    """Return the median time of a bare round, in seconds."""
    times = []
    async with connections(url, CLIENTS) as opened:
        for _ in range(ROUNDS):
            start_s = time.perf_counter()
            async with asyncio.TaskGroup() as tasks:
                for connection in opened:
                    tasks.create_task(_bare_round(connection))
            times.append(time.perf_counter() - start_s)
    return statistics.median(times[FIRST_MEASURED:])


async def measure(folder: Path) -> list[Figure]:
    """Measure the median time from one RoundTrain to the next."""
    async with coordinator_process(folder, init_min_clients=CLIENTS, total_steps=ROUNDS) as process:
        median_s, longest_bytes = await null_round_s(process.children, process.url, str(process.run_dir))
    async with bare_process(folder) as url:
        bare_s = await bare_round_s(url)
    name = f"a round, {CLIENTS} null clients"
    return [
        Figure(name, median_s * 1000, "ms", "≤ 50 ms", bare_s * 1000, BARE_NAME),
        Figure("the run document, at its longest", longest_bytes / 1024, "KiB", "≤ 4 KiB"),
    ]
