"""The figures that plans show are those of the bench's kept runs, and of its pages."""

from pathlib import Path

import pytest

from benchmarks.training import codec_quality, quality, quality_data
from benchmarks.training.codec_quality import SETTINGS
from epochal.tools.quality import DATA, LARGER, MEASURED, Measured
from tests.support.heavy import need_module

DOCS = Path(__file__).parents[3] / "docs"
OTHERS = "benchmarks-codecs.md"


def page_of(row: Measured) -> str:
    is_first = row.choice == "local_steps" and row.optimizer == "AdamW"
    return (DOCS / ("benchmarks-quality.md" if is_first else OTHERS)).read_text(encoding="utf-8")


def test_file_is_what_the_bench_writes() -> None:
    need_module("transformers")
    missing = [run.path.name for run in (*quality.planned(), *codec_quality.planned(SETTINGS)) if run.kept() is None]
    assert missing == []
    assert DATA.read_text(encoding="utf-8") == quality_data.text(), "write it: `quality_data.write()`"


@pytest.mark.parametrize(
    "row", [*MEASURED, *LARGER], ids=lambda row: f"{row.choice}-{row.merge.codec}-{row.merge.local_steps}"
)
def test_each_figure_is_on_the_page_of_its_bench(row: Measured) -> None:
    page = page_of(row)
    assert f"| {row.ratio:.4f} |" in page
    assert f"seed by seed {', '.join(f'{loss:.4f}' for loss in row.losses)}" in page
