"""Whole runs over data in parquet files."""

from pathlib import Path

import pytest

from tests.support.drive.processes import real_run
from tests.support.heavy import need_module

SEQ_LEN = 16


@pytest.mark.nightly
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
