"""Other data than the run's: one member's slip neither decides for the others nor ends them, and is said in words."""

import contextlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from epochal.state.errors import Refused
from epochal.state.phase_names import RunState
from tests.support.bounds import BOUND_S
from tests.support.drive.by_hand import all_by_hand
from tests.support.drive.processes import in_phase, in_training, prepared_run, real_run, run_command

SEQUENCES, LENGTH = 40, 16
MADE_UP = "ab" * 32


def write_data(folder: Path, sequences: int, name: str = "tokens.bin") -> Path:
    folder.mkdir()
    (np.arange(sequences * LENGTH) % 251).astype("<u2").tofile(folder / name)
    return folder


async def fingerprint_of(folder: Path) -> str:
    ran = await run_command("data", "inspect", str(folder), "--seq-len", str(LENGTH), "--json")
    assert ran.code == 0, ran.err
    return str(json.loads(ran.out)["fingerprint"])


def overrides(data: Path, **fields: Any) -> dict[str, Any]:
    return {"model__LLM__data_location": {"Local": str(data)}, "config__total_steps": 3} | fields


@pytest.mark.nightly
async def test_client_with_other_data_that_is_first_does_not_decide(tmp_path: Path) -> None:
    right, wrong = write_data(tmp_path / "right", SEQUENCES), write_data(tmp_path / "wrong", 2 * SEQUENCES)
    fields = overrides(right, config__init_min_clients=2, config__min_clients=2)
    async with prepared_run(tmp_path / "run", **fields) as run:
        await run.start_coordinator()
        astray = await run.start_client("--data", str(wrong))
        await run.until_logged(astray, "joined")
        await run.start_client()
        warning = await run.until_logged(astray, "data_differs")  # one to one: the run waits for a third
        assert warning["level"] == "warning"
        assert "'tokens.bin' of 2560 bytes; the run's are" in warning["detail"]
        assert "This client waits" in warning["detail"]
        await run.start_client()
        await run.finish(without=(astray,))
        assert await astray.wait(BOUND_S) == 1, astray.log_tail()
        assert "'tokens.bin' of 2560 bytes; the run's are" in astray.log_tail(), "its last words say it too"


@pytest.mark.nightly
async def test_pinned_data_refuse_others_even_if_nobody_else_is_there(tmp_path: Path) -> None:
    right, wrong = write_data(tmp_path / "right", SEQUENCES), write_data(tmp_path / "wrong", SEQUENCES, "other.bin")
    pinned = await fingerprint_of(right)
    async with prepared_run(tmp_path / "run", **overrides(right, config__data_fingerprint=pinned)) as run:
        await run.start_coordinator()
        astray = await run.start_client("--data", str(wrong))
        assert await astray.wait(BOUND_S) == 1
        assert f"the run's has {pinned}" in astray.log_tail()
        assert "Traceback" not in astray.log_tail()
        await run.start_client()
        await run.finish(without=(astray,))


@pytest.mark.nightly
async def test_operator_corrects_a_run_that_began_on_other_data(tmp_path: Path) -> None:
    right, wrong = write_data(tmp_path / "right", SEQUENCES), write_data(tmp_path / "wrong", 2 * SEQUENCES)
    async with prepared_run(tmp_path / "run", **overrides(right, config__total_steps=100_000)) as run:
        await run.start_coordinator()
        astray = await run.start_client("--data", str(wrong))
        await run.until(in_training(2))
        late = await run.command("client", run.url, "--allow-local", str(right))
        late.expect(1, "'tokens.bin' of 1280 bytes; the run's are")
        value = await fingerprint_of(right)
        (await run.command("fingerprint", run.url, "a guess")).expect(2, "64 hex digits")
        told = await run.command("fingerprint", run.url, value, EPOCHAL_ADMIN_TOKEN=run.admin_token)
        told.expect(0, f"the run's data must have fingerprint {value}")
        assert await astray.wait(BOUND_S) == 1, astray.log_tail()
        assert f"the run's has {value}" in astray.log_tail()
        stopped = await run.until(in_phase(RunState.WAITING_FOR_MEMBERS))
        client = await run.start_client()
        await run.until(in_training(stopped.step + 2))
        shown = await run.command("fingerprint", run.url)
        shown.expect(0, f"{value} (operator)", f"1 member: {value}")
        client.kill()


@pytest.mark.nightly
@pytest.mark.parametrize("stranger_count", [2, 5])
async def test_strangers_with_made_up_data_do_not_keep_a_run_at_step_one(tmp_path: Path, stranger_count: int) -> None:
    right = write_data(tmp_path / "right", SEQUENCES)
    limits = {"config__max_round_train_time": 3, "config__round_witness_time": 2, "config__warmup_time": 6}
    gathered = {"config__init_min_clients": stranger_count + 2, "config__min_clients": 2}
    fields = overrides(right, **limits, **gathered, config__total_steps=100_000)
    async with real_run(tmp_path / "run", 2, **fields) as run, all_by_hand(run, stranger_count) as strangers:
        for stranger in strangers:
            with contextlib.suppress(Refused):  # recorded: it is not the turn of these data yet
                await stranger.be_ready(MADE_UP)
        document = await run.until(in_training(3))
        assert document.data_fingerprint == await fingerprint_of(right)
        assert (await run.status()).data_decided_by == "first round"


@pytest.mark.nightly
async def test_coordinator_of_an_open_run_warns_until_its_data_are_known(tmp_path: Path) -> None:
    async with prepared_run(tmp_path / "run") as run:
        await run.start_coordinator()
        warned = await run.until_logged(run.coordinator, "data_not_pinned")
        assert warned["level"] == "warning"
        assert "epochal fingerprint URL FINGERPRINT" in warned["reason"]
        pin = await run.command("fingerprint", run.url, MADE_UP, EPOCHAL_ADMIN_TOKEN=run.admin_token)
        pin.expect(0)
        await run.stop_coordinator()
        await run.start_coordinator()
        assert run.events(run.coordinator, "data_not_pinned") == []
