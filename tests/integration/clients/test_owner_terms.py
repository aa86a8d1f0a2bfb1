"""A client whose process was stopped says so, and takes part again: real processes."""

import asyncio
import signal
from pathlib import Path

import pytest

from epochal.run_manager.terms.sleep_notice import MIN_SLEEP_S
from epochal.state.phase_names import RunState
from tests.support.bounds import BOUND_S
from tests.support.drive.by_hand import all_by_hand, hold_in
from tests.support.drive.processes import real_run

LONG = {"config__total_steps": 100_000, "config__init_min_clients": 1}


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
