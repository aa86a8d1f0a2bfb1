"""Numbers and texts in a query: one spelling each, given once, never empty."""

from urllib.parse import parse_qsl

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochal.runtime.http.parameters import MAX_SECONDS, MAX_WHOLE, Query, parse_seconds, parse_whole
from epochal.state.errors import Refused

OTHER_SPELLINGS = ["", " 1", "1 ", "+1", "1_0", "01", "0x1", "1,0", "one", "\u0661", "nan", "inf", "-inf", "1" * 400]


@pytest.mark.parametrize("text", [*OTHER_SPELLINGS, "1.0", "1e3", str(MAX_WHOLE + 1), "-1"])
def test_whole_number_has_one_spelling(text: str) -> None:
    with pytest.raises(Refused, match="step=") as refused:
        parse_whole("step", text)
    assert refused.value.kind == "invalid-parameter"


@pytest.mark.parametrize("number", [0, 1, 10, MAX_WHOLE])
def test_whole_number_within_its_bounds_is_read(number: int) -> None:
    assert parse_whole("step", str(number)) == number


def test_whole_number_below_its_least_is_refused() -> None:
    assert parse_whole("after", "-1", -1) == -1
    with pytest.raises(Refused, match="from -1 to"):
        parse_whole("after", "-2", -1)


@pytest.mark.parametrize("text", [*OTHER_SPELLINGS, "-1", "1e10", "1e999", ".5", "5."])
def test_seconds_have_the_spelling_of_json(text: str) -> None:
    with pytest.raises(Refused, match="wait_s="):
        parse_seconds("wait_s", text)


@pytest.mark.parametrize(("text", "seconds"), [("0", 0.0), ("2.5", 2.5), ("1e-05", 1e-05), (f"{MAX_SECONDS}", 1e9)])
def test_seconds_are_read_as_they_are_written(text: str, seconds: float) -> None:
    assert parse_seconds("wait_s", text) == seconds


def test_parameter_that_is_not_given_has_its_default() -> None:
    query = Query(b"other=1&other=2&nothing=")
    assert (query.whole("after", 7), query.seconds("wait_s"), query.text("lineage")) == (7, 0.0, None)
    assert not query.flag("keep_last")


@pytest.mark.parametrize(("sent", "message"), [(b"a=", "no value"), (b"a", "no value"), (b"a=1&a=1", "2 times")])
def test_parameter_without_a_value_or_given_twice_is_refused(sent: bytes, message: str) -> None:
    query = Query(sent)
    for read in (query.text, query.seconds, query.flag, lambda name: query.whole(name, 0)):
        with pytest.raises(Refused, match=message):
            read("a")


@pytest.mark.parametrize("text", ["1", "yes", "True", "on"])
def test_flag_is_true_or_false(text: str) -> None:
    assert Query(b"keep=true").flag("keep")
    assert not Query(b"keep=false").flag("keep")
    with pytest.raises(Refused, match="true or false"):
        Query(f"keep={text}".encode()).flag("keep")


@given(st.text("ab1=&;+%", max_size=12))
def test_query_is_taken_apart_as_the_standard_library_does(text: str) -> None:
    pairs, query = parse_qsl(text, keep_blank_values=True), Query(text.encode())
    for name, value in pairs:
        if value and len([key for key, _ in pairs if key == name]) == 1:
            assert query.text(name) == value
    assert query.text("absent") is None
