"""Data that fail at their clients alone: no good batch leaves the run, and the run says why it does not go on."""

from pathlib import Path

import numpy as np
import pytest

from epochal.data_providers.sources.renewed_manifest import write_manifest
from epochal.state.phase_names import RunState
from tests.support.data.token_files import write_in_place, write_tokens
from tests.support.drive.processes import RealRun, in_phase, in_training, real_run

BAD_INDEX = 29
FEW_ATTEMPTS = 6
FOREIGN_TOKEN = 42_749
"""A token of a larger vocabulary than the model's 256."""


def spoil(path: Path) -> None:
    """Replace every token by one that the model does not know; name and size stay, so the fingerprint does too."""
    write_in_place(path, np.full_like(np.fromfile(path, "<u2"), FOREIGN_TOKEN))


def mend(path: Path, index: int, sequence_tokens: int) -> None:
    """Replace one sequence's tokens by known ones."""
    with path.open("r+b") as file:
        file.seek(index * sequence_tokens * 2)
        file.write(np.zeros(sequence_tokens, "<u2").tobytes())


@pytest.mark.nightly
async def test_lone_client_whose_data_all_fail_holds_the_run_and_says_why(tmp_path: Path) -> None:
    path, good = write_tokens(tmp_path / "data"), write_tokens(tmp_path / "good")
    overrides = {"config__total_steps": 400, "model__LLM__data_location": {"Local": str(path)}}
    async with real_run(tmp_path / "run", 1, **overrides) as run:
        await run.until(in_training(2))
        spoil(path)
        await run.until(lambda document: "can work" in document.reason)
        held = await run.until(in_phase(RunState.WAITING_FOR_MEMBERS))
        assert "0 of 1 member can work, 1 needed" in held.reason
        assert "a token or label is above 255" in held.reason
        assert held.quarantined_batches == 0
        assert len(run.events(run.clients[0], "step_failed")) <= FEW_ATTEMPTS
        assert [line["level"] for line in run.events(run.coordinator, "run_held")] == ["warning"]
        ran = await run.command("status", run.url)
        ran.expect(0, "0 of 1 member can work, 1 needed", "a token or label is above")
        (await run.command("audit", str(run.run_dir))).expect(0, "the run waits", "see the notes above")
        await run.start_client("--data", str(good))
        await run.until(in_training(held.step + 5))
        assert (await run.prove()).quarantined == 0


@pytest.mark.nightly
async def test_members_that_fail_on_everything_take_no_good_batch_away(tmp_path: Path) -> None:
    good = write_tokens(tmp_path / "good")
    spoilt = [write_tokens(tmp_path / f"spoilt-{number}") for number in range(3)]
    overrides = {"config__init_min_clients": 4, "config__total_steps": 25}
    async with real_run(tmp_path / "run", model__LLM__data_location={"Local": str(good)}, **overrides) as run:
        for path in (good, *spoilt):
            await run.start_client("--data", str(path))
        await run.until(in_training(1))
        for path in spoilt:
            spoil(path)
        await run.until(in_phase(RunState.FINISHED))
        failed = [line for child in run.clients[1:] for line in run.events(child, "step_failed")]
        assert any(f"token {FOREIGN_TOKEN}" in line["reason"] for line in failed), "they did fail"
        report = await run.prove()
        assert (report.rounds >= 25, report.quarantined) == (True, 0)


@pytest.mark.nightly
async def test_released_batch_is_applied_and_the_audit_balances(tmp_path: Path) -> None:
    path = write_tokens(tmp_path / "data", BAD_INDEX)
    overrides = {"config__total_steps": 40, "model__LLM__data_location": {"Local": str(path)}}
    async with real_run(tmp_path / "run", 3, **overrides) as run:
        await run.until(lambda document: document.quarantined_batches == 1)
        paused = await run.http.post("/v1/runs/test-run/pause", headers={"Authorization": f"Bearer {run.admin_token}"})
        assert paused.is_success, "before the run ends: a command would take longer"
        await run.until(in_phase(RunState.PAUSED))
        (await run.command("status", run.url)).expect(0, "1 batch quarantined", "a token or label is above")
        (await run.command("quarantine", "list", run.url)).expect(0, f"{BAD_INDEX}  corrupt: data index {BAD_INDEX}")
        audit = await run.command("audit", str(run.run_dir))
        audit.expect(0, "quarantined, and not trained on: 1 batch", "see the notes above")
        mend(path, BAD_INDEX, 16)
        refused = await run.command("quarantine", "release", run.url, "3-5", EPOCHAL_ADMIN_TOKEN=run.admin_token)
        refused.expect(1, "no batch among [3, 5] is quarantined")
        said = await operate(run, "quarantine", "release", batches=f"{BAD_INDEX - 2}-{BAD_INDEX}")
        assert said == f"released 1 batch: {BAD_INDEX}\n"
        await operate(run, "resume")
        report = await run.finish()
        assert (report.quarantined, report.unapplied, report.problems, report.remarks) == (0, 0, (), ())
        assert (await run.status()).quarantined == ()


@pytest.mark.nightly
async def test_listed_data_that_change_are_not_trained_on_until_they_are_back(tmp_path: Path) -> None:
    path = write_tokens(tmp_path / "data")
    write_manifest(path.parent, [path.name])
    overrides = {"config__total_steps": 400, "model__LLM__data_location": {"Local": str(path)}}
    async with real_run(tmp_path / "run", 1, **overrides) as run:
        await run.until(in_training(2))
        true = np.fromfile(path, "<u2")
        write_in_place(path, true[::-1])  # tokens of the model's, but of another order
        await run.until(lambda document: "can work" in document.reason)
        held = await run.until(in_phase(RunState.WAITING_FOR_MEMBERS))
        assert "the data are damaged, or other data than the run's" in held.reason
        assert held.quarantined_batches == 0
        assert run.events(run.clients[0], "data_file_changed")
        failed = run.events(run.clients[0], "step_failed")
        assert "its hash is" in failed[0]["reason"]
        write_in_place(path, true)
        await run.until(in_training(held.step + 5))
        assert (await run.prove()).quarantined == 0


async def operate(run: RealRun, *command: str, batches: str | None = None) -> str:
    """Run an operator's command with the admin token; return what it prints."""
    arguments = (*command, run.url) if batches is None else (*command, run.url, batches)
    ran = await run.command(*arguments, EPOCHAL_ADMIN_TOKEN=run.admin_token)
    ran.expect(0)
    return ran.out
