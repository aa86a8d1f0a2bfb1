"""Whole runs over data behind a real nginx, in parquet files, and in a mix."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.drive.processes import in_training, real_run
from tests.support.heavy import need_module
from tests.support.servers.nginx import nginx
from tests.support.servers.ports import free_port

SEQ_LEN = 16
FILES = 3
SEQUENCES_PER_FILE = 100


def write_files(folder: Path) -> None:
    folder.mkdir()
    for number in range(FILES):
        tokens = np.arange(SEQ_LEN * SEQUENCES_PER_FILE) * (number + 3) % 256
        tokens.astype("<u2").tofile(folder / f"{number:03}.bin")


def http_location(files: dict[str, Any], shuffle: object) -> dict[str, Any]:
    return {"Http": {"location": files, "token_size_in_bytes": "TwoBytes", "shuffle": shuffle}}


@pytest.mark.nightly
async def test_clients_of_numbered_files_share_a_cache(tmp_path: Path) -> None:
    write_files(tmp_path / "root")
    port = free_port()
    template = f"http://127.0.0.1:{port}/data/{{}}.bin"
    files = {"url_template": template, "start_index": 0, "n_left_pad_zeros": 3, "num_files": FILES}
    overrides = {
        "config__init_min_clients": 2,
        "config__total_steps": 30,
        "model__LLM__data_location": http_location({"NumberedFiles": files}, {"Seeded": list(range(32))}),
    }
    cache = ("--cache", str(tmp_path / "cache"))
    async with real_run(tmp_path / "run", **overrides) as run:
        with nginx(tmp_path / "first", tmp_path / "root", port) as server:
            for _ in range(2):
                await run.start_client(*cache)
            await run.until(in_training(6))
            asked = [line for line in server.requests() if "bytes=0-0" not in line and "404" not in line]
        report = await run.finish()
        assert report.rounds == 30
        assert report.quarantined == 0
        assert len(asked) <= 2 * FILES, "a file is one block, and each client fetches a block once at most"
        assert list((tmp_path / "cache").glob("??/*"))


@pytest.mark.nightly
async def test_data_behind_http_that_go_away_are_waited_for(tmp_path: Path) -> None:
    write_files(tmp_path / "root")
    port = free_port()
    urls = [f"http://127.0.0.1:{port}/data/{number:03}.bin" for number in range(FILES)]
    overrides = {"config__total_steps": 20, "model__LLM__data_location": http_location({"Urls": urls}, "DontShuffle")}
    async with real_run(tmp_path / "run", **overrides) as run:
        with nginx(tmp_path / "first", tmp_path / "root", port):
            await run.start_client()
            await run.until(in_training(2))
        with nginx(tmp_path / "second", tmp_path / "root", port):
            report = await run.finish()
        assert report.rounds == 20
        assert report.quarantined == 0, "unavailable data are not bad data"
        assert (await run.status()).quarantined == ()


async def test_run_over_parquet_samples_is_finished_and_proved(tmp_path: Path) -> None:
    need_module("pyarrow")
    import pyarrow
    import pyarrow.parquet

    (tmp_path / "rows").mkdir()
    rows = [[(number * place) % 256 for place in range(number % SEQ_LEN + 1)] for number in range(90)]
    pyarrow.parquet.write_table(pyarrow.table({"inputs": rows}), tmp_path / "rows" / "train-00000-of-00001.parquet")
    location = {"Preprocessed": str(tmp_path / "rows")}
    overrides = {"config__total_steps": 12, "model__LLM__data_location": location}
    async with real_run(tmp_path / "run", 2, **overrides) as run:
        report = await run.finish()
        assert (report.rounds, report.quarantined, report.unapplied) == (12, 0, 0)


@pytest.mark.nightly
async def test_run_over_a_mix_goes_on_past_the_pass_of_a_source(tmp_path: Path) -> None:
    write_files(tmp_path / "root")
    mix = [
        {"location": {"Local": "root/000.bin"}, "weight": 3},
        {"location": {"Local": "root/001.bin"}, "weight": 1},
    ]
    (tmp_path / "mix.json").write_text(json.dumps(mix))
    location = {"WeightedHttp": str(tmp_path / "mix.json")}
    overrides = {"config__total_steps": 12, "model__LLM__data_location": location}
    async with real_run(tmp_path / "run", 2, **overrides) as run:
        report = await run.finish()
        assert (report.rounds, report.quarantined, report.unapplied) == (12, 0, 0)
        assert report.applied > SEQUENCES_PER_FILE
