"""`run_manager/kept_states.py`: inner states on disk, from which rounds go on, also after a restart."""

import contextlib
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from epochal.run_manager.events import ignore
from epochal.run_manager.kept_states import KeptStates
from epochal.run_manager.own_results import OwnResults
from epochal.run_manager.trainer_opening import TrainerOpening
from epochal.runtime.files.spool import Spool
from epochal.runtime.worker_thread import InlineWorker
from epochal.state.config.verify_table import STATES_BEYOND
from epochal.state.errors import SpoolFull
from epochal.state.model.replica import first_replica
from epochal.state.shown.spool_room import round_bytes
from epochal.state.wire import Sha256, sha256_hex
from epochal.trainers.learner_trainer import LearnerTrainer
from epochal.trainers.ngram.learner import NgramModel
from epochal.trainers.protocol import Trainer
from tests.support.data.spooled import SPOOL_PARENT
from tests.support.data.states import state_file
from tests.support.models.local_training import ADAMW, SEED, TINY, arriving, bytes_of, plan_of, sequences_of


class Client:
    """A client's trainer with its states, in a process of its own."""

    def __init__(self, folder: Path) -> None:
        self.trainer = LearnerTrainer(NgramModel(TINY), ADAMW, True, InlineWorker())
        self.opening = TrainerOpening(lambda _: None, InlineWorker(), ignore)
        self.states = KeptStates(self.opening, NoRequests(), Spool(SPOOL_PARENT), folder, InlineWorker())

    async def opened(self) -> "Client":
        async def open_trainer() -> Trainer:
            return self.trainer

        async def no_packing(_: int | None) -> None:
            return None

        await self.opening.run(open_trainer, no_packing)
        return self

    async def train(self) -> dict[str, bytes]:
        """Train a round, whose result counts, and return the difference."""
        start = await self.trainer.initial_parameters(SEED)
        trained = await self.trainer.train(plan_of(4), start, arriving(sequences_of(*[16] * 4)))
        self.trainer.commit_inner_state()
        return bytes_of(trained.difference)


class NoRequests:
    """Nobody asks for a state here."""

    async def put_blob(self, sha256: Sha256, file: object) -> None:
        raise AssertionError(sha256)

    async def get_blob(self, sha256: Sha256, file: object) -> None:
        raise AssertionError(sha256)


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


async def test_file_that_is_deleted_while_another_is_looked_for_harms_nothing(tmp_path: Path) -> None:
    client = await Client(tmp_path).opened()
    await client.train()
    kept = await client.states.end(1, None, 1)
    (tmp_path / f"0-{'ab' * 32}.state").symlink_to(tmp_path / "deleted")
    assert await client.states.begin(Sha256(kept.end.sha256)) == kept.end
    layout = first_replica(0, await client.trainer.initial_parameters(SEED)).layout
    growth = client.states.growth_bytes(layout, state_file(merge__inner_state="keep", verify={"within": 2}))
    assert growth == 5 * 2 * layout.size_bytes - kept.end.size_bytes


async def test_round_goes_on_from_a_kept_state_also_after_a_restart(tmp_path: Path) -> None:
    first = await Client(tmp_path).opened()
    assert await first.states.begin(None) is None
    await first.train()
    ended = await first.states.end(1, None, rounds=4)
    assert (ended.begin, names_in(tmp_path)) == (None, [f"1-{ended.end.sha256}.state"])
    again = await Client(tmp_path).opened()
    for client in (first, again):
        assert await client.states.begin(Sha256(ended.end.sha256)) == ended.end
    assert await first.train() == await again.train()


async def test_state_that_is_lost_or_damaged_lets_the_round_begin_fresh(tmp_path: Path) -> None:
    client = await Client(tmp_path).opened()
    fresh = await client.train()
    ended = await client.states.end(1, None, rounds=4)
    (path,) = (tmp_path / name for name in names_in(tmp_path))
    path.write_bytes(path.read_bytes()[:-1])
    for digest in (Sha256(ended.end.sha256), Sha256(sha256_hex(b"another"))):
        other = await Client(tmp_path).opened()
        assert await other.states.begin(digest) is None
        assert await other.train() == fresh


async def test_round_needs_room_for_the_states_that_are_not_kept_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await Client(tmp_path / "states").opened()
    start = first_replica(0, await client.trainer.initial_parameters(SEED))
    state = state_file(merge__inner_state="keep", verify={"within": 2})
    assert client.states.growth_bytes(start.layout, state) == 5 * 2 * start.layout.size_bytes
    await client.train()
    kept = await client.states.end(1, None, rounds=2)
    growth = client.states.growth_bytes(start.layout, state)
    assert growth == 5 * 2 * start.layout.size_bytes - kept.end.size_bytes
    spool = Spool(tmp_path)
    results = OwnResults(client.opening, spool, InlineWorker(), states=client.states)
    needed = round_bytes(start.layout, state)
    for free, finds_room in ((needed + growth, True), (needed, False)):
        monkeypatch.setattr(shutil, "disk_usage", lambda _, free=free: SimpleNamespace(free=free))
        with contextlib.nullcontext() if finds_room else pytest.raises(SpoolFull, match="of inner states"):
            results.check_room(start, state)
    results.check_room(start, state_file(verify={"within": 2}, merge__inner_state="reset"))


async def test_states_are_bounded_and_one_attempt_replaces_another(tmp_path: Path) -> None:
    client = await Client(tmp_path).opened()
    for step in (1, 2, 3, 3, 3, 4, 5):
        await client.train()
        await client.states.end(step, None, rounds=2)
    assert len(names_in(tmp_path)) == 2 + STATES_BEYOND
    assert [name.partition("-")[0] for name in names_in(tmp_path)] == ["2", "3", "4", "5"]
