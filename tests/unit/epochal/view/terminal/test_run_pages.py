"""The pages of a run's view: charts, waterfall, ten thousand members, and text from others."""

import io
import re
import shlex
import time
from dataclasses import fields, replace
from typing import Any

import pytest
from rich.console import Console, RenderableType

from epochal.state.documents import RunDocument
from epochal.state.intervals import BatchId
from epochal.state.messages.evaluation_reports import Evaluation
from epochal.state.messages.history_rows import (
    ClientFigures,
    DataMap,
    HistoryPage,
    Moment,
    RoundColumns,
    RoundDetail,
    RoundFigures,
)
from epochal.state.messages.member_rows import MemberColumns, MemberDetail, MemberFigures, MemberRound, MembersPage
from epochal.state.phase_names import RunState
from epochal.state.shown.glossary import PARTS
from epochal.state.shown.join_guide import JoinData, JoinGuide, JoinRoom
from epochal.state.shown.trust import TrustView
from epochal.state.wire import ClientId, Sha256
from epochal.view.figures.charts import waterfall
from epochal.view.terminal.character_charts import AXIS_CHARS, column_chart, letter_bar, smoothed
from epochal.view.terminal.join_page import join_page
from epochal.view.terminal.member_page import member_page
from epochal.view.terminal.members_page import COLUMNS, MembersTable, members_page
from epochal.view.terminal.round_page import bar_of, round_page, waterfall_lines
from epochal.view.terminal.run_page import run_page
from epochal.view.terminal.trust_page import trust_page
from epochal.view.terminal.view_state import MAX_ROWS, RunPicture
from tests.support.data.documents import run_document
from tests.unit.epochal.view.test_status_panel import status_of

HOSTILE = "<b>[red]\x1b[31m\u202e\x07\nx"
SHOWN = "<b>[red]\\x1b[31m\\u202e\\x07\\nx"


def drawn(page: RenderableType, width: int = 100) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(page)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_chart_rises_from_its_lowest_to_its_highest_value() -> None:
    lines = column_chart([1.0, 2.0, 3.0, 4.0], 4 + AXIS_CHARS, 2)
    assert lines == ["  ▃█ 4", "▁▆██ 1"]


def test_marks_stand_at_their_value_and_the_axis_includes_them() -> None:
    lines = column_chart([1.0, 2.0, 3.0, 4.0], 4 + AXIS_CHARS, 2, marks=[(1, 9.0)])
    assert lines[0] == " ◆   9"
    assert lines[1].endswith(" 1")


def test_marks_leave_the_bars_to_be_seen_and_the_last_is_shown() -> None:
    lines = column_chart([1.0] * 40, 40 + AXIS_CHARS, 1, marks=[(at, 1.0) for at in range(40)])
    assert lines[0].count("◆") == 10
    assert lines[0][39] == "◆"
    assert "▁" in lines[0]


def test_log_axis_shows_small_values_apart() -> None:
    assert column_chart([1.0, 10.0, 100.0], 3 + AXIS_CHARS, 1, is_log=True)[0][:3] == "▁▅█"
    assert column_chart([1.0, 10.0, 100.0], 3 + AXIS_CHARS, 1)[0][:3] == "▁▂█"


def test_chart_of_nothing_is_nothing() -> None:
    assert column_chart([], 40, 5) == []
    assert column_chart([1.0], AXIS_CHARS, 5) == []


def test_smoothed_values_follow_slowly() -> None:
    assert smoothed([1.0, 3.0, 3.0], 0.5) == [1.0, 2.0, 2.5]


def test_letters_stand_for_the_length_of_each_part() -> None:
    assert letter_bar([("T", 5.0), ("e", 0.0), ("U", 2.5)], 2.0) == "T" * 10 + "U" * 5
    assert letter_bar([("T", 5.0), ("e", 0.001), ("U", 2.5)], 2.0) == "T" * 10 + "e" + "U" * 4


def client(number: int, **parts: Any) -> ClientFigures:
    known: dict[str, Any] = {field.name: None for field in fields(ClientFigures)}
    known |= {"client_id": ClientId(f"{number:032x}"), "batches": 1, "witness": False, "fate": "applied"}
    return ClientFigures(**(known | {"detail": "", "result_bytes": 5, "tokens": 9} | parts))


def detail(*clients: ClientFigures) -> RoundDetail:
    return RoundDetail(replace(row(0), train_s=8.0, witness_s=1.0), "all results came", clients)


def test_waterfall_shows_the_slowest_client_first_and_whole() -> None:
    fast = client(1, train_s=1.0, upload_s=1.0, delivered_s=2.0)
    slow = client(2, train_s=1.0, upload_s=7.0, delivered_s=8.0)
    text = drawn(waterfall_lines(waterfall(detail(fast, slow), {slow.client_id: HOSTILE}), 200), 200)
    first, second = text.splitlines()
    assert "<b>[red]" in first
    assert first.count("U") > 5 * second.count("U") > 0
    assert "\x1b" not in text


def test_absurd_claims_stretch_no_bar() -> None:
    liar, honest = client(1, train_s=1e9, delivered_s=8.0), client(2, train_s=7.0, delivered_s=8.0)
    text = drawn(waterfall_lines(waterfall(detail(liar, honest), {}), 80), 80)
    assert [line.count("T") > 20 for line in text.splitlines()] == [True, True]


def test_every_part_of_a_clients_round_has_its_letter() -> None:
    parts = {f"{name}_s": 0.5 for name in PARTS}
    whole = client(1, **parts, delivered_s=3.5, attested_s=8.0)
    (found,) = waterfall(detail(whole), {}).rows
    bar = bar_of(found, 4.0).plain
    assert sorted(set(bar)) == sorted({part.letter for part in PARTS.values()} | {"-"})


def member(number: int, **known: Any) -> MemberFigures:
    figures: dict[str, Any] = {
        "client_id": ClientId(f"{number:032x}"), "name": f"lab {number}", "software": "0.1", "trainer": "numpy",
        "ready": True, "in_roster": True, "share": 1.0, "part": 0.5, "factor": None, "claim": 1, "missed": 0,
        "rest_s": None, "silent_s": 0.5,
        "joined_s": 1.0, "left": "", "applied": number, "lost": 0, "tokens": 1, "tokens_per_s": float(-number),
        "last_loss": None, "data_wait": None, "data_wait_s": 0.0, "train_s": None, "result_bytes": 0,
        "uploaded_bytes": None, "downloaded_bytes": None,
    }  # fmt: skip
    return MemberFigures(**(figures | known))


def members(*rows: MemberFigures) -> MembersPage:
    return MembersPage("run", "a", 1, 1.0, 1, MemberColumns.of(rows), MemberColumns.of(()))


TEN_THOUSAND = members(*(member(number) for number in range(10_000)))


def test_ten_thousand_members_are_sorted_and_drawn_at_once() -> None:
    table = MembersTable(order=next(at for at, column in enumerate(COLUMNS) if column.title == "tokens/s"))
    began_s = time.process_time()
    text = drawn(members_page(table, TEN_THOUSAND, 100, 24))
    assert time.process_time() - began_s < 2.0
    assert "lab 9999" in text.splitlines()[1]
    assert "1 to 22 of 10,000" in text
    again_s = time.process_time()
    for _ in range(20):
        table.move(3, TEN_THOUSAND)
        drawn(members_page(table, TEN_THOUSAND, 100, 24))
    assert time.process_time() - again_s < 2.0, "only what is in sight is drawn"


def test_filter_keeps_what_holds_the_text_in_any_case() -> None:
    table = MembersTable(wanted="LAB 999")
    assert [row.name for row in table.rows(TEN_THOUSAND)] == ["lab 999", *(f"lab {9990 + at}" for at in range(10))]


def test_chosen_member_stays_in_sight() -> None:
    table = MembersTable()
    for by, first in ((9, 0), (1, 1), (-10, 0), (10_000, 9_990)):
        table.move(by, TEN_THOUSAND)
        seen = table.in_sight(TEN_THOUSAND, 10)
        assert (len(seen), seen[0].applied) == (10, first)
        assert table.chosen(TEN_THOUSAND) in seen


def test_evaluations_of_replicas_that_are_not_held_yet_are_not_shown() -> None:
    picture = picture_of(replace(run_document(RunState.ROUND_TRAIN), step=5))
    picture.evaluations = tuple(Evaluation("all", step, 2.0, 9, 3, Sha256("ab" * 32), 1.0) for step in (6, 5, 4, 0))
    assert [one.step for one in picture.shown_evaluations()] == [0, 4], "in step 5 replica 4 is held"


def test_members_without_a_value_come_last_in_either_order() -> None:
    page = members(member(1, last_loss=None), member(2, last_loss=2.0), member(3, last_loss=3.0))
    order = next(at for at, column in enumerate(COLUMNS) if column.title == "loss")
    for is_reversed, expected in ((False, [2, 3, 1]), (True, [3, 2, 1])):
        rows = MembersTable(order, is_reversed).rows(page)
        assert [row.applied for row in rows] == expected


def test_hostile_members_are_shown_as_text() -> None:
    page = members(member(1, name=HOSTILE[:16], trainer=HOSTILE, software=HOSTILE, left=HOSTILE))
    text = drawn(members_page(MembersTable(), page, 400, 24), 400)
    assert SHOWN in text
    assert "\x1b" not in text
    assert "\u202e" not in text


def picture_of(document: RunDocument) -> RunPicture:
    status = replace(status_of(1, 1.0), waiting=HOSTILE, explanation=HOSTILE, data_fingerprint=HOSTILE)
    return RunPicture("http://host:1", document=document, status=status)


def test_words_of_others_on_the_pages_are_shown_as_text() -> None:
    picture = picture_of(replace(run_document(RunState.ROUND_TRAIN), lineage=HOSTILE))
    for page in (run_page(picture, 200, 24, is_log=False, is_smooth=False), trust_page(picture)):
        text = drawn(page, 200)
        assert SHOWN in text
        assert "\x1b" not in text


def test_join_command_is_quoted_for_a_shell() -> None:
    data = JoinData("files", ("data",), 1, own=True, loopback=False, insecure=True)
    guide = JoinGuide("run", "0.1", "invitations", "my trainer; rm x", False, (), None, data, None, None)
    page = join_page(RunPicture(guide=guide), "http://host:1")
    command = "epochal client http://host:1 --trainer 'my trainer; rm x' --key epochal.key --new-key"
    command += " --invitation CODE --data PATH --insecure"
    assert f"   {command}\n" in drawn(page, 200)
    narrow = drawn(page, 60)
    assert " \\\n" in narrow
    told = shlex.split(narrow[narrow.index("epochal client") : narrow.index("admission")].replace("\\\n", ""))
    assert told == shlex.split(command), "a shell takes the lines as one command"


def row(number: int) -> RoundFigures:
    known: dict[str, Any] = {field.name: 0 for field in fields(RoundFigures)}
    times = {"started_s": 10.0 * number, "ended_s": 10.0 * number + 8, "train_s": 7.0, "witness_s": 1.0}
    return RoundFigures(
        **(
            known
            | times
            | {"number": number, "rounds": 1, "applied_rounds": 1, "loss": 2.0, "tokens": 100, "step": number + 1}
        )
    )


def test_round_that_has_ended_is_not_under_way() -> None:
    document = run_document(RunState.ROUND_TRAIN)
    assert document.round is not None
    picture = picture_of(document)
    data = DataMap(0, (), (), (), is_whole=True)
    busy = replace(client(1), name="lab", batches=1)
    moment = Moment(document, 1.0, 1, 1, None, 0, 1.0, (busy,), None, data)
    picture.moment = moment
    picture.rows = [replace(row(0), step=document.round.step - 1)]
    assert "under way: step" in drawn(round_page(picture, 100))
    picture.rows.append(replace(row(1), step=document.round.step, attempt=document.round.attempt))
    assert "under way" not in drawn(round_page(picture, 100))


def test_run_without_losses_says_so() -> None:
    picture = picture_of(run_document(RunState.ROUND_TRAIN))
    picture.rows = [replace(row(0), loss=None)]
    page = drawn(run_page(picture, 100, 40, is_log=False, is_smooth=False))
    assert "No client has reported a loss" in page
    assert "not told; learning rate" in page
    picture.rows = [row(0)]
    assert "over 1 round\n" in re.sub(" +\n", "\n", drawn(run_page(picture, 100, 40, is_log=False, is_smooth=False)))


def test_estimate_counts_lost_rounds_and_epochs_and_no_pause() -> None:
    picture = picture_of(replace(run_document(RunState.ROUND_TRAIN), step=41, total_steps=100))
    rows = [row(number) for number in range(9)]
    late = {3: 5.0, 7: 4000.0}  # an epoch's end before one round, a pause before another
    shifts = [sum(by_s for first, by_s in late.items() if found.number >= first) for found in rows]
    shifted = [replace(found, started_s=found.started_s + shift) for found, shift in zip(rows, shifts, strict=True)]
    shifted[5] = replace(shifted[5], applied_rounds=0)
    picture.add(HistoryPage("run", "a", 9, 0, 0, RoundColumns.of(shifted)))
    assert picture.step_s() == pytest.approx((7 * 10.0 + 5.0) / 6)


def test_kept_rows_are_bounded_and_the_estimate_is_by_whole_rounds() -> None:
    picture = picture_of(replace(run_document(RunState.ROUND_TRAIN), step=41, total_steps=100))
    for first in range(0, 4 * MAX_ROWS, 64):
        page = RoundColumns.of([row(number) for number in range(first, first + 64)])
        picture.add(HistoryPage("run", "a", first + 64, 0, 0, page))
    assert len(picture.rows) <= MAX_ROWS
    assert sum(found.rounds for found in picture.rows) == 4 * MAX_ROWS
    assert picture.step_s() == pytest.approx(10.0)
    assert picture.eta_s() == pytest.approx(600.0)
    assert picture.tokens_per_s() == pytest.approx(10.0, rel=0.05)


def test_times_of_a_member_are_whole_on_a_narrow_terminal() -> None:
    parts = {f"{name}_s": 12.34 for name in PARTS}
    taken = client(1, **parts, fate="rejected", detail="it is too large", loss=2.125)
    rounds = (MemberRound(10_000, 3, 9_000, 0, 1.0, 2.0, taken),)
    told = MemberDetail("run", "a", 1, 1.0, member(1), "", rounds, (), (), (), 1.0, ())
    text = drawn(member_page(told), 78)
    assert text.count("12.3") == len(PARTS)
    assert "10000 9000" in text
    assert "round 10000: broke a rule: it is too large" in text
    assert "…" not in text


@pytest.mark.parametrize(("is_known", "text"), [(True, "no round was applied"), (False, "not known: the last applied")])
def test_trust_page_tells_unknown_witnesses_from_none(is_known: bool, text: str) -> None:
    picture = picture_of(run_document(RunState.ROUND_TRAIN))
    picture.trust = TrustView(
        "run", "a", 1, 1.0, None, None, None, None, 0, (), {}, (), (), None, is_vouched_known=is_known
    )  # fmt: skip
    assert text in drawn(trust_page(picture))


def test_map_of_the_data_shows_what_became_of_each_part() -> None:
    document = replace(run_document(RunState.ROUND_TRAIN), carried_batches=3, quarantined_batches=7)
    picture = picture_of(document)
    parts = (BatchId(36, 39),), (BatchId(0, 1),), (BatchId(8, 10),)
    data = DataMap(40, *parts, is_whole=True, passes=2.5, pass_samples=16)
    picture.moment = Moment(document, 1.0, 1, 1, None, 0, 1.0, (), None, data)
    text = drawn(run_page(picture, 120, 24, is_log=False, is_smooth=False), 120)
    assert "pass 3: 0 samples applied, 3 batches wait, 7 quarantined" in text
    assert f"ww{'█' * 6}QQQ{'█' * 25}▒▒▒▒  █ applied  ▒ under way  w wait  Q quarantined" in text


def test_join_page_counts_the_results_of_the_others() -> None:
    room = JoinRoom(
        parameter_count=10, trainer_bytes=1, spool_bytes=1, clients=4, download_bytes=7_000, result_bytes=1_000
    )
    data = JoinData("made up", (), 0, own=False, loopback=False, insecure=False)
    guide = JoinGuide("run", "0.1", "open", "numpy", False, (), None, data, None, room)
    text = drawn(join_page(RunPicture(guide=guide), "http://host:1"))
    assert "7.0 kB once, then 1.0 kB up and 3.0 kB down in each round" in text
