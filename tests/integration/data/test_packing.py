"""Whole runs over samples of different lengths: packed in the clients, encoded by a user's own class, proved."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from epochal.coordinator.proof.audit import AuditReport
from tests.support.drive.cli import Ran
from tests.support.drive.processes import real_run, run_command
from tests.support.heavy import need_module
from tests.support.models.installed_trainers import register

ROOT = str(Path(__file__).parents[3])
ROW = 64
FINETUNING = {
    "model__LLM__data_type": "Finetuning",
    "model__LLM__max_seq_len": ROW,
    "config__init_min_clients": 2,
    "config__total_steps": 10,
}


ENCODER = "tests.support.models.encoders:Chat"


async def pack(folder: Path, out: Path, *arguments: str, oversized: str = "split") -> Ran:
    """Run `epochal data pack` with the encoder of these tests, into rows of `ROW` tokens."""
    rows = ("--seq-len", str(ROW), "--oversized", oversized, "--method", "encoder", "--task-encoder", ENCODER)
    command = ("data", "pack", str(folder), "--out", str(out), "--json", *rows)
    return await run_command(*command, *arguments, PYTHONPATH=ROOT)


async def finished(folder: Path, **overrides: Any) -> AuditReport:
    """Run to the end, and return the report."""
    async with real_run(folder, **(FINETUNING | overrides)) as run:
        for _ in range(2):
            await run.start_client()
        return await run.finish()


def write_records(path: Path, count: int) -> None:
    path.parent.mkdir(exist_ok=True)
    generator = np.random.default_rng(count)
    lines = []
    for number in range(count):
        length = int(generator.integers(0, 40))
        lines.append(json.dumps({"question": f"what is {number}?", "answer": "it is so. " * length}))
    path.write_text("\n".join(lines))


async def test_run_packs_records_with_an_encoder_each_sample_counts_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_records(tmp_path / "data" / "train.jsonl", 90)
    write_records(tmp_path / "data" / "validation.jsonl", 20)
    register(tmp_path / "site", "chats", "epochal.task_encoders", chat=ENCODER)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((ROOT, str(tmp_path / "site"))))
    packing = {"method": "encoder", "pool_size": 8, "oversized": "split", "task_encoder": "chat"}
    location = {"Local": str(tmp_path / "data")}
    async with real_run(tmp_path / "run", **FINETUNING, model__LLM__data_location=location, packing=packing) as run:
        for _ in range(2):
            await run.start_client("--allow-package", "chats")
        report = await run.finish()
        assert (report.rounds, report.quarantined, report.unapplied, report.applied) == (10, 0, 0, 120)
        evaluated = await run.command("evaluate", str(run.run_dir), "--json")
        evaluated.expect(0)
        found = json.loads(evaluated.out)
        assert (found["step"], found["split"], found["samples"]) == (10, "validation", 20)
        assert 2 < found["loss"] < 6
        assert 0 < found["tokens"] < 20 * 400
        ran = await run.command("evaluate", str(run.run_dir), "--json", "--split", "train")
        ran.expect(0)
        train = json.loads(ran.out)
        assert train["samples"] == 90
        assert train["tokens"] > found["tokens"]


@pytest.mark.nightly
async def test_record_that_no_client_can_encode_is_quarantined_by_its_batch(tmp_path: Path) -> None:
    lines = [json.dumps({"text": f"record {number}. " * 3}) for number in range(60)]
    lines[17] = '{"text": '
    (tmp_path / "lines.jsonl").write_text("\n".join(lines))
    overrides = FINETUNING | {"model__LLM__data_location": {"Local": str(tmp_path / "lines.jsonl")}}
    overrides |= {"config__total_steps": 14, "config__init_min_clients": 3}
    async with real_run(tmp_path / "run", **overrides) as run:
        for _ in range(3):
            await run.start_client()
        report = await run.finish()
        assert report.quarantined >= 1
        quarantined = {batch.start for batch in (await run.status()).quarantined}
        assert {number % 60 for number in quarantined} == {17}
        reported = [event for child in run.clients for event in run.events(child, "step_failed")]
        assert any("data index 17 is not JSON" in event["reason"] for event in reported)


@pytest.mark.nightly
async def test_parquet_rows_of_any_length_are_packed(tmp_path: Path) -> None:
    need_module("pyarrow")
    import pyarrow
    import pyarrow.parquet

    generator = np.random.default_rng(3)
    rows = [generator.integers(0, 256, int(length)).tolist() for length in generator.integers(1, 100, 80)]
    (tmp_path / "rows").mkdir()
    pyarrow.parquet.write_table(pyarrow.table({"inputs": rows}), tmp_path / "rows" / "train.parquet")
    location = {"Preprocessed": str(tmp_path / "rows")}
    report = await finished(tmp_path / "run", model__LLM__data_location=location, packing={"oversized": "truncate"})
    assert (report.rounds, report.quarantined, report.applied) == (10, 0, 120)


@pytest.mark.nightly
@pytest.mark.parametrize("oversized", ["split", "drop"])
async def test_data_pack_shows_the_fill_and_keeps_rows_that_a_run_reads(tmp_path: Path, oversized: str) -> None:
    need_module("pyarrow")
    write_records(tmp_path / "data" / "train.jsonl", 300)
    ran = await pack(tmp_path / "data", tmp_path / "packed", oversized=oversized)
    ran.expect(0)
    found = json.loads(ran.out)
    counts = found["counts"]
    assert counts["samples"] == 300 == counts["finished"] + counts["skipped"] + counts["dropped"]
    assert counts["skipped"] > 0
    assert found["fill"] > 0.8
    again = await pack(tmp_path / "data", tmp_path / "packed", oversized=oversized)
    assert json.loads(again.out) == found, "there was nothing left to do"

    location = {"Preprocessed": str(tmp_path / "packed")}
    report = await finished(tmp_path / "run", model__LLM__data_type="Pretraining", model__LLM__data_location=location)
    assert (report.rounds, report.quarantined) == (10, 0)


@pytest.mark.nightly
async def test_data_pack_goes_on_where_it_was_interrupted(tmp_path: Path) -> None:
    need_module("pyarrow")
    import pyarrow.parquet

    write_records(tmp_path / "data" / "train.jsonl", 6000)
    data, cut = tmp_path / "data", tmp_path / "cut"
    whole = json.loads((await pack(data, tmp_path / "whole")).out)
    assert whole["parts"] > 2
    path = data / "train.jsonl"
    good = path.read_bytes()
    lines = good.split(b"\n")
    lines[5000] = lines[5000][:-1] + b"!"
    path.write_bytes(b"\n".join(lines))
    (await pack(data, cut)).expect(1, "data index 5000 is not JSON")
    kept = sorted(name for name in os.listdir(cut) if name.endswith(".parquet"))
    assert 0 < len(kept) < whole["parts"]
    (cut / f"train-{len(kept):05}.parquet").write_bytes(b"a part that was not finished")

    path.write_bytes(good)
    ran = await pack(data, cut)
    ran.expect(0)
    assert json.loads(ran.out) == whole
    assert sorted(os.listdir(cut)) == sorted(os.listdir(tmp_path / "whole"))
    for name in kept:
        assert (cut / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    for number in range(whole["parts"]):
        name = f"train-{number:05}.parquet"
        ours, theirs = (pyarrow.parquet.read_table(tmp_path / folder / name) for folder in ("cut", "whole"))
        assert ours.equals(theirs)

    (await pack(data, cut, "--pool-size", "9")).expect(2, "pool_size was 256 and is 9")
    path.write_text('{"question": "?", "answer": "!"}')
    (await pack(data, cut)).expect(2, "is of other data")


@pytest.mark.nightly
async def test_data_pack_replaces_an_unnoted_part_and_misses_a_noted_one(tmp_path: Path) -> None:
    need_module("pyarrow")
    write_records(tmp_path / "data" / "train.jsonl", 60)
    path = tmp_path / "data" / "train.jsonl"
    good = path.read_bytes()
    path.write_bytes(b"!" + good[1:])
    data, packed = tmp_path / "data", tmp_path / "packed"
    (await pack(data, packed)).expect(1, "data index 0 is not JSON")
    part = packed / "train-00000.parquet"
    part.write_bytes(b"left by a command that was interrupted before it noted its first part")
    path.write_bytes(good)
    (await pack(data, packed, "--pool-size", "9")).expect(0)
    assert part.read_bytes().startswith(b"PAR1")
    part.unlink()
    missing = "lacks train-00000.parquet, which was written before"
    (await pack(data, packed, "--pool-size", "9")).expect(2, missing)


async def test_samples_that_are_tolerated_are_named(tmp_path: Path) -> None:
    (tmp_path / "lines.jsonl").write_text('{"text": "here"}\n{"text": 5}')
    ran = await run_command("data", "pack", str(tmp_path / "lines.jsonl"), "--max-failed-samples", "1", "--json")
    ran.expect(0, "sample_failed data_index=1 reason=data index 1 is a record of text")
    assert json.loads(ran.out)["counts"]["failed"] == 1
