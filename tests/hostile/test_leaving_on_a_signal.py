"""A client leaves on the first signal within its bound, whatever it waits for; the second signal stops it at once."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from epochal.cli.shutdown import EXIT_INTERRUPTED
from epochal.commands.serve.client import STOP_BOUND_S
from epochal.run_manager.agent import LEAVE_REFUSED_S
from epochal.state.phase_names import RunState
from epochal.tools.testnet.child_processes import Child
from tests.integration.coordinators.test_full_disk import FITTING_BYTES, fill_disk
from tests.support.bounds import BOUND_S
from tests.support.drive.by_hand import hold_in, joined_by_hand
from tests.support.drive.processes import PATIENT, RealRun, in_phase, in_training, prepared_run, real_run
from tests.support.servers.ports import free_port

SLACK_S = 20.0
"""Seconds that the end of a process takes on a very busy machine: less than one that does not obey waits."""
LONG = PATIENT | {"config__total_steps": 100_000}
LEAVE_WITHIN_S = 3.0
QUICK_LEAVE = ("--leave-within", str(LEAVE_WITHIN_S))


async def logged(run: RealRun, child: Child, event: str) -> None:
    """Return once the child has logged the event."""
    await run.until_logged(child, event, while_answering=False)


async def leaves(
    child: Child, bound_s: float, number: signal.Signals = signal.SIGINT, codes: tuple[int, ...] = (0,)
) -> None:
    """Send a signal, and assert that the client withdraws within the bound."""
    loop = asyncio.get_running_loop()
    started_s = loop.time()
    child.process.send_signal(number)
    assert await child.wait(BOUND_S) in codes, child.log_tail()
    assert loop.time() - started_s < bound_s + SLACK_S


@pytest.mark.nightly
async def test_client_of_a_coordinator_that_never_answered_leaves_at_once(tmp_path: Path) -> None:
    async with prepared_run(tmp_path) as run:
        run.url = f"http://127.0.0.1:{free_port()}"
        client = await run.start_client()
        await logged(run, client, "coordinator_does_not_answer_yet")
        await leaves(client, 0)


@pytest.mark.nightly
async def test_client_of_a_coordinator_that_is_gone_leaves_soon(tmp_path: Path) -> None:
    async with real_run(tmp_path, 1, **LONG) as run:
        await run.until(in_training(2))
        await run.kill_coordinator()
        await logged(run, run.clients[0], "coordinator_unreachable")
        await leaves(run.clients[0], LEAVE_REFUSED_S, signal.SIGTERM)


@pytest.mark.nightly
async def test_client_of_a_coordinator_that_hangs_leaves_within_the_bound(tmp_path: Path) -> None:
    async with real_run(tmp_path, config__init_min_clients=1, **LONG) as run:
        client = await run.start_client(*QUICK_LEAVE)
        await run.until(in_training(2))
        run.coordinator.process.send_signal(signal.SIGSTOP)
        await leaves(client, LEAVE_WITHIN_S)


@pytest.mark.nightly
async def test_client_leaves_in_time_where_the_coordinators_disk_is_full(tmp_path: Path) -> None:
    async with real_run(tmp_path, config__init_min_clients=2, **LONG) as run, joined_by_hand(run, 1) as hand:
        client = await run.start_client(*QUICK_LEAVE)
        await hold_in(hand, RunState.ROUND_TRAIN, 1)
        fill_disk(run, FITTING_BYTES)
        await leaves(client, LEAVE_WITHIN_S)


@pytest.mark.nightly
async def test_client_in_a_round_that_does_not_end_leaves_within_the_bound(tmp_path: Path) -> None:
    async with real_run(tmp_path, config__init_min_clients=2, **LONG) as run, joined_by_hand(run, 1) as hand:
        client = await run.start_client(*QUICK_LEAVE)
        await hold_in(hand, RunState.ROUND_TRAIN, 1)
        await leaves(client, LEAVE_WITHIN_S)
        assert len(run.events(client, "left_before_the_round_was_done")) == 1


@pytest.mark.nightly
async def test_client_whose_data_server_is_away_leaves_at_once(tmp_path: Path) -> None:
    location = {"Server": f"127.0.0.1:{free_port()}"}
    async with real_run(tmp_path, 1, model__LLM__data_location=location, **LONG) as run:
        await logged(run, run.clients[0], "data_not_available_yet")
        await leaves(run.clients[0], 0)


@pytest.mark.nightly
async def test_second_signal_stops_a_client_that_still_tries_to_leave(tmp_path: Path) -> None:
    async with real_run(tmp_path, config__init_min_clients=1, **LONG) as run:
        client = await run.start_client()
        await run.until(in_training(2))
        run.coordinator.process.send_signal(signal.SIGSTOP)
        client.process.send_signal(signal.SIGINT)
        await logged(run, client, "leaving_after_this_round")
        loop = asyncio.get_running_loop()
        started_s = loop.time()
        client.process.send_signal(signal.SIGINT)
        assert await client.wait(BOUND_S) is not None
        assert loop.time() - started_s < SLACK_S


@pytest.mark.nightly
async def test_client_one_of_whose_threads_hangs_leaves_within_the_bound(tmp_path: Path) -> None:
    hanging = tmp_path / "mix.json"
    os.mkfifo(hanging)  # whoever opens it to read waits for somebody who writes
    async with real_run(tmp_path, config__init_min_clients=1, **LONG) as run:
        client = await run.start_client("--data", str(hanging))
        await run.until(in_phase(RunState.WARMUP))
        await logged(run, client, "joined")
        await leaves(client, STOP_BOUND_S, codes=(0, EXIT_INTERRUPTED))  # the data may be opened yet, or not
