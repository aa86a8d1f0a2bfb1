"""A mix whose weights change: the same as a replay sample by sample, and fair within every phase."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epochal.data_providers.mixes.mixture import MAX_PHASES, PERIOD, MixPhase, ScheduledOrder, with_later
from epochal.state.errors import InvalidInput
from epochal.state.intervals import MAX_INDEX, DataIds

GOLDEN_PHASES = [MixPhase(0, (3, 1, 0)), MixPhase(10, (0, 0, 1)), MixPhase(13, (1, 2, 4)), MixPhase(200_001, (1, 1, 1))]
GOLDEN_INDICES = [*range(20), 200_000, 200_001, 200_002, 10**12]
GOLDEN_SOURCES = [0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 2, 2, 2, 2, 1, 2, 2, 1, 0, 2, 0, 0, 1, 1]
GOLDEN_LOCALS = [0, 1, 2, 0, 3, 4, 5, 1, 6, 7, 0, 1, 2, 3, 2, 4, 5, 3, 8, 6, 28576, 28577, 57143, 333328237547]

weight_lists = st.integers(1, 4).flatmap(
    lambda count: st.lists(
        st.lists(st.sampled_from([0.0, 1.0, 2.0, 0.3, 7.5]), min_size=count, max_size=count).filter(any),
        min_size=1,
        max_size=5,
    )
)
lengths = st.one_of(st.integers(1, 60), st.sampled_from([PERIOD - 1, PERIOD, PERIOD + 1, 2 * PERIOD]))


def phases_of(weights: list[list[float]], lengths: list[int]) -> list[MixPhase]:
    starts = np.concatenate(([0], np.cumsum(lengths)))[: len(weights)].tolist()
    return [MixPhase(start, tuple(of_phase)) for start, of_phase in zip(starts, weights, strict=True)]


def replayed(phases: list[MixPhase], stop: int) -> tuple[list[int], list[int]]:
    """The order from the first data index on: each phase's own, every source going on where it was."""
    taken = [0] * len(phases[0].weights)
    sources: list[int] = []
    locals_: list[int] = []
    for phase, end in zip(phases, [*(phase.start for phase in phases[1:]), stop], strict=True):
        order = ScheduledOrder([MixPhase(0, phase.weights)])
        within, _ = order.locate(np.arange(max(0, end - phase.start), dtype=np.int64))
        for source in within.tolist():
            sources.append(source)
            locals_.append(taken[source])
            taken[source] += 1
    return sources, locals_


@settings(max_examples=15, deadline=None)
@given(weight_lists, st.lists(lengths, min_size=5, max_size=5))
def test_every_place_is_that_of_a_replay_from_the_beginning(weights: list[list[float]], lengths: list[int]) -> None:
    phases = phases_of(weights, lengths)
    stop = phases[-1].start + 100
    sources, locals_ = ScheduledOrder(phases).locate(np.arange(stop, dtype=np.int64))
    expected = replayed(phases, stop)
    assert sources.tolist() == expected[0]
    assert locals_.tolist() == expected[1]


@given(weight_lists, st.lists(lengths, min_size=5, max_size=5), st.integers(0, 300_000), st.integers(0, 300))
@settings(max_examples=20, deadline=None)
def test_shares_of_an_interval_over_a_seam_are_one_interval_a_source(
    weights: list[list[float]], lengths: list[int], start: int, more: int
) -> None:
    order = ScheduledOrder(phases_of(weights, lengths))
    sources, locals_ = order.locate(np.arange(start, start + more + 1, dtype=np.int64))
    shares = order.shares(DataIds(start, start + more))
    assert sum(len(share.rows) for share in shares) == more + 1
    for share in shares:
        assert (sources[share.rows] == share.source).all()
        assert np.array_equal(locals_[share.rows], np.arange(share.local.start, share.local.end + 1))


def test_schedule_golden_vectors_never_change() -> None:
    sources, locals_ = ScheduledOrder(GOLDEN_PHASES).locate(np.array(GOLDEN_INDICES, dtype=np.int64))
    assert sources.tolist() == GOLDEN_SOURCES
    assert locals_.tolist() == GOLDEN_LOCALS


def test_phases_that_change_nothing_are_left_out() -> None:
    same = [
        MixPhase(0, (1, 1)),
        MixPhase(PERIOD, (2, 2)),
        MixPhase(3 * PERIOD, (1, 0)),
        MixPhase(3 * PERIOD + 1, (2, 0)),
    ]
    assert ScheduledOrder(same).starts == (0, 3 * PERIOD, 3 * PERIOD + 1)


@pytest.mark.parametrize(
    "starts",
    [[], [1], [0, 0], [0, 5, 4], [0, MAX_INDEX], list(range(MAX_PHASES + 1))],
    ids=lambda starts: str(starts)[:9],
)
def test_phases_that_do_not_begin_at_zero_and_ascend_are_refused(starts: list[int]) -> None:
    with pytest.raises(InvalidInput, match=r"allowed|a schedule of"):
        ScheduledOrder([MixPhase(start, (1.0,)) for start in starts])


@pytest.mark.parametrize("weights", [(0.0, 0.0), (-1.0, 2.0), (float("nan"),), (float("inf"), 1.0)])
def test_phase_with_weights_that_are_none_is_refused(weights: tuple[float, ...]) -> None:
    with pytest.raises(InvalidInput, match=r"weight|a mix of 0 sources"):
        ScheduledOrder([MixPhase(0, weights)])


@settings(max_examples=25, deadline=None)
@given(weight_lists, st.lists(lengths, min_size=5, max_size=5), st.integers(1, 70_000), st.data())
def test_later_weights_leave_no_sample_out_and_repeat_none(
    weights: list[list[float]], lengths: list[int], start: int, data: st.DataObject
) -> None:
    """Before its first data index everything is as it was; from there each source continues where it is."""
    phases, names = phases_of(weights, lengths), [f"source {number}" for number in range(len(weights[0]))]
    new = data.draw(st.dictionaries(st.sampled_from(names), st.sampled_from([0.0, 1.0, 3.0]), min_size=1))
    new |= {names[0]: 2.0}
    later = [(start, new), (start + 70_001, {"0": 1.0})]
    order = ScheduledOrder(with_later(phases, names, later))
    stop = start + 70_100
    sources, locals_ = order.locate(np.arange(stop, dtype=np.int64))
    before = ScheduledOrder(phases).locate(np.arange(start, dtype=np.int64))
    assert (sources[:start].tolist(), locals_[:start].tolist()) == (before[0].tolist(), before[1].tolist())
    for number in range(len(names)):
        assert locals_[sources == number].tolist() == list(range(int((sources == number).sum())))
    shares = np.bincount(sources[start : start + 70_000], minlength=len(names)) / 70_000
    total = sum(new.values())
    assert np.allclose(shares, [new.get(name, 0.0) / total for name in names], atol=0.001)


def test_later_weights_name_sources_of_the_mix() -> None:
    with pytest.raises(InvalidInput, match="no source 'fr'; its sources are 'en', 'de'"):
        with_later([MixPhase(0, (1, 1))], ["en", "de"], [(5, {"fr": 1.0})])
