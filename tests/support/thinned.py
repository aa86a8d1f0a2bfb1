"""Cases of one rule of which every run tries some, and the nightly run (`make test-all`) all."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest
from _pytest.mark.structures import ParameterSet


def thinned(
    names: str | tuple[str, ...],
    cases: Iterable[object],
    *,
    ids: Sequence[str] | Callable[[Any], str | None] | None = None,
    kept: int = 2,
) -> pytest.MarkDecorator:
    """Return `pytest.mark.parametrize` whose cases are `nightly` but for the first, and the last if two are kept.

    Args:
        names: of the parameters, in one string separated by commas or in a tuple.
        cases: values of the parameters, as `pytest.mark.parametrize` takes them.
        ids: names of the cases, as `pytest.mark.parametrize` takes them.
        kept: number of cases that every run tries, 1 or 2.
    """
    count = len(names.split(",")) if isinstance(names, str) else len(names)
    sets = [_parameters(case, count) for case in cases]
    every_run = (0, len(sets) - 1)[:kept]
    nightly = pytest.mark.nightly
    return pytest.mark.parametrize(
        names,
        [
            each if number in every_run else each._replace(marks=(*each.marks, nightly))
            for number, each in enumerate(sets)
        ],
        ids=ids,
    )


def _parameters(case: object, count: int) -> ParameterSet:
    if isinstance(case, ParameterSet):
        return case
    return pytest.param(*case) if count > 1 and isinstance(case, Sequence) else pytest.param(case)
