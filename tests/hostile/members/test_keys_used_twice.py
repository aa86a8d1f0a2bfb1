"""One key in two processes: the second is refused, the first does not notice, and a crashed client soon returns."""

import asyncio
import signal

import pytest

from epochal.tools.testnet.child_processes import Child
from tests.support.bounds import BOUND_S
from tests.support.drive.processes import RealRun, in_training, real_run
from tests.support.drive.run_place import RunPlace

LONG = {"config__total_steps": 100_000}


async def joined(run: RealRun, child: Child) -> None:
    """Return once a client has logged that it is a member."""
    async with asyncio.timeout(BOUND_S):
        while not run.events(child, "joined"):
            await run.watch.next()


@pytest.mark.nightly
async def test_second_process_with_a_key_is_refused_and_the_first_trains_on(place: RunPlace) -> None:
    async with real_run(place, 1, **LONG) as run:
        (first,) = run.clients
        await run.until(in_training(2))
        key = str(place.folder / "client-1.key")
        for _ in range(3):
            second = await run.command("client", run.url, "--key", key, "--reconnect", "2")
            second.expect(1, "another process takes part with the key", "--new-key", "coordinator_refuses_for_now")
        document = run.watch.seen[-1]
        await run.until(in_training(document.step + 2))
        assert len(run.events(first, "joined")) == 1, "the first one kept its session"


@pytest.mark.nightly
async def test_killed_client_returns_with_its_key_after_seconds(place: RunPlace) -> None:
    async with real_run(place, 2, config__client_timeout_s=4 * BOUND_S, **LONG) as run:
        killed = run.clients[0]
        await run.until(in_training(2))
        killed.kill()
        await killed.wait(BOUND_S)
        returned = await run.start_client("--key", str(place.folder / "client-1.key"))
        await joined(run, returned)  # long before the killed one would count as silent


@pytest.mark.nightly
async def test_suspended_process_that_wakes_up_ends_with_words(place: RunPlace) -> None:
    async with real_run(place, 1, config__client_timeout_s=9, **LONG) as run:
        key = str(place.folder / "suspended.key")
        (place.folder / "suspended.key").write_bytes(bytes(32))
        suspended = await run.start_client("--key", key, "--reconnect", "2")
        await joined(run, suspended)
        suspended.process.send_signal(signal.SIGSTOP)
        successor = await run.start_client("--key", key)
        await joined(run, successor)
        suspended.process.send_signal(signal.SIGCONT)
        assert await suspended.wait(BOUND_S) == 1
        assert "another process takes part with the key" in suspended.log_tail()
        assert len(run.events(successor, "joined")) == 1
