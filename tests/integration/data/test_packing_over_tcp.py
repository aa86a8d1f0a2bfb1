"""A whole run that packs what a data server serves: replicas agree, and its tokens are exactly those of its samples."""

import json
from pathlib import Path

import pytest

from tests.support.drive.processes import prepared_run
from tests.support.heavy import need_module
from tests.support.servers.ports import free_port

MESH = ("--mesh", "data=2", "--processes", "2", "--batch-size", "2")
ROW, RECORDS, PER_BATCH = 64, 90, 3


def records() -> list[dict[str, str]]:
    """Prompts and completions, empty ones and some that are longer than a row."""
    return [
        {"prompt": f"{number}?", "completion": "so " * (number % 40)} if number % 5 else {"text": "é" * (number % 50)}
        for number in range(RECORDS)
    ]


def token_count(record: dict[str, str]) -> int:
    """The tokens of a record as the run trains on it: its bytes, cut to a row."""
    return min(ROW, len("".join(record.values()).encode()))


@pytest.mark.parametrize("options", [(), pytest.param(MESH, marks=pytest.mark.nightly)], ids=["plain", "mesh"])
async def test_tokens_of_a_packed_run_over_tcp_are_those_of_its_samples(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    if options:
        need_module("torch")
    folder, port = tmp_path / "data", free_port()
    folder.mkdir()
    (folder / "train.jsonl").write_text("\n".join(map(json.dumps, records())), encoding="utf-8")
    data = tmp_path / "data.toml"
    data.write_text('dir = "data"\n', encoding="utf-8")
    state = {
        "model__LLM__data_type": "Finetuning",
        "model__LLM__max_seq_len": ROW,
        "model__LLM__data_location": {"Server": f"127.0.0.1:{port}"},
        "packing": {"oversized": "truncate", "pool_size": 8},
        "config__data_indices_per_batch": PER_BATCH,
        "config__init_min_clients": 2,
        "config__total_steps": 4,
    }
    async with prepared_run(tmp_path / "run", **state) as run:
        await run.start_coordinator()
        await run.start_server("data-server", "data-server", str(data), "--coordinator", run.url)
        await run.start_client()
        await run.start_client(*options)
        report = await run.finish()
        status = await run.status()
        rows = (await run.http.get(f"/v1/runs/{run.watch.api.run_id}/history")).json()["rounds"]
        reported = await run.command_here("report", run.store, "--out", str(tmp_path / "report.html"))
        reported.expect(0)
    assert (report.rounds, report.quarantined, report.unapplied) == (4, 0, 0)
    samples = report.applied * PER_BATCH
    expected = sum(token_count(records()[number % RECORDS]) for number in range(samples))
    assert samples > RECORDS, "more than a pass"
    assert 0 < expected < samples * ROW
    assert status.tokens_applied == expected
    assert rows["tokens_total"][-1] == sum(rows["tokens"]) == expected
    page = (tmp_path / "report.html").read_text()
    times = zip(rows["tokens"], rows["train_s"], rows["witness_s"], strict=True)
    mean = sum(tokens / (train_s + witness_s) for tokens, train_s, witness_s in times) / len(rows["tokens"])
    assert f"{expected:,}" in page
    assert f"tokens applied per second of each round, {mean:,.0f} in the mean" in page
