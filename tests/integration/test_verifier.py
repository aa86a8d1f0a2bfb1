"""`epochal verifier` in a run of real processes: a member that lies, verifiers that die, and a restart."""

import asyncio
import signal
from pathlib import Path

import numpy as np
import pytest

from epochal.coordinator_client.http import CoordinatorClient
from epochal.state.assignment import assign_data_for_state
from epochal.state.errors import Refused
from epochal.state.intervals import total_batches
from epochal.state.messages.replay_messages import ReplayReport
from epochal.state.messages.verification_views import VerificationView
from epochal.state.phase_names import RunState
from epochal.state.refusals import Refusal
from epochal.state.wire import parse_document
from tests.support.bounds import BOUND_S
from tests.support.data.token_files import write_served_tokens, write_tokens
from tests.support.drive.processes import RealRun, in_training, real_run, retry_policy
from tests.support.drive.verifiers import CLASS, LYING_TRAINERS, VERIFIED, distances, start_verifier
from tests.support.servers.plain_http import PLAIN

NOBODY_VERIFIES = "No verifier: nobody computes results again"
LIAR = f"{LYING_TRAINERS}:LyingTrainer"


async def test_honest_results_pass_and_a_liar_is_convicted_and_ejected(tmp_path: Path) -> None:
    async with real_run(tmp_path, config__init_min_clients=3, **VERIFIED) as run:
        verifier = await start_verifier(run, "verifier-1")
        honest = [await run.start_client(), await run.start_client()]
        liar = await run.start_client(trainer=LIAR)
        convicted = await run.until_logged(run.coordinator, "client_convicted")
        assert convicted["client_id"] == run.client_id_of(liar)
        assert await liar.wait(BOUND_S) != 0
        await run.until(in_training(convicted["step"] + 1))
        found = await distances(run, verifier, 12, of=[run.client_id_of(client) for client in (*honest, liar)])
        lies = found.pop(run.client_id_of(liar))
        assert min(lies) > 1.5
        assert set(found) == {run.client_id_of(client) for client in honest}
        assert {distance for client in found.values() for distance in client} == {0.0}
        assert len(run.events(run.coordinator, "client_convicted")) == 1
        await run.stop_coordinator()
        await run.prove()


@pytest.mark.nightly  # how scores are judged is tested of the machine, and how they are computed of one verifier
async def test_member_whose_results_raise_the_loss_is_found_by_scores(tmp_path: Path) -> None:
    """Clients keep what their optimizers have; the verifier only scores, on data that it draws."""
    data = tmp_path / "data"
    data.mkdir()
    (data / "tokens.bin").write_bytes((np.arange(1 << 15) % 16).astype("<u2").tobytes())  # which can be learnt
    scored = VERIFIED | {"merge__inner_state": "keep", "verify__by": "scores"}
    scored |= {f"model__LLM__{kind}_location": {"Local": str(data)} for kind in ("data", "held_out")}
    async with real_run(tmp_path / "run", config__init_min_clients=3, **scored) as run:
        verifier = await start_verifier(run, "verifier-1")
        for _ in range(2):
            await run.start_client()
        liar = await run.start_client(trainer=LIAR)
        rests = await run.until_logged(run.coordinator, "client_rests")
        assert rests["client_id"] == run.client_id_of(liar)
        assert "scored made the loss on held-out data larger" in rests["reason"]
        assert "RAISES the held-out loss" in await run.line_of(verifier, run.client_id_of(liar))
        assert not run.events(run.coordinator, "client_convicted")
        assert {one["client_id"] for one in run.events(run.coordinator, "client_flagged")} == {rests["client_id"]}
        step = (await run.status()).step + 30  # two commands take a while to start
        for at_step, location in ((step, data / "absent"), (step + 2, data)):
            location_line = f"model.LLM.held_out_location={{ Local = '{location}' }}"
            change = ("change", run.url, "--at-step", str(at_step), "--set", location_line)
            (await run.command_here(*change, EPOCHAL_ADMIN_TOKEN=run.admin_token)).expect(0, f"from step {at_step}:")
        await run.line_of(verifier, f"not computed again (data): {data / 'absent'}")
        await run.line_of(verifier, "lowers the held-out loss")
        await run.stop_coordinator()
        await run.prove()


@pytest.mark.nightly
async def test_verifier_goes_on_after_a_restart_and_where_another_one_was_killed(tmp_path: Path) -> None:
    async with real_run(tmp_path, config__init_min_clients=2, **VERIFIED) as run:
        for _ in range(2):
            await run.start_client()
        first = await start_verifier(run, "verifier-1", "--calibrate", "2")
        line = await run.line_of(first, "repetitions of")
        assert "float32/cpu by float32/cpu: 4 repetitions of 3 local steps, up to 0.0000 apart" in line
        await distances(run, first, 2)
        first.kill()
        second = await start_verifier(run, "verifier-2")
        await distances(run, second, 2)
        await run.kill_coordinator()
        await run.start_coordinator()
        await distances(run, second, 4)
        second.process.send_signal(signal.SIGINT)
        assert await second.wait(BOUND_S) == 0, second.log_tail()


@pytest.mark.nightly
async def test_verifier_calibrates_in_the_run_by_its_own_repetitions(tmp_path: Path) -> None:
    """Also of the work of one that lies, whose results move nothing; and again when rounds become longer."""
    async with real_run(tmp_path, config__init_min_clients=2, **VERIFIED) as run:
        verifier = await start_verifier(run, "verifier-1")
        await run.start_client()
        await run.start_client(trainer=LIAR)
        found = "float32/cpu by float32/cpu: 2 repetitions of {} local steps, up to 0.0000 apart"
        assert found.format(3) in await run.line_of(verifier, "repetitions of")
        change = ("change", run.url, "--at-step", str((await run.status()).step + 30), "--set", "merge.local_steps=5")
        (await run.command_here(*change, EPOCHAL_ADMIN_TOKEN=run.admin_token)).expect(0, "from step")
        await run.line_of(verifier, found.format(5))
        told = await run.command_here("status", run.url)
        told.expect(0, "5 local steps: tolerance 0.0200; calibrated up to 0.0000")


@pytest.mark.nightly
async def test_verifier_that_was_away_goes_on_from_a_later_checkpoint(tmp_path: Path) -> None:
    async with real_run(tmp_path, config__init_min_clients=2, **VERIFIED | {"config__checkpoint_every": 4}) as run:
        for _ in range(2):
            await run.start_client()
        verifier = await start_verifier(run, "verifier-1")
        await distances(run, verifier, 2)
        verifier.process.send_signal(signal.SIGSTOP)
        step = run.events(run.coordinator, "outcome_decided")[-1]["step"]
        await run.until(in_training(step + 30))  # the updates since the verifier's replicas are deleted
        verifier.process.send_signal(signal.SIGCONT)
        await distances(run, verifier, 6)


@pytest.mark.nightly
async def test_verifier_ends_with_its_run_once_all_is_computed(tmp_path: Path) -> None:
    ended = VERIFIED | {"config__total_steps": 3, "verify__within": 64}
    async with real_run(tmp_path, config__init_min_clients=1, **ended) as run:
        await run.start_client()
        await run.until(lambda document: document.run_state is RunState.FINISHED)
        verifier = await start_verifier(run, "verifier-1")
        await run.line_of(verifier, "excess distance")
        await run.line_of(verifier, "the run is finished, and no other result is to be computed again")
        assert await verifier.wait(BOUND_S) == 0, verifier.log_tail()


@pytest.mark.nightly
async def test_verifier_that_computes_otherwise_loses_its_role(tmp_path: Path) -> None:
    """As one of another version might; it finds each honest result false."""
    async with real_run(tmp_path, 3, **VERIFIED) as run:
        others = [await start_verifier(run, f"verifier-{number}") for number in (1, 2)]
        bad = await start_verifier(run, "bad", "--trainer", LIAR)
        tested = await run.until_logged(run.coordinator, "verifier_tested")
        assert (tested["is_refused"], tested["expected"]) == (True, 0.0)
        assert tested["excess"] > 1.5
        assert await bad.wait(BOUND_S) == 1
        assert "lost its role: it failed at a task with a known answer" in bad.log_tail()
        for one in others:
            await distances(run, one, 2)
        assert not run.events(run.coordinator, "client_convicted")
        assert len(run.events(run.coordinator, "verifier_tested")) == 1
        await run.stop_coordinator()
        await run.prove()


@pytest.mark.nightly
@pytest.mark.parametrize("count", [1, 2])
async def test_verifiers_that_all_compute_otherwise_eject_nobody(tmp_path: Path, count: int) -> None:
    """Two alike, as after an operator's upgrade of both, agree with each other."""
    async with real_run(tmp_path, 3, **VERIFIED | {"verify__within": 8}) as run:
        for one in [await start_verifier(run, f"bad-{number}", "--trainer", LIAR) for number in range(count)]:
            assert min(far for found in (await distances(run, one, 6)).values() for far in found) > 1.5
        reasons = list[str]()
        while not any("none has shown since that it computes as before" in reason for reason in reasons):
            await run.until(in_training((await run.status()).step + 1))
            reasons = [one["reason"] for one in run.events(run.coordinator, "replays_dropped")]
        assert not run.events(run.coordinator, "client_convicted")


async def pass_everything(run: RealRun) -> Refused:
    """Take replays and pass each of them, as a verifier that computes nothing; return what ends that."""
    token = await run.command_here("token", "verifier", run.store)
    async with await CoordinatorClient.connect(run.url, retry_policy(), PLAIN) as api, asyncio.timeout(BOUND_S):
        api.use_token(token.out.strip())
        while True:
            try:
                leased = await api.lease_replay(1.0)
                if leased is not None:
                    of = leased.step, leased.client_id, leased.result_sha256
                    await api.report_replay(ReplayReport(*of, 0.0, 1.0, 1.0, CLASS, CLASS, 1))
            except Refused as refusal:
                if refusal.kind is Refusal.FORBIDDEN:
                    return refusal


@pytest.mark.nightly
async def test_verifier_that_passes_everything_loses_its_role(tmp_path: Path) -> None:
    async with real_run(tmp_path, config__init_min_clients=4, **VERIFIED) as run:
        for number in (1, 2):
            await start_verifier(run, f"verifier-{number}")
        for _ in range(3):
            await run.start_client()
        liars = [await run.start_client(trainer=LIAR)]
        assert "lost its role" in (await pass_everything(run)).message
        (tested,) = (one for one in run.events(run.coordinator, "verifier_tested") if one["is_refused"])
        assert (tested["excess"], tested["expected"] > 1.5) == (0.0, True)
        found = {one["client_id"] for one in run.events(run.coordinator, "client_convicted")}
        assert found == {run.client_id_of(one) for one in liars}


@pytest.mark.nightly
async def test_rounds_go_on_without_a_verifier_and_new_keys_stay_small(tmp_path: Path) -> None:
    """Status and page say that nobody computes results again."""
    batches = {"config__global_batch_size_start": 24, "config__global_batch_size_end": 24}
    async with real_run(tmp_path, 2, **VERIFIED | batches | {"verify__within": 1}) as run:
        dropped = await run.until_logged(run.coordinator, "replays_dropped")
        await run.until(in_training(max(dropped["steps"]) + 4))
        new = run.client_id_of(await run.start_client())
        shares, document = list[int](), await run.until(in_training(1))
        while len(shares) < 8:
            document = await run.until(in_training(document.step + 1))
            assert document.round is not None
            api, head = run.watch.api, document.round
            roster, work = await api.roster(head.roster_sha256), await api.work(head.work_sha256)
            assigned = assign_data_for_state(roster, work, head.assignment_seed, head.seed)
            if new in assigned:
                shares.append(total_batches(assigned[new]))
                assert 1 <= shares[-1] <= total_batches(work.shared) / 4
        (await run.command_here("status", run.url)).expect(0, NOBODY_VERIFIES)
        shown = await run.http.get(f"/v1/runs/{run.watch.api.run_id}/verification")
        assert any(NOBODY_VERIFIES in one for one in parse_document(VerificationView, shown.content).sentences)
        assert not run.events(run.coordinator, "client_convicted")


@pytest.mark.nightly
async def test_replays_whose_data_have_gone_blame_nobody(tmp_path: Path) -> None:
    of_run, own = write_tokens(tmp_path / "data"), write_tokens(tmp_path / "copy")
    whole = own.read_bytes()
    async with real_run(tmp_path / "run", 2, **VERIFIED | {"model__LLM__data_location": {"Local": str(of_run)}}) as run:
        verifier = await start_verifier(run, "verifier-1", "--data", str(own))
        await distances(run, verifier, 1)
        own.write_bytes(b"")
        await run.line_of(verifier, "not computed again (data)")
        own.write_bytes(whole)
        found = await distances(run, verifier, 4)
        assert {distance for client in found.values() for distance in client} == {0.0}
        assert not run.events(run.coordinator, "client_convicted")


@pytest.mark.nightly
async def test_verifier_reads_from_the_data_server_of_the_run(tmp_path: Path) -> None:
    config, port = write_served_tokens(tmp_path)
    location = {"model__LLM__data_location": {"Server": f"127.0.0.1:{port}"}}
    async with real_run(tmp_path / "run", config__init_min_clients=2, **VERIFIED, **location) as run:
        await run.start_server("data", "data-server", str(config), "--coordinator", run.url)
        for _ in range(2):
            await run.start_client()
        verifier = await start_verifier(run, "verifier-1")
        found = await distances(run, verifier, 6)
        assert {distance for client in found.values() for distance in client} == {0.0}


@pytest.mark.nightly
async def test_verifier_with_other_data_ends_before_it_reports(tmp_path: Path) -> None:
    others = tmp_path / "others"
    others.mkdir()
    (others / "tokens.bin").write_bytes(bytes(1 << 16))
    async with real_run(tmp_path, 2, **VERIFIED) as run:
        token = await run.command_here("token", "verifier", run.store)
        ran = await run.command("verifier", run.url, "--token", token.out.strip(), "--data", str(others))
        ran.expect(2)
        assert "the run's have" in ran.err
        assert "excess distance" not in ran.out


async def test_token_of_another_kind_is_refused_with_what_to_do(tmp_path: Path) -> None:
    async with real_run(tmp_path, **VERIFIED) as run:
        token = await run.command_here("token", "checker", run.store)
        ran = await run.command("verifier", run.url, "--token", token.out.strip())
        ran.expect(2)
        assert "`epochal token verifier` makes one" in ran.err
