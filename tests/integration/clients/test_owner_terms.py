"""The terms of a client's owner, with real processes: hours, bandwidth, priority, and a machine that sleeps."""

import asyncio
import os
import signal
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from epochal.run_manager.terms.priority import NICENESS
from epochal.run_manager.terms.sleep_notice import MIN_SLEEP_S
from epochal.state.phase_names import RunState
from tests.support.bounds import BOUND_S
from tests.support.drive.by_hand import all_by_hand, hold_in
from tests.support.drive.processes import in_training, real_run

LONG = {"config__total_steps": 100_000, "config__init_min_clients": 1}
RATE_MBIT = 8


def away() -> str:
    """Return hours that begin in some hours and end an hour later."""
    first = datetime.now(UTC).astimezone() + timedelta(hours=3)
    return f"{first:%H:%M}-{first + timedelta(hours=1):%H:%M}"


def priorities(pid: int) -> set[int]:
    """Return the priorities of a process's threads, or its own where a priority is a process's."""
    threads = [int(one.name) for one in Path(f"/proc/{pid}/task").glob("*")]
    return {os.getpriority(os.PRIO_PROCESS, thread) for thread in threads or [pid]}


async def test_client_outside_of_its_hours_does_not_join_and_ends_at_once(tmp_path: Path) -> None:
    async with real_run(tmp_path, **LONG) as run:
        client = await run.start_client("--hours", away())
        said = await run.until_logged(client, "takes_no_part_for_now")
        assert said["reason"].startswith("outside of its hours, which begin at ")
        assert run.changes_of(client) == []
        client.process.send_signal(signal.SIGINT)
        assert await client.wait(BOUND_S) == 0, client.log_tail()


@pytest.mark.nightly
async def test_client_with_limits_and_low_priority_trains_to_the_end(tmp_path: Path) -> None:
    rate = f"{RATE_MBIT}mbit"
    async with real_run(tmp_path, config__total_steps=4, config__init_min_clients=1) as run:
        client = await run.start_client("--upload", rate, "--download", rate, "--hours", "00-24", "--nice")
        await run.until_logged(client, "priority_lowered")
        await run.until(in_training(1))
        assert priorities(client.process.pid) == {NICENESS}
        assert (await run.finish()).rounds == 4


@pytest.mark.nightly
async def test_client_that_was_stopped_says_for_how_long_and_goes_on(tmp_path: Path) -> None:
    """Stopped for longer than the coordinator waits for a sign of life."""
    silence_s = MIN_SLEEP_S + 5
    overrides = LONG | {"config__init_min_clients": 2, "config__client_timeout_s": silence_s}
    async with real_run(tmp_path, **overrides) as run, all_by_hand(run, 1) as (hand,):
        client = await run.start_client()
        document = await hold_in(hand, RunState.ROUND_TRAIN, 1)
        loop = asyncio.get_running_loop()
        client.process.send_signal(signal.SIGSTOP)
        stopped_s = loop.time()
        while "fell silent" not in run.changes_of(client):
            document = await hand.take_round(document)
        client.process.send_signal(signal.SIGCONT)
        gone_s = loop.time() - stopped_s
        slept = await run.until_logged(client, "was_asleep")
        assert slept["reason"] == "this process was stopped"
        assert abs(slept["slept_s"] - gone_s) < 5
        async with asyncio.timeout(BOUND_S):
            while run.changes_of(client)[-1] != "ready":
                document = await hand.take_round(document)
