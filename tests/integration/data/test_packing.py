"""Whole runs over samples of different lengths: packed in clients of one process and of several, and proved."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

from tests.support.drive.processes import real_run
from tests.support.heavy import need_module
from tests.support.models.installed_trainers import register

ROOT = str(Path(__file__).parents[3])
ROW = 64
FINETUNING = {
    "model__LLM__data_type": "Finetuning",
    "model__LLM__max_seq_len": ROW,
    "config__init_min_clients": 2,
    "config__total_steps": 5,
    "config__warmup_time": 120,  # the mesh's processes import much first
    "config__max_round_train_time": 120,
    "merge__local_steps": 2,
}


ENCODER = "tests.support.models.encoders:Chat"


def write_records(path: Path, count: int) -> None:
    path.parent.mkdir(exist_ok=True)
    generator = np.random.default_rng(count)
    lines = []
    for number in range(count):
        length = int(generator.integers(0, 40))
        lines.append(json.dumps({"question": f"what is {number}?", "answer": "it is so. " * length}))
    path.write_text("\n".join(lines))


@pytest.mark.nightly
async def test_run_packs_records_with_an_encoder_each_sample_counts_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need_module("torch")
    write_records(tmp_path / "data" / "train.jsonl", 90)
    write_records(tmp_path / "data" / "validation.jsonl", 20)
    register(tmp_path / "site", "chats", "epochal.task_encoders", chat=ENCODER)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((ROOT, str(tmp_path / "site"))))
    packing = {"method": "encoder", "pool_size": 8, "oversized": "split", "task_encoder": "chat"}
    location = {"Local": str(tmp_path / "data")}
    async with real_run(tmp_path / "run", **FINETUNING, model__LLM__data_location=location, packing=packing) as run:
        mesh = await run.start_client("--allow-package", "chats", "--mesh", "data=2", "--batch-size", "2")
        await run.start_client("--allow-package", "chats")
        report = await run.finish()
        assert report.replicas_identical
        packed = run.events(mesh, "mesh_round")
        assert len(packed) == report.rounds
        assert all(min(line["rows_loaded"]) > 0 for line in packed), "both processes train"
        assert (report.rounds, report.quarantined, report.unapplied, report.applied) == (5, 0, 0, 60)
        evaluated = await run.command("evaluate", str(run.run_dir), "--json")
        evaluated.expect(0)
        found = json.loads(evaluated.out)
        assert (found["step"], found["split"], found["samples"]) == (5, "validation", 20)
        assert 2 < found["loss"] < 6
        assert 0 < found["tokens"] < 20 * 400
