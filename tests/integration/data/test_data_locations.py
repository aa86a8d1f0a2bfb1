"""Whole runs over data behind a real nginx, in parquet files, and in a mix."""

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
