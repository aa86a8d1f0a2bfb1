"""A run's history as numpy arrays, one for each figure."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from epochal.state.errors import InvalidInput
from epochal.state.messages.history_rows import FIGURES, FLOAT_FIGURES, MAX_INT64, RoundFigures
from epochal.state.text.html_tables import documents_html, text_html

SHOWN_ROWS = 20
"""Number of the last rows in a notebook's table."""


class HistoryArrays:
    """Rounds of a run that have ended: an array for each field of a row (`docs/rest-api.md`, "History and events").

    `history.loss` and `history["loss"]` are the same array, of shape (rows,): float64 for seconds, losses and rates, in
    which NaN represents a missing value; int64 for counts. All rounds have a row, those without an outcome
    too; `rounds` is the number of rounds in a row, where the coordinator has merged older ones.

    Attributes:
        run_id, lineage: of the run.
        next: number of the round that ends next.
    """

    def __init__(self, run_id: str, lineage: str, next_number: int, rows: Sequence[RoundFigures]) -> None:
        self.run_id = run_id
        self.lineage = lineage
        self.next = next_number
        self._rows = tuple(rows)
        self._arrays: dict[str, npt.NDArray[Any]] = {name: _array(name, rows) for name in FIGURES}

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        return self._arrays[name]

    def __getattr__(self, name: str) -> npt.NDArray[Any]:
        try:
            return self.__dict__["_arrays"][name]  # type: ignore[no-any-return]
        except KeyError:
            raise AttributeError(f"a history has no {name!r}; it has {', '.join(FIGURES)}") from None

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *FIGURES})

    def __len__(self) -> int:
        return len(self._rows)

    def __repr__(self) -> str:
        return f"<{len(self)} rows of run {self.run_id!r}, the next round is {self.next}>"

    def _repr_html_(self) -> str:
        """Return charts of the rounds, where matplotlib is installed (`epochal[plot]`), and a table of the last."""
        from epochal.view.figures.charts import round_charts
        from epochal.view.figures.plots import figure_html, has_matplotlib

        charts = "".join(map(figure_html, round_charts(self._rows))) if has_matplotlib() else ""
        return f"<p>{text_html(repr(self)[1:-1])}</p>{charts}{documents_html(self._rows[-SHOWN_ROWS:])}"

    @property
    def tokens_per_s(self) -> npt.NDArray[np.float64]:
        """Tokens applied per second of each row's rounds, of shape (rows,); NaN for one that took no time."""
        seconds = self["train_s"] + self["witness_s"]
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(seconds > 0, self["tokens"] / seconds, np.nan)

    def rows(self) -> tuple[RoundFigures, ...]:
        """Return the rows as they came."""
        return self._rows

    def to_pandas(self) -> Any:
        """Return a `pandas.DataFrame` with a column for each array, its index the number of the round.

        Raises:
            InvalidInput: pandas is not installed.
        """
        try:
            import pandas  # type: ignore[import-untyped, unused-ignore]
        except ImportError as error:
            raise InvalidInput(f"to_pandas() needs the package pandas ({error}): pip install pandas") from error

        return pandas.DataFrame(self._arrays).set_index("number", drop=False)


def _array(name: str, rows: Sequence[RoundFigures]) -> npt.NDArray[Any]:
    values = [getattr(row, name) for row in rows]
    if name in FLOAT_FIGURES:
        return np.array([np.nan if value is None else value for value in values], np.float64)
    return np.array([min(value, MAX_INT64) for value in values], np.int64)
