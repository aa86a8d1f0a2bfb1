"""What an operator does to a run with the command line: pause, resume, eject, status, audit, an edited state file."""

import json
import socket
from pathlib import Path

import pytest

from coordinator.audit import audit_store
from state.phases import RunState
from tests.support.by_hand import hold_in, joined_by_hand
from tests.support.processes import BOUND_S, at_round, in_phase, in_training, prepared_run, real_run

AUDITS = 60
"""Of a run of many short epochs: enough to meet a sweep of blobs, were that a problem."""


async def test_pause_finishes_the_round_makes_a_checkpoint_and_holds_until_resume(tmp_path: Path) -> None:
    overrides = {"config__init_min_clients": 3, "config__total_steps": 4}
    async with real_run(tmp_path, **overrides) as run, joined_by_hand(run, 1) as hand:
        for _ in range(2):
            await run.start_client()
        document = await hold_in(hand, RunState.ROUND_TRAIN, 2)
        paused = await run.command("pause", run.url, EPOCHAL_ADMIN_TOKEN=run.admin_token)
        assert (paused.code, paused.out) == (0, "the run will pause after this round\n")
        assert (await run.watch.next()).run_state is not RunState.PAUSED, "the round is not over"
        await hand.deliver(document)
        await hand.attest(document)
        cooling = await hand.watch.until(at_round(2, RunState.COOLDOWN))
        await hand.cool_down(cooling)
        held = await run.until(in_phase(RunState.PAUSED))
        assert held.step == 2
        assert held.checkpoint is not None
        assert held.checkpoint.step == 1
        await run.kill_coordinator()
        await run.start_coordinator()
        assert (await run.watch.next()).run_state is RunState.PAUSED, "a restart does not resume"
        resumed = await run.command("resume", run.url, "--admin-token", run.admin_token)
        assert (resumed.code, resumed.out) == (0, "the run continues\n")
        await hand.watch.until(in_phase(RunState.WARMUP))
        await hand.api.withdraw()
        assert (await run.finish()).rounds == 4


async def test_operator_commands_without_the_right_token_or_url_change_nothing(tmp_path: Path) -> None:
    async with real_run(tmp_path) as run:
        for command in ("pause", "resume"):
            ran = await run.command(command, run.url, "--admin-token", "a guess")
            assert ran.code == 1
            assert "this needs the admin token" in ran.err
            assert (await run.command(command, run.url)).code == 2, "no token at all is a mistake of the caller"
        await run.kill_coordinator()
        ran = await run.command("status", run.url)
        assert ran.code == 1
        assert "does not answer" in ran.err
        assert "Traceback" not in ran.err


async def test_admin_token_that_was_lost_is_replaced_at_a_start_that_says_so(tmp_path: Path) -> None:
    async with real_run(tmp_path) as run:
        lost = run.admin_token
        await run.kill_coordinator()
        await run.start_coordinator()
        assert run.admin_token == lost, "a start by itself makes no new one"
        await run.kill_coordinator()
        await run.start_coordinator("--new-admin-token")
        assert run.admin_token != lost
        ran = await run.command("pause", run.url, "--admin-token", lost)
        assert ran.code == 1
        assert "--new-admin-token" in ran.err, "the way out is named"
        assert (await run.command("pause", run.url, "--admin-token", run.admin_token)).code == 0
        await run.kill_coordinator()
        await run.start_coordinator()
        assert (await run.command("resume", run.url, "--admin-token", run.admin_token)).code == 0


async def test_first_start_that_fails_makes_no_admin_token_that_nobody_saw(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        async with prepared_run(tmp_path) as run:
            port = str(taken.getsockname()[1])
            ran = await run.command("coordinator", str(run.state_path), "--store", str(run.run_dir), "--port", port)
            assert ran.code != 0
            assert port in ran.err
            await run.start_coordinator()
            assert run.admin_token
            assert (await run.command("pause", run.url, "--admin-token", run.admin_token)).code == 0


async def test_status_shows_the_run_to_people_and_to_programs(tmp_path: Path) -> None:
    async with real_run(tmp_path, config__total_steps=3) as run:
        client = await run.start_client()
        await run.finish()
        ran = await run.command("status", run.url, "--json")
        assert ran.code == 0
        status = json.loads(ran.out)
        assert (status["run_state"], status["run_id"], status["total_steps"]) == ("Finished", "test-run", 3)
        assert status["data_indices_applied"] == 36
        assert [step for step, _ in status["loss_history"]] == [1, 2, 3]
        assert client.process.returncode == 0
        shown = await run.command("status", f"{run.url}/v1/runs/test-run")
        assert shown.code == 0
        assert "Finished" in shown.out
        assert "3 of 3" in shown.out


async def test_ejected_client_ends_with_the_reason_and_may_not_come_back(tmp_path: Path) -> None:
    overrides = {"config__init_min_clients": 2, "config__total_steps": 4, "config__client_timeout_s": 6}
    async with real_run(tmp_path, **overrides) as run, joined_by_hand(run, 1) as hand:
        unwanted = await run.start_client()
        document = await hold_in(hand, RunState.ROUND_TRAIN, 1)
        client_id = run.client_id_of(unwanted)
        ran = await run.command("eject", run.url, "0000", EPOCHAL_ADMIN_TOKEN=run.admin_token)
        assert (ran.code, ran.err) == (2, "epochal: no members have an id that begins with 0000\n")
        shown = client_id[:12]  # as `epochal status` shows it
        ran = await run.command("eject", run.url, shown, EPOCHAL_ADMIN_TOKEN=run.admin_token)
        assert (ran.code, ran.out) == (0, f"client {client_id} was ejected\n")
        assert await unwanted.wait(BOUND_S) == 1
        assert f"epochal: client {client_id} was ejected from this run" in unwanted.log_tail()
        await hand.deliver(document)
        await hand.attest(document)
        following = await hand.watch.until(lambda later: bool(later.round and later.round != document.round))
        assert await hand.roster_of(following) == (hand.client_id,)
        again = await run.command("client", run.url, "--key", str(tmp_path / "client-1.key"))
        assert again.code == 1
        assert "was ejected" in again.err
        ran = await run.command("eject", run.url, "0" * 32, EPOCHAL_ADMIN_TOKEN=run.admin_token)
        assert ran.code == 1
        assert "there is no member" in ran.err
        await run.prove()


async def test_audit_proves_a_run_and_disproves_a_damaged_one(tmp_path: Path) -> None:
    async with real_run(tmp_path, config__total_steps=3) as run:
        await run.start_client()
        await run.finish()
        await run.stop_coordinator()
        ran = await run.command("audit", str(run.run_dir), "--json", "--recompute")
        assert ran.code == 0, ran.out
        report = json.loads(ran.out)
        expected = {"rounds": 3, "applied": 36, "duplicates": 0, "missing": 0, "quarantined": 0, "unapplied": 0}
        assert {key: report[key] for key in expected} == expected
        assert report["replay_identical"] is True
        assert report["replicas_identical"] is True
        shown = await run.command("audit", str(run.run_dir))
        assert shown.code == 0
        assert "all checks passed" in shown.out

        for blob in (run.run_dir / "blobs").glob("??/*"):
            blob.write_bytes(blob.read_bytes()[:-1] + b"\x7f")
        ran = await run.command("audit", str(run.run_dir), "--recompute")
        assert ran.code == 1
        assert "damaged" in ran.out
        assert (await run.command("audit", str(run.run_dir))).code == 0, "the ledger alone needs no blobs"
        journal = run.run_dir / "journal" / "00000000.log"
        content = bytearray(journal.read_bytes())
        content[len(content) // 2] ^= 1
        journal.write_bytes(content)
        ran = await run.command("audit", str(run.run_dir), "--json")
        assert ran.code == 1
        assert "damaged" in ran.out + ran.err
        assert "Traceback" not in ran.err
        assert (await run.command("audit", str(tmp_path / "nowhere"))).code == 2


async def test_state_file_edited_where_it_may_is_applied_and_said(tmp_path: Path) -> None:
    async with real_run(tmp_path, config__total_steps=3) as run:
        await run.start_client()
        await run.finish()
        await run.stop_coordinator()
        run.write_state(config__total_steps=5, config__client_timeout_s=15)
        await run.start_coordinator()
        said = [line["change"] for line in run.events(run.coordinator, "config_change_applied")]
        assert said == ["config.total_steps: 3 → 5", "config.client_timeout_s: 20.0 → 15.0"]
        await run.start_client("--key", str(tmp_path / "client-1.key"))
        await run.until(at_round(6, RunState.FINISHED))
        assert (await run.finish()).rounds == 5


@pytest.mark.parametrize(
    ("edit", "difference"),
    [
        ({"model__LLM__max_seq_len": 32}, "model.LLM.max_seq_len: 16 → 32"),
        ({"merge": {"outer_lr": 0.5}}, "merge.outer_lr: 0.7 → 0.5"),
        ({"run_id": "another"}, 'run_id: "test-run" → "another"'),
    ],
)
async def test_state_file_edited_where_it_may_not_is_refused_with_the_difference(
    tmp_path: Path, edit: dict[str, object], difference: str
) -> None:
    async with prepared_run(tmp_path) as run:
        await run.start_coordinator()
        await run.stop_coordinator()
        run.write_state(config__total_steps=9, **edit)
        ran = await run.command("coordinator", str(run.state_path), "--store", str(run.run_dir), "--port", "0")
        assert ran.code == 2
        assert "differs from the kept run in fields that may no longer change" in ran.err
        assert difference in ran.err
        assert "total_steps" not in ran.err, "only what is refused is listed"
        run.write_state()
        await run.start_coordinator()
        assert (await run.watch.next()).total_steps == 4, "the refused start has changed nothing"


async def test_bound_of_blobs_may_not_be_lowered_below_what_is_held(tmp_path: Path) -> None:
    async with real_run(tmp_path, config__total_steps=2) as run:
        await run.start_client()
        await run.finish()
        await run.stop_coordinator()
        run.write_state(config__total_steps=2, blobs__max_total_bytes=1000)
        ran = await run.command("coordinator", str(run.state_path), "--store", str(run.run_dir), "--port", "0")
        assert ran.code == 2
        assert "blobs.max_total_bytes is 1000, and the run holds" in ran.err
        run.write_state(config__total_steps=2, blobs__max_total_bytes=10**9)
        await run.start_coordinator()


async def test_kept_state_file_starts_a_run_where_the_first_left_off(tmp_path: Path) -> None:
    async with real_run(tmp_path / "first", config__total_steps=1000) as run:
        await run.start_client()
        await run.until(in_training(3))
        await run.stop_coordinator()
        kept = run.run_dir / "state.toml"
        ran = await run.command("check", str(kept))
        assert ran.code == 0, ran.err
        async with prepared_run(tmp_path / "second") as second:
            second.state_path.write_bytes(kept.read_bytes())
            await second.start_coordinator()
            document = await second.watch.next()
            assert document.step >= 1
            assert document.run_id == "test-run"


async def test_audit_of_a_run_that_goes_on_is_not_misled_by_what_is_swept_meanwhile(tmp_path: Path) -> None:
    short = {"config__warmup_time": 0.4, "config__max_round_train_time": 0.4, "config__epoch_time": 0.5}
    async with real_run(tmp_path, **short, config__total_steps=100_000) as run:
        await run.start_client()
        await run.until(in_training(5))
        reports = [await audit_store(str(run.run_dir), recompute=True) for _ in range(AUDITS)]
        assert [report.problems for report in reports] == [()] * AUDITS


async def test_audit_of_a_run_without_a_checkpoint_yet_finds_nothing_wrong(tmp_path: Path) -> None:
    async with real_run(tmp_path) as run:
        ran = await run.command("audit", str(run.run_dir), "--recompute")
        assert ran.code == 0, ran.out
        assert "all checks passed" in ran.out


async def test_evaluation_of_token_data_calls_them_no_split(tmp_path: Path) -> None:
    async with real_run(tmp_path, config__total_steps=2) as run:
        await run.start_client()
        await run.finish()
        evaluate = ("evaluate", str(run.run_dir), "--data", "dummy", "--samples", "4")
        ran = await run.command(*evaluate, "--json")
        assert ran.code == 0, ran.err
        assert json.loads(ran.out)["split"] is None
        assert "(4 samples" in (shown := await run.command(*evaluate)).out
        assert "validation" not in shown.out
        served = await run.command("evaluate", str(run.run_dir), "--data", "tcp://127.0.0.1:9")
        assert served.code == 2
        assert "name the data's files or URL with --data" in served.err
        refused = await run.command(*evaluate, "--split", "validation")
        assert refused.code == 2
        assert "--split validation: these data have no splits" in refused.err
