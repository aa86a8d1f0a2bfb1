"""Whole runs over samples of different lengths: packed in the clients, encoded by a user's own class, proved."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

from tests.support.heavy import need_module
from tests.support.processes import real_run, run_command

ROOT = str(Path(__file__).parents[2])
ROW = 64
FINETUNING = {
    "model__LLM__data_type": "Finetuning",
    "model__LLM__max_seq_len": ROW,
    "config__init_min_clients": 2,
    "config__total_steps": 10,
}


def write_records(path: Path, count: int) -> None:
    path.parent.mkdir(exist_ok=True)
    generator = np.random.default_rng(count)
    lines = []
    for number in range(count):
        length = int(generator.integers(0, 40))
        lines.append(json.dumps({"question": f"what is {number}?", "answer": "it is so. " * length}))
    path.write_text("\n".join(lines))


async def test_run_packs_records_with_a_user_s_encoder_and_every_sample_counts_once(tmp_path: Path) -> None:
    write_records(tmp_path / "data" / "train.jsonl", 90)
    write_records(tmp_path / "data" / "validation.jsonl", 20)
    packing = {
        "method": "encoder",
        "pool_size": 8,
        "oversized": "split",
        "task_encoder": "tests.support.encoders:Chat",
    }
    location = {"Local": str(tmp_path / "data")}
    async with real_run(tmp_path / "run", **FINETUNING, model__LLM__data_location=location, packing=packing) as run:
        for _ in range(2):
            await run.start_client()
        report = await run.finish()
        assert (report.rounds, report.quarantined, report.unapplied, report.applied) == (10, 0, 0, 120)
        evaluated = await run.command("evaluate", str(run.run_dir), "--json")
        assert evaluated.code == 0, evaluated.err
        found = json.loads(evaluated.out)
        assert (found["step"], found["split"], found["samples"]) == (10, "validation", 20)
        assert 2 < found["loss"] < 6
        assert 0 < found["tokens"] < 20 * 400
        ran = await run.command("evaluate", str(run.run_dir), "--json", "--split", "train")
        assert ran.code == 0, ran.err
        train = json.loads(ran.out)
        assert train["samples"] == 90
        assert train["tokens"] > found["tokens"]


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


async def test_parquet_rows_of_any_length_are_packed(tmp_path: Path) -> None:
    need_module("pyarrow")
    import pyarrow
    import pyarrow.parquet

    generator = np.random.default_rng(3)
    rows = [generator.integers(0, 256, int(length)).tolist() for length in generator.integers(1, 100, 80)]
    (tmp_path / "rows").mkdir()
    pyarrow.parquet.write_table(pyarrow.table({"inputs": rows}), tmp_path / "rows" / "train.parquet")
    overrides = FINETUNING | {"model__LLM__data_location": {"Preprocessed": str(tmp_path / "rows")}}
    async with real_run(tmp_path / "run", **overrides, packing={"oversized": "truncate"}) as run:
        for _ in range(2):
            await run.start_client()
        report = await run.finish()
        assert (report.rounds, report.quarantined, report.applied) == (10, 0, 120)


@pytest.mark.parametrize("oversized", ["split", "drop"])
async def test_data_pack_shows_the_fill_and_keeps_rows_that_a_run_reads(tmp_path: Path, oversized: str) -> None:
    need_module("pyarrow")
    write_records(tmp_path / "data" / "train.jsonl", 300)
    arguments = ("--seq-len", str(ROW), "--oversized", oversized, "--task-encoder", "tests.support.encoders:Chat")
    pack = ("data", "pack", str(tmp_path / "data"), *arguments, "--method", "encoder", "--json")
    ran = await run_command(*pack, "--out", str(tmp_path / "packed"), PYTHONPATH=ROOT)
    assert ran.code == 0, ran.err
    report = json.loads(ran.out)
    counts = report["counts"]
    assert counts["samples"] == 300 == counts["finished"] + counts["skipped"] + counts["dropped"]
    assert counts["skipped"] > 0
    assert report["fill"] > 0.8
    again = await run_command(*pack, "--out", str(tmp_path / "packed"), PYTHONPATH=ROOT)
    assert json.loads(again.out) == report, "there was nothing left to do"

    location = {"Preprocessed": str(tmp_path / "packed")}
    overrides = FINETUNING | {"model__LLM__data_type": "Pretraining", "model__LLM__data_location": location}
    async with real_run(tmp_path / "run", **overrides) as run:
        for _ in range(2):
            await run.start_client()
        report = await run.finish()
        assert (report.rounds, report.quarantined) == (10, 0)


async def test_data_pack_goes_on_where_it_was_interrupted(tmp_path: Path) -> None:
    need_module("pyarrow")
    import pyarrow.parquet

    write_records(tmp_path / "data" / "train.jsonl", 6000)
    arguments = ("--seq-len", str(ROW), "--oversized", "split", "--task-encoder", "tests.support.encoders:Chat")
    pack = ("data", "pack", str(tmp_path / "data"), *arguments, "--method", "encoder", "--json", "--out")
    whole = json.loads((await run_command(*pack, str(tmp_path / "whole"), PYTHONPATH=ROOT)).out)
    assert whole["parts"] > 2
    path = tmp_path / "data" / "train.jsonl"
    good = path.read_bytes()
    lines = good.split(b"\n")
    lines[5000] = lines[5000][:-1] + b"!"
    path.write_bytes(b"\n".join(lines))
    stopped = await run_command(*pack, str(tmp_path / "cut"), PYTHONPATH=ROOT)
    assert stopped.code == 1
    assert "data index 5000 is not JSON" in stopped.err
    kept = sorted(name for name in os.listdir(tmp_path / "cut") if name.endswith(".parquet"))
    assert 0 < len(kept) < whole["parts"]
    (tmp_path / "cut" / f"train-{len(kept):05}.parquet").write_bytes(b"a part that was not finished")

    path.write_bytes(good)
    ran = await run_command(*pack, str(tmp_path / "cut"), PYTHONPATH=ROOT)
    assert ran.code == 0, ran.err
    assert json.loads(ran.out) == whole
    assert sorted(os.listdir(tmp_path / "cut")) == sorted(os.listdir(tmp_path / "whole"))
    for name in kept:
        assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    for number in range(whole["parts"]):
        name = f"train-{number:05}.parquet"
        ours, theirs = (pyarrow.parquet.read_table(tmp_path / folder / name) for folder in ("cut", "whole"))
        assert ours.equals(theirs)

    other = await run_command(*pack, str(tmp_path / "cut"), "--pool-size", "9", PYTHONPATH=ROOT)
    assert other.code == 2
    assert "pool_size was 256 and is 9" in other.err
    path.write_text('{"question": "?", "answer": "!"}')
    changed = await run_command(*pack, str(tmp_path / "cut"), PYTHONPATH=ROOT)
    assert changed.code == 2
    assert "is of other data" in changed.err


async def test_data_pack_goes_on_from_a_first_part_that_was_not_noted_and_misses_one_that_was(tmp_path: Path) -> None:
    need_module("pyarrow")
    write_records(tmp_path / "data" / "train.jsonl", 60)
    path = tmp_path / "data" / "train.jsonl"
    good = path.read_bytes()
    path.write_bytes(b"!" + good[1:])
    encoder = ("--method", "encoder", "--task-encoder", "tests.support.encoders:Chat")
    pack = ("data", "pack", str(tmp_path / "data"), *encoder, "--json", "--out", str(tmp_path / "packed"))
    stopped = await run_command(*pack, PYTHONPATH=ROOT)
    assert stopped.code == 1
    assert "data index 0 is not JSON" in stopped.err
    part = tmp_path / "packed" / "train-00000.parquet"
    part.write_bytes(b"what a command leaves that is interrupted before it has noted its first part")
    path.write_bytes(good)
    ran = await run_command(*pack, "--pool-size", "9", PYTHONPATH=ROOT)
    assert ran.code == 0, ran.err
    assert part.read_bytes().startswith(b"PAR1")
    part.unlink()
    again = await run_command(*pack, "--pool-size", "9", PYTHONPATH=ROOT)
    assert again.code == 2
    assert "lacks train-00000.parquet, which was written before" in again.err


async def test_samples_that_are_tolerated_are_named(tmp_path: Path) -> None:
    (tmp_path / "lines.jsonl").write_text('{"text": "here"}\n{"text": 5}')
    ran = await run_command("data", "pack", str(tmp_path / "lines.jsonl"), "--max-failed-samples", "1", "--json")
    assert ran.code == 0, ran.err
    assert json.loads(ran.out)["counts"]["failed"] == 1
    assert "sample_failed data_index=1 reason=data index 1 is a record of text" in ran.err
