"""Mappings and sets that share equal the dictionaries and sets that copies would make, whatever is done to them."""

import time
from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from epochal.coordinator.machine.parts.persistent_map import SharedMap, added, joined, left, removed, shared, shared_set


class Colliding(int):
    """A key whose hash many others have."""

    def __hash__(self) -> int:
        return int(self) % 3


KEYS = st.one_of(st.integers(0, 40).map(Colliding), st.integers(0, 400).map("client {}".format))
CHANGES = st.lists(st.tuples(st.booleans(), KEYS, st.integers()), max_size=400)


@given(st.dictionaries(KEYS, st.integers(), max_size=300), CHANGES)
def test_mapping_after_any_changes_is_that_of_a_dictionary(start: dict[object, int], changes: list) -> None:  # type: ignore[type-arg]
    plain, sharing = dict(start), shared(start)
    for is_added, key, value in changes:
        if is_added:
            plain = {**plain, key: value}
            sharing = added(sharing, key, value)
        else:
            plain = {other: kept for other, kept in plain.items() if other != key}
            sharing = removed(sharing, key)
    assert list(sharing.items()) == list(plain.items())
    assert list(sharing.pairs()) == list(plain.items())
    assert (sharing == plain, plain == sharing, len(sharing)) == (True, True, len(plain))
    for number in (0, 1, len(plain) // 2, len(plain)):
        assert list(sharing.from_place(number)) == list(plain.items())[number:]


@given(st.dictionaries(KEYS, st.integers(), min_size=1, max_size=300), CHANGES)
def test_earlier_mappings_stay_as_they_were(start: dict[object, int], changes: list) -> None:  # type: ignore[type-arg]
    first = shared(start)
    sharing, branches = first, []
    for is_added, key, value in changes:
        branches.append((sharing, dict(sharing)))
        sharing = added(sharing, key, value) if is_added else removed(sharing, key)
        added(first, key, value + 1)
    assert first == start
    assert all(before == plain for before, plain in branches)


@given(st.sets(KEYS), CHANGES)
def test_set_after_any_changes_is_that_of_copies(start: set[object], changes: list) -> None:  # type: ignore[type-arg]
    plain, sharing = frozenset(start), shared_set(start)
    for is_added, key, _ in changes:
        plain = plain | {key} if is_added else plain - {key}
        sharing = joined(sharing, key) if is_added else shared_set(left(sharing, (key,)))
    assert frozenset(sharing) == plain
    assert hash(sharing) == hash(shared_set(plain))
    assert len(sharing) == len(plain)


def _seconds(work: Callable[[], object]) -> float:
    def once() -> float:
        start_s = time.process_time()
        for _ in range(300):
            work()
        return time.process_time() - start_s

    return min(once() for _ in range(5))


def test_time_of_a_change_does_not_grow_with_the_mapping() -> None:
    few, many = (SharedMap((f"client {number}", number) for number in range(count)) for count in (200, 20_000))
    assert _seconds(lambda: added(many, "new", 1)) < 5 * _seconds(lambda: added(few, "new", 1))
    assert _seconds(lambda: removed(many, "client 100")) < 5 * _seconds(lambda: removed(few, "client 100"))
