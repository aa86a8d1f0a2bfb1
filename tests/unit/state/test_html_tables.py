"""Documents as tables of HTML: all that is in them, and nothing that a browser obeys."""

from dataclasses import dataclass, replace
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

import epochal
from epochal.remote.history_arrays import HistoryArrays
from epochal.state.intervals import BatchId
from epochal.state.messages.member_rows import MemberColumns, MemberFigures, MembersPage
from epochal.state.text.html_tables import MAX_ROWS, document_html, documents_html, rows_html
from epochal.state.wire import ClientId
from epochal.state.wire_document import WireDocument
from tests.support.data.figure_rows import LINEAGE, rows
from tests.support.data.hostile_texts import TEXTS
from tests.support.data.shown_rounds import client, detail
from tests.unit.epochal.view.test_status_panel import GPU, status_of

TAGS = {"table", "thead", "tbody", "tr", "th", "td", "div", "p"}
ROW = MemberFigures(ClientId("ab" * 16), "lab", "0.1", "torch", **GPU)


class Read(HTMLParser):
    """The tags, the attributes and the texts of a piece of HTML."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[tuple[str, str | None]] = set()
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= set(attrs)

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def members_page(*found: MemberFigures) -> MembersPage:
    return MembersPage("run", LINEAGE, 1, 1.7e9, 16, MemberColumns.of(found), MemberColumns.of(()))


@given(st.text() | st.sampled_from(TEXTS))
def test_text_of_another_machine_is_text_and_nothing_else(text: str) -> None:
    page = members_page(replace(ROW, name=text, software=text, trainer=text, last_miss=text, left=text))
    for html in (document_html(page), documents_html([ROW, replace(ROW, name=text)]), rows_html([text], [[text]], 1)):
        read = Read(html)
        assert read.tags <= TAGS
        assert read.attributes <= {("scope", "row"), ("scope", "col"), ("class", "wide"), ("class", "number")}


@pytest.mark.parametrize("text", TEXTS)
def test_hostile_name_in_what_users_print_is_only_text(text: str) -> None:
    status = replace(status_of(1, 2.0), waiting=text, members=(replace(ROW, name=text),))
    read = Read(status._repr_html_() + detail(client(1, name=text))._repr_html_())
    assert read.tags <= TAGS
    assert "".join(read.texts).isprintable()


def test_status_and_members_are_tables_of_what_is_known() -> None:
    status = replace(status_of(1, 2.0), members=(ROW,), gpu_utilisation=0.5)
    read = Read(status._repr_html_())
    assert {"run_state", "RoundTrain", "123,456", "lab", "gpu_utilisation", "0.5"} <= set(read.texts)
    assert "gradient_norm" not in read.texts, "a field without a value is left out"
    assert {"lab", "2023-11-14 22:13:20 UTC"} <= set(Read(members_page(ROW)._repr_html_()).texts)


def test_columns_are_shown_as_rows() -> None:
    texts = Read(members_page(ROW, replace(ROW, name="home")).members._repr_html_()).texts
    assert texts[texts.index("client_id") :][:2] == ["client_id", "name"]
    assert texts.count("torch") == 2


def test_long_list_is_cut_and_says_how_much_is_left() -> None:
    html = documents_html([replace(ROW, name=f"lab {number}") for number in range(MAX_ROWS + 2)])
    assert "… 2 more" in Read(html).texts
    assert f"lab {MAX_ROWS - 1}" in Read(html).texts


def test_lists_and_intervals_in_a_document_are_shown_as_text() -> None:
    @dataclass(frozen=True, slots=True)
    class Holder(WireDocument):
        one: BatchId
        many: tuple[BatchId, ...]
        pairs: tuple[tuple[int, float], ...]

    holder = Holder(BatchId(1, 2), (BatchId(3, 4), BatchId(5, 5)), ((1, 2.5), (2000, 2.0)))
    texts = Read(holder._repr_html_()).texts
    assert texts == ["one", "[1, 2]", "many", "[3, 4], [5, 5]", "pairs", "(1, 2.5), (2,000, 2)"]


def test_history_is_shown_as_charts_and_its_last_rows() -> None:
    pytest.importorskip("matplotlib")
    html = HistoryArrays("<run>", LINEAGE, 30, rows(0, 29))._repr_html_()
    assert html.count("data:image/svg+xml;base64,") == 6
    assert "&lt;run&gt;" in html
    assert "29" in Read(html).texts
    assert "<figure>" not in HistoryArrays("run", LINEAGE, 0, [])._repr_html_()


def test_what_a_connection_returns_is_in_the_reference() -> None:
    for name in ("RunStatus", "SpeedExplanation", "Moment", "RoundDetail", "MembersPage", "MemberDetail", "RunState"):
        assert name in epochal.__all__
