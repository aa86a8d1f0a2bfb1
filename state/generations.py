"""The generations of data that grow while a run continues: the dataset of each data index.

Files may be appended to a run's data. Then a new *generation* begins: from its first data index on, the order is that
of the larger dataset, and before it everything stays as it was. A generation begins where a pass over the one before it
ends, so that no pass is cut off, and its own passes are counted from there; their numbers, which key the shuffle, go
on. The files of a generation are the first `file_count` ones of any later one, in the order of their names: so who has
the newest files reads every generation, and nobody needs a list of names.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, TypeAlias

from pydantic import AfterValidator, Field

from epochal.state.intervals import MAX_INDEX
from epochal.state.wire_document import WireDocument

MAX_GENERATIONS = 256
"""Maximum number of generations of one run's data."""

_Fingerprint = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
_Positive = Annotated[int, Field(ge=1, le=MAX_INDEX)]


@dataclass(frozen=True, slots=True)
class SizedDataset(WireDocument):
    """A dataset of files: its fingerprint, the samples of one pass, and its number of files."""

    fingerprint: _Fingerprint
    sample_count: _Positive
    file_count: _Positive


@dataclass(frozen=True, slots=True)
class DataGeneration(WireDocument):
    """The data of a run from one data index on.

    Attributes:
        first_data_index: the first data index of the generation.
        fingerprint, sample_count, file_count: as of `SizedDataset`.
    """

    first_data_index: Annotated[int, Field(ge=0, le=MAX_INDEX)]
    fingerprint: _Fingerprint
    sample_count: _Positive
    file_count: _Positive


@dataclass(frozen=True, slots=True)
class DataAppend(WireDocument):
    """Files were appended to the run's data.

    Attributes:
        grown_from: the run's newest data so far.
        grown_to: the same with more files, whose names come after all others.
        from_data_index: the larger data begin with the first pass from here on, or with a later one.
    """

    grown_from: SizedDataset
    grown_to: SizedDataset
    from_data_index: Annotated[int, Field(ge=0, le=MAX_INDEX)] = 0


@dataclass(frozen=True, slots=True)
class DataAppendSetting(WireDocument):
    """Files that the operator appended to the run's data; None takes the last append back, if it has not begun."""

    appended: DataAppend | None


@dataclass(frozen=True, slots=True)
class DataHistory(WireDocument):
    """The generations of the run's data, the oldest first; empty if nothing was ever appended."""

    generations: tuple[DataGeneration, ...]


Generations: TypeAlias = tuple[DataGeneration, ...]
"""All generations of a run's data, the oldest first; empty if nothing was ever appended."""


def check_generations(generations: Generations) -> Generations:
    """Return the generations; raise `ValueError` if they contradict each other."""
    if generations and generations[0].first_data_index != 0:
        raise ValueError("the first generation does not begin at data index 0")
    if len({found.fingerprint for found in generations}) < len(generations):
        raise ValueError("two generations have the same fingerprint")
    for before, after in pairwise(generations):
        if after.sample_count < before.sample_count or after.file_count <= before.file_count:
            raise ValueError("a generation has no more files than the one before it, or fewer samples")
        length = after.first_data_index - before.first_data_index
        if length <= 0 or length % before.sample_count:
            raise ValueError("a generation does not begin where a pass over the one before it ends")
    return generations


StateGenerations: TypeAlias = Annotated[
    Generations,
    Field(
        strict=False,
        max_length=MAX_GENERATIONS,
        description="the coordinator's own lines: the data of a run that have grown, each from a pass of its own",
    ),
    AfterValidator(check_generations),
]
"""The same in a state file."""


def generation_at(generations: Generations, data_index: int) -> int:
    """Return the position of the generation that this data index is of."""
    return bisect_right([found.first_data_index for found in generations], data_index) - 1


def passes_before(generations: Sequence[DataGeneration]) -> tuple[int, ...]:
    """Return, for each generation, the number of passes over the earlier ones: the number of its own first pass."""
    numbers = [0] if generations else []
    for before, after in pairwise(generations):
        numbers.append(numbers[-1] + (after.first_data_index - before.first_data_index) // before.sample_count)
    return tuple(numbers)


def with_appended(generations: Generations, now: SizedDataset, grown: SizedDataset, earliest: int) -> Generations:
    """Return the generations with another one, from the first pass that begins at or after a data index.

    Args:
        generations: the run's; empty if nothing was appended before.
        now: the newest data so far.
        grown: the same with more files.
        earliest: the first data index that may be of the new generation.
    """
    known = generations or (DataGeneration(0, now.fingerprint, now.sample_count, now.file_count),)
    newest = known[-1]
    passes = max(1, -(-(earliest - newest.first_data_index) // newest.sample_count))
    start = newest.first_data_index + passes * newest.sample_count
    return check_generations((*known, DataGeneration(start, grown.fingerprint, grown.sample_count, grown.file_count)))
