"""Rows of packed samples as parquet files, which runs read as preprocessed samples."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from epochal.data_providers.file_names import PARQUET_SUFFIX
from epochal.data_providers.protocol import TokenBatch
from epochal.data_providers.providers.preprocessed import EXTRA
from epochal.runtime.files.durable_files import replace_file
from epochal.state.errors import ExtraMissing

ROW_GROUP_ROWS = 256


def part_name(number: int, split: str = "train") -> str:
    """Return the name of a part of a split; names are in the order of the numbers."""
    return f"{split}-{number:05}{PARQUET_SUFFIX}"


def write_rows(path: Path, rows: Sequence[TokenBatch]) -> None:
    """Write rows, batches of one packed sample each, as a whole file or not at all.

    Raises:
        InvalidInput: pyarrow is not installed.
        OSError: the disk is full or fails.
    """
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise ExtraMissing(f"rows are written as parquet files, which needs pyarrow: {EXTRA}") from error
    columns: dict[str, list[Any]] = {
        "inputs": [row.input_ids for row in rows],
        "labels": [row.labels for row in rows],
        "position_ids": [row.position_ids for row in rows],
        "sequence_lengths": [row.sequence_lengths for row in rows],
    }
    part = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table(columns), part, row_group_size=ROW_GROUP_ROWS)
    replace_file(path, part.getvalue())
