"""The end of an answer at a text, whatever the pieces in which it arrives."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochal.state.errors import InvalidInput
from epochal.tools.sample.stop_text import MAX_STOP_CHARACTERS, StopText, check_stops

Letters = st.text("ab ", max_size=30)
Stops = st.lists(st.text("ab ", min_size=1, max_size=5), max_size=4)


def naive(text: str, stops: list[str]) -> tuple[str, bool]:
    """Look for a stop after each character."""
    for end in range(1, len(text) + 1):
        ending = [one for one in stops if text[:end].endswith(one)]
        if ending:
            return text[: end - max(map(len, ending))], True
    return text, False


@given(Letters, Stops, st.lists(st.integers(0, 30), max_size=6))
def test_text_ends_before_the_first_stop_however_it_arrives(text: str, stops: list[str], cuts: list[int]) -> None:
    watched = StopText(stops)
    bounds = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    shown = ""
    for start, stop in pairwise(bounds):
        shown += watched.add(text[start:stop])
        assert naive(text, stops)[0].startswith(shown), "nothing is shown that is no part of the answer"
    assert (shown + watched.end(), watched.is_reached) == naive(text, stops)


def test_what_cannot_begin_a_stop_is_shown_at_once() -> None:
    watched = StopText(["</s>"])
    assert [watched.add(piece) for piece in ("one <", "two </", "s", ">", "three")] == ["one ", "<two ", "", "", ""]
    assert watched.is_reached


@pytest.mark.parametrize("stops", [["a"] * 5, [""], ["a" * (MAX_STOP_CHARACTERS + 1)]])
def test_stops_beyond_their_bounds_are_refused(stops: list[str]) -> None:
    with pytest.raises(InvalidInput, match="up to 4 texts of 1 to 256 characters"):
        check_stops(stops)
