"""`state/messages/result_bundles.py`: a page of results with bytes, as its receiver reads it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochal.state.errors import InvalidDocument
from epochal.state.messages.requests import CommittedResult, ResultsPage
from epochal.state.messages.result_bundles import encoded_bundle, parse_bundle
from epochal.state.wire import ClientId, Sha256, canonical_json, sha256_hex


def page_of(*results: bytes) -> ResultsPage:
    listed = tuple(
        CommittedResult(ClientId(f"{number:032x}"), sha256_hex(data), len(data), 1.0)
        for number, data in enumerate(results)
    )
    return ResultsPage(3, 0, len(results), complete=False, results=listed)


@given(st.lists(st.binary(min_size=1, max_size=40), max_size=6, unique=True), st.data())
def test_page_and_bytes_are_read_as_they_were_written(results: list[bytes], data: st.DataObject) -> None:
    sent = [(sha256_hex(result), result) for result in results if data.draw(st.booleans())]
    page = page_of(*results)
    assert parse_bundle(encoded_bundle(canonical_json(page), sent)) == (page, dict(sent))


PAGE = canonical_json(page_of(b"one", b"two"))
ONE, TWO = (sha256_hex(data) for data in (b"one", b"two"))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        PAGE,
        PAGE + b"\n[]",
        PAGE + b"\n{}\n",
        PAGE + b"\nnone\n",
        PAGE + b"\n[1]\n",
        encoded_bundle(PAGE, [(ONE, b"two")]),
        encoded_bundle(PAGE, [(ONE, b"one")]) + b"more",
        encoded_bundle(PAGE, [(ONE, b"one"), (TWO, b"tw")]),
        encoded_bundle(PAGE, [(Sha256("0" * 64), b"")]),
        encoded_bundle(b"{}", []),
    ],
)
def test_other_bytes_than_a_page_names_are_refused(body: bytes) -> None:
    with pytest.raises(InvalidDocument):
        parse_bundle(body)
