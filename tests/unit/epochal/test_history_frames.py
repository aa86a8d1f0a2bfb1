"""A run's history as a data frame."""

import sys

import pytest

from epochal.remote.history_arrays import HistoryArrays
from epochal.state.errors import InvalidInput
from tests.support.data.figure_rows import LINEAGE, rows


def test_frame_without_pandas_says_which_package_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(InvalidInput, match=r"to_pandas\(\) needs the package pandas .*: pip install pandas"):
        HistoryArrays("run", LINEAGE, 3, rows(0, 2)).to_pandas()
