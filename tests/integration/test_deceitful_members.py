"""Members of a run of real processes that deliver something else than they trained, in ways that are hard to find."""

import signal
from pathlib import Path

import pytest

from benchmarks.rounds.scale_load import begin, crowd_at, many_files
from benchmarks.servers import RUN_ID
from epochal.coordinator.machine.parts.verification import DRIFTS
from epochal.state.assignment import assign_data_for_state
from epochal.state.config.model_table import NgramConfig
from epochal.state.intervals import total_batches
from epochal.state.wire import ClientId
from epochal.tools.testnet.child_processes import Child
from tests.support.drive.processes import SMALL_MODEL, RealRun, in_training, real_run
from tests.support.drive.verifiers import LYING_TRAINERS, VERIFIED, distances, start_verifier
from tests.support.models.lying_trainer import HONEST_STEPS, LIES_ONCE, LITTLE

LIAR, LATE, COLLUDING, COPIER = (
    f"{LYING_TRAINERS}:{name}" for name in ("LyingTrainer", "LateLyingTrainer", "ColludingTrainer", "OldResultsTrainer")
)
NEW_CLIENTS, NEW_KEYS = 8, 1000
"""Clients that train and lie, and keys of one process that send zeros."""
CAUGHT = 10
"""Convicted keys with which a test is content."""


def ids_of(run: RealRun, clients: list[Child]) -> set[ClientId]:
    return {run.client_id_of(one) for one in clients}


def convicted(run: RealRun) -> set[ClientId]:
    return {one["client_id"] for one in run.events(run.coordinator, "client_convicted")}


@pytest.mark.nightly
async def test_member_that_delivers_an_old_result_again_is_found(tmp_path: Path) -> None:
    async with real_run(tmp_path, config__init_min_clients=4, **VERIFIED | {"verify__percent": 10}) as run:
        await start_verifier(run, "verifier-1")
        for _ in range(3):
            await run.start_client()
        copier = run.client_id_of(await run.start_client(trainer=COPIER))
        convicted = await run.until_logged(run.coordinator, "client_convicted")
        assert convicted["client_id"] == copier
        assert convicted["step"] > HONEST_STEPS
        assert copier in {one["client_id"] for one in run.events(run.coordinator, "client_flagged")}


@pytest.mark.nightly
async def test_member_that_was_honest_for_nineteen_rounds_is_convicted_later(tmp_path: Path) -> None:
    """Its trust makes the lot rarer, one in ten, not its replays milder."""
    async with real_run(tmp_path, config__init_min_clients=4, **VERIFIED | {"verify__percent": 10}) as run:
        verifier = await start_verifier(run, "verifier-1")
        for _ in range(3):
            await run.start_client()
        late = await run.start_client(trainer=LATE, environment={LIES_ONCE: str(tmp_path / "now")})
        (trusted,) = (await distances(run, verifier, 1, of=ids_of(run, [late])))[run.client_id_of(late)]
        document = await run.until(in_training(20))
        (tmp_path / "now").touch()
        found = await run.until_logged(run.coordinator, "client_convicted")
        assert (trusted, found["client_id"]) == (0.0, run.client_id_of(late))
        assert found["step"] >= document.step
        assert convicted(run) == ids_of(run, [late])
        await run.stop_coordinator()
        await run.prove()


@pytest.mark.nightly
async def test_three_that_collude_within_the_tolerance_are_flagged_not_convicted(tmp_path: Path) -> None:
    """They push in one direction. What they do is far more than is usual for others, and their shares do not grow."""
    async with real_run(tmp_path, config__init_min_clients=6, **VERIFIED | {"merge__codec": "float32"}) as run:
        verifier = await start_verifier(run, "verifier-1", "--calibrate", "2")
        honest = [await run.start_client() for _ in range(3)]
        three = [await run.start_client(trainer=COLLUDING) for _ in range(3)]
        flagged, found = set[ClientId](), list[tuple[str, float]]()
        while len(flagged) < 2:  # a busy verifier may come to the third late
            seen = await distances(run, verifier, 1)
            found += [(client_id, excess) for client_id, each in seen.items() for excess in each]
            told = run.events(run.coordinator, "client_flagged")  # some for their direction, as honest ones may be
            flagged = {one["client_id"] for one in told if one["reason"] == DRIFTS}
        assert flagged <= ids_of(run, three)
        assert {excess for client_id, excess in found if client_id in ids_of(run, honest)} <= {0.0}
        assert 0.9 * LITTLE <= max(excess for client_id, excess in found if client_id in flagged) <= 0.02
        assert convicted(run) == set()


@pytest.mark.nightly
async def test_slow_verifier_convicts_all_the_same_and_rounds_do_not_wait(tmp_path: Path) -> None:
    """While it stands still, two rounds pass after each of its reports; most results are never computed again."""
    async with real_run(tmp_path, config__init_min_clients=3, **VERIFIED | {"verify__within": 16}) as run:
        verifier = await start_verifier(run, "verifier-1")
        for _ in range(2):
            await run.start_client()
        liar = await run.start_client(trainer=LIAR)
        while not convicted(run):
            await distances(run, verifier, 1)
            verifier.process.send_signal(signal.SIGSTOP)
            await run.until(in_training((await run.status()).step + 2))
            verifier.process.send_signal(signal.SIGCONT)
        verifier.process.send_signal(signal.SIGSTOP)
        await run.until(in_training((await run.status()).step + 18))
        assert run.events(run.coordinator, "replays_dropped")
        assert convicted(run) == ids_of(run, [liar])
        verifier.process.send_signal(signal.SIGCONT)
        await distances(run, verifier, 1)


async def until_convicted(run: RealRun, count: int, honest: set[ClientId]) -> None:
    """Wait until so many keys are convicted; in each round until then new keys have a quarter of the work at most."""
    document = await run.until(in_training(1))
    while len(convicted(run)) < count:
        document = await run.until(in_training(document.step + 1))
        assert document.round is not None
        api, head = run.watch.api, document.round
        roster, work = await api.roster(head.roster_sha256), await api.work(head.work_sha256)
        assigned = assign_data_for_state(roster, work, head.assignment_seed, head.seed)
        of_new = sum(total_batches(each) for who, each in assigned.items() if who not in honest)
        assert of_new <= total_batches(work.shared) / 4
        assert {one.client_id for one in roster.clients if one.proven} <= honest
    assert not convicted(run) & honest


@pytest.mark.nightly
async def test_many_new_keys_have_a_quarter_of_the_work_until_convicted(tmp_path: Path) -> None:
    batches = {"config__global_batch_size_start": 24, "config__global_batch_size_end": 24}
    async with real_run(tmp_path, config__init_min_clients=3, **VERIFIED | batches) as run:
        verifier = await start_verifier(run, "verifier-1")
        honest = ids_of(run, [await run.start_client() for _ in range(3)])
        await distances(run, verifier, 3, of=honest)
        for _ in range(NEW_CLIENTS):
            await run.start_client(trainer=LIAR)
        await until_convicted(run, 2, honest)
        await run.stop_coordinator()
        await run.prove()


@pytest.mark.nightly
async def test_thousand_new_keys_have_a_quarter_of_the_work_until_convicted(tmp_path: Path) -> None:
    batches = {"config__global_batch_size_start": 240, "config__global_batch_size_end": 240}
    with many_files():
        async with real_run(
            tmp_path, config__init_min_clients=3, run_id=RUN_ID, **VERIFIED | batches | {"merge__codec": "float32"}
        ) as run:
            verifier = await start_verifier(run, "verifier-1")
            honest = ids_of(run, [await run.start_client("--share", "80") for _ in range(3)])
            await distances(run, verifier, 3, of=honest)
            async with crowd_at((run.url,), NgramConfig(**SMALL_MODEL)) as (crowd, keys):
                await begin(NEW_KEYS, crowd, keys)
                await until_convicted(run, CAUGHT, honest)
            await run.stop_coordinator()
            await run.prove()
