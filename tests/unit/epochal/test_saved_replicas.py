"""`--save DIR`: one complete folder of the run at any time; others' folders stay."""

import json
from pathlib import Path

import numpy as np
import pytest

from epochal.run_manager.replica.merged_outcomes import HeldReplica
from epochal.state.errors import InvalidInput
from epochal.state.model.replica import Replica, replica_digest
from epochal.state.wire import Sha256
from epochal.tools.export.destinations import step_name
from epochal.tools.export.folder import NOTE_FILE
from epochal.tools.saved_replicas import SavedReplicas
from epochal.trainers.sources.local_model import local_source
from tests.support.data.states import state_file

STATE = state_file()


def held(step: int, value: float = 1.0) -> HeldReplica:
    replica = Replica(step, {"w": np.full((2, 3), value, np.float32)}, {"w": np.zeros((2, 3), np.float32)})
    return HeldReplica(replica, Sha256(replica_digest(replica)))


async def save(folder: Path, replica: HeldReplica, run_id: str = "test-run") -> None:
    state = state_file(run_id=run_id)
    await SavedReplicas(folder)(state, state.model.LLM.spec, replica)


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


async def test_newer_replica_takes_the_place_of_the_older(tmp_path: Path) -> None:
    await save(tmp_path / "saved", held(1))
    await save(tmp_path / "saved", held(2, 7.0))
    assert names_in(tmp_path / "saved") == [step_name(2)]
    found = dict(local_source(tmp_path / "saved" / step_name(2)).tensors({"w": (2, 3)}))
    assert (found["w"] == 7.0).all()
    note = json.loads((tmp_path / "saved" / step_name(2) / NOTE_FILE).read_text())
    assert (note["run_id"], note["step"]) == ("test-run", 2)


async def test_same_step_of_another_history_is_replaced(tmp_path: Path) -> None:
    await save(tmp_path, held(1))
    await save(tmp_path, held(1, 5.0))
    found = dict(local_source(tmp_path / step_name(1)).tensors({"w": (2, 3)}))
    assert (found["w"] == 5.0).all()


async def test_folders_of_other_runs_and_files_of_the_owner_stay(tmp_path: Path) -> None:
    await save(tmp_path, held(1), run_id="other")
    (tmp_path / "notes.txt").write_text("mine")
    await save(tmp_path, held(2))
    assert names_in(tmp_path) == ["notes.txt", step_name(1), step_name(2)]
    with pytest.raises(InvalidInput, match="exists"):
        await save(tmp_path, held(1))


async def test_rest_of_a_killed_writing_is_replaced(tmp_path: Path) -> None:
    partial = tmp_path / f"{step_name(3)}.partial"
    partial.mkdir()
    (partial / "incomplete-export").touch()
    (partial / "model.safetensors").write_bytes(b"half")
    await save(tmp_path, held(3))
    assert names_in(tmp_path) == [step_name(3)]
