"""`coordinator/machine/parts/fast_replace.py`: copies are what `dataclasses.replace` makes, and wrong fields are
mistakes."""

import dataclasses
from typing import Any

import pytest

from epochal.coordinator.machine.parts.fast_replace import replace


@dataclasses.dataclass(frozen=True)
class Whole:
    """A value with a field that is computed from another."""

    first: int
    second: tuple[int, ...] = ()
    double: int | None = dataclasses.field(default=None, compare=False)

    def __post_init__(self) -> None:
        if self.double is None:
            object.__setattr__(self, "double", 2 * self.first)


@dataclasses.dataclass(frozen=True, slots=True)
class Small:
    """A value without a dictionary."""

    first: int


@pytest.mark.parametrize("changes", [{}, {"second": (1,)}, {"first": 5, "double": None}, {"first": 5}])
def test_copy_is_what_dataclasses_make(changes: dict[str, Any]) -> None:
    whole = Whole(3, (4,))
    copy = replace(whole, **changes)
    assert copy is not whole
    assert dataclasses.asdict(copy) == dataclasses.asdict(dataclasses.replace(whole, **changes))
    assert whole == Whole(3, (4,)), "the original is as it was"


@pytest.mark.parametrize("value", [Whole(3), Small(3)])
def test_field_that_is_not_there_is_refused(value: Any) -> None:
    with pytest.raises(TypeError, match="frist"):
        replace(value, frist=4)


def test_value_without_a_dictionary_is_copied_too() -> None:
    assert replace(Small(3), first=4) == Small(4)
