"""An operator's commands on a real run: pause, resume, eject, status, audit, evaluate, an edited state file."""

import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from epochal.coordinator.proof.audit import audit_store
from epochal.state.phase_names import RunState
from tests.support.bounds import BOUND_S
from tests.support.data.stored_rows import flip
from tests.support.drive.by_hand import hold_in, joined_by_hand
from tests.support.drive.processes import PATIENT, RealRun, at_round, in_phase, in_training, prepared_run, real_run
from tests.support.thinned import thinned

AUDITS = 6
"""Audits of a run of many short epochs, whose blobs are swept meanwhile."""


@contextlib.asynccontextmanager
async def finished_run(folder: Path, rounds: int) -> AsyncIterator[RealRun]:
    """Yield a run that one client has finished."""
    async with real_run(folder, 1, config__total_steps=rounds) as run:
        await run.finish()
        yield run


@pytest.mark.nightly
async def test_pause_holds_the_run_after_its_round_until_resume(tmp_path: Path) -> None:
    overrides = {"config__init_min_clients": 3, "config__total_steps": 4}
    async with real_run(tmp_path, **overrides, **PATIENT) as run, joined_by_hand(run, 1) as hand:
        for _ in range(2):
            await run.start_client()
        document = await hold_in(hand, RunState.ROUND_TRAIN, 2)
        paused = await run.command_here("pause", run.url, EPOCHAL_ADMIN_TOKEN=run.admin_token)
        assert (paused.code, paused.out) == (0, "the run will pause after this round\n")
        assert (await run.watch.next()).run_state is not RunState.PAUSED, "the round is not over"
        await hand.deliver(document)  # the others are a quorum
        cooling = await hand.watch.until(at_round(2, RunState.COOLDOWN))
        await hand.cool_down(cooling)
        held = await run.until(in_phase(RunState.PAUSED))
        assert held.step == 2
        assert held.checkpoint is not None
        assert held.checkpoint.step == 1
        again = await run.command_here("pause", run.url, "--admin-token", run.admin_token)
        assert (again.code, again.out) == (0, "the run is paused already\n")
        await run.kill_coordinator()
        await run.start_coordinator()
        assert (await run.watch.next()).run_state is RunState.PAUSED, "a restart does not resume"
        resumed = await run.command_here("resume", run.url, "--admin-token", run.admin_token)
        assert (resumed.code, resumed.out) == (0, "the run continues\n")
        again = await run.command_here("resume", run.url, "--admin-token", run.admin_token)
        assert (again.code, again.out) == (0, "the run is not paused\n")
        await hand.watch.until(in_phase(RunState.WARMUP))
        await hand.api.withdraw()
        assert (await run.finish()).rounds == 4


async def test_operator_commands_need_the_admin_token_and_a_coordinator(tmp_path: Path) -> None:
    async with real_run(tmp_path) as run:
        for command in ("pause", "resume"):
            ran = await run.command_here(command, run.url, "--admin-token", "a guess")
            ran.expect(1, "this token is not the run's admin token")
            (await run.command_here(command, run.url)).expect(2)
        await run.kill_coordinator()
        (await run.command_here("status", run.url)).expect(1, "does not answer")


@pytest.mark.nightly
async def test_lost_admin_token_is_replaced_by_new_admin_token(tmp_path: Path) -> None:
    async with real_run(tmp_path) as run:
        lost = run.admin_token
        await run.kill_coordinator()
        await run.start_coordinator()
        assert run.admin_token == lost, "an ordinary start makes no new token"
        await run.kill_coordinator()
        await run.start_coordinator("--new-admin-token")
        assert run.admin_token != lost
        (await run.command_here("pause", run.url, "--admin-token", lost)).expect(1, "--new-admin-token")
        (await run.command_here("pause", run.url, "--admin-token", run.admin_token)).expect(0)
        await run.kill_coordinator()
        await run.start_coordinator()
        (await run.command_here("resume", run.url, "--admin-token", run.admin_token)).expect(0)


async def test_status_shows_the_run_to_people_and_to_programs(tmp_path: Path) -> None:
    async with finished_run(tmp_path, 3) as run:
        ran = await run.command_here("status", run.url, "--json")
        ran.expect(0)
        status = json.loads(ran.out)
        assert (status["run_state"], status["run_id"], status["total_steps"]) == ("Finished", "test-run", 3)
        assert status["data_indices_applied"] == 36
        assert [step for step, _ in status["loss_history"]] == [1, 2, 3]
        (await run.command_here("status", f"{run.url}/v1/runs/test-run")).expect(0, "Finished", "3 of 3")
        watched = await run.command_here("watch", run.url)  # without a terminal
        assert (watched.code, watched.out.count("\n"), watched.out[:8]) == (0, 1, "Finished"), watched


@pytest.mark.nightly
async def test_ejected_client_ends_with_the_reason_and_cannot_rejoin(tmp_path: Path) -> None:
    overrides = {"config__init_min_clients": 2, "config__total_steps": 4}
    async with real_run(tmp_path, **overrides, **PATIENT) as run, joined_by_hand(run, 1) as hand:
        unwanted = await run.start_client()
        document = await hold_in(hand, RunState.ROUND_TRAIN, 1)
        client_id = run.client_id_of(unwanted)
        ran = await run.command_here("eject", run.url, "0000", EPOCHAL_ADMIN_TOKEN=run.admin_token)
        ran.expect(2, "epochal: no members have an id that begins with 0000\n")
        shown = client_id[:12]  # as `epochal status` shows it
        ran = await run.command_here("eject", run.url, shown, EPOCHAL_ADMIN_TOKEN=run.admin_token)
        assert (ran.code, ran.out) == (0, f"client {client_id} was ejected\n")
        assert await unwanted.wait(BOUND_S) == 1
        assert f"epochal: client {client_id} was ejected from this run" in unwanted.log_tail()
        await hand.deliver(document)
        await hand.attest(document)
        following = await hand.watch.until(lambda later: bool(later.round and later.round != document.round))
        assert await hand.roster_of(following) == (hand.client_id,)
        (await run.command("client", run.url, "--key", str(tmp_path / "client-1.key"))).expect(1, "was ejected")
        ran = await run.command_here("eject", run.url, "0" * 32, EPOCHAL_ADMIN_TOKEN=run.admin_token)
        ran.expect(1, "there is no member")
        await run.prove()


async def test_audit_proves_a_run_and_disproves_a_damaged_one(tmp_path: Path) -> None:
    async with finished_run(tmp_path, 3) as run:
        await run.stop_coordinator()
        ran = await run.command_here("audit", str(run.run_dir), "--json", "--recompute")
        ran.expect(0)
        report = json.loads(ran.out)
        expected = {"rounds": 3, "applied": 36, "duplicates": 0, "missing": 0, "quarantined": 0, "unapplied": 0}
        assert {key: report[key] for key in expected} == expected
        assert report["replay_identical"] is True
        assert report["replicas_identical"] is True
        (await run.command_here("audit", str(run.run_dir))).expect(0, "all checks passed")
        for blob in (run.run_dir / "blobs").glob("??/*"):
            blob.write_bytes(blob.read_bytes()[:-1] + b"\x7f")
        (await run.command_here("audit", str(run.run_dir), "--recompute")).expect(1, "damaged")
        (await run.command_here("audit", str(run.run_dir))).expect(1, "damaged")
        flip(run.run_dir, "epochal_records", "body", "sequence = 3")
        (await run.command_here("audit", str(run.run_dir), "--json")).expect(1, "damaged")
        (await run.command_here("audit", str(tmp_path / "nowhere"))).expect(2)


@pytest.mark.nightly
async def test_allowed_edits_of_the_state_file_are_applied_and_logged(tmp_path: Path) -> None:
    async with finished_run(tmp_path, 3) as run:
        await run.stop_coordinator()
        run.write_state(config__total_steps=5, config__client_timeout_s=15)
        await run.start_coordinator()
        said = [line["change"] for line in run.events(run.coordinator, "config_change_applied")]
        assert said == ["config.total_steps: 3 → 5", "config.client_timeout_s: 20.0 → 15.0"]
        await run.start_client("--key", str(tmp_path / "client-1.key"))
        await run.until(at_round(6, RunState.FINISHED))
        assert (await run.finish()).rounds == 5


@pytest.mark.nightly
@thinned(
    ("edit", "difference"),
    [
        ({"model__LLM__max_seq_len": 32}, "model.LLM.max_seq_len: 16 → 32"),
        ({"merge": {"outer_lr": 0.5}}, "merge.outer_lr: 0.7 → 0.5"),
        ({"run_id": "another"}, 'run_id: "test-run" → "another"'),
    ],
)
async def test_other_edits_of_the_state_file_are_refused_with_the_difference(
    tmp_path: Path, edit: dict[str, object], difference: str
) -> None:
    async with real_run(tmp_path) as run:
        await run.stop_coordinator()
        run.write_state(config__total_steps=9, **edit)
        ran = await run.command("coordinator", str(run.state_path), "--store", str(run.run_dir), "--port", "0")
        ran.expect(2, "differs from the kept run in fields that may no longer change", difference)
        assert "total_steps" not in ran.err, "only the refused edits are listed"
        run.write_state()
        await run.start_coordinator()
        assert (await run.watch.next()).total_steps == 4, "the refused start changed nothing"


@pytest.mark.nightly
async def test_bound_of_blobs_may_not_be_lowered_below_what_is_held(tmp_path: Path) -> None:
    async with finished_run(tmp_path, 2) as run:
        await run.stop_coordinator()
        run.write_state(config__total_steps=2, blobs__max_total_bytes=1000)
        ran = await run.command("coordinator", str(run.state_path), "--store", str(run.run_dir), "--port", "0")
        ran.expect(2, "blobs.max_total_bytes is 1000, but the run holds")
        run.write_state(config__total_steps=2, blobs__max_total_bytes=10**9)
        await run.start_coordinator()


@pytest.mark.nightly
async def test_kept_state_file_starts_a_run_like_the_first(tmp_path: Path) -> None:
    async with real_run(tmp_path / "first", 1, config__total_steps=1000) as run:
        await run.until(in_training(3))
        await run.stop_coordinator()
        kept = run.run_dir / "state.toml"
        (await run.command_here("check", str(kept))).expect(0)
        async with prepared_run(tmp_path / "second") as second:
            second.state_path.write_bytes(kept.read_bytes())
            await second.start_coordinator()
            document = await second.watch.next()
            assert document.step >= 1
            assert document.run_id == "test-run"


@pytest.mark.nightly
async def test_audit_of_a_continuing_run_does_not_miss_swept_blobs(tmp_path: Path) -> None:
    short = {"config__warmup_time": 0.4, "config__max_round_train_time": 0.4, "config__epoch_time": 0.5}
    async with real_run(tmp_path, 1, **short, config__total_steps=100_000) as run:
        await run.until(in_training(5))
        reports = [await audit_store(str(run.run_dir), recompute=True) for _ in range(AUDITS)]
        assert [report.problems for report in reports] == [()] * AUDITS


async def test_audit_of_a_run_without_a_checkpoint_passes(tmp_path: Path) -> None:
    async with prepared_run(tmp_path) as run:
        await run.start_coordinator("--no-genesis")
        (await run.command_here("audit", str(run.run_dir), "--recompute")).expect(0, "no batch was applied")
