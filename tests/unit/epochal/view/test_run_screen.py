"""The live screen of a run: its waterfall, and the lines in sight."""

from dataclasses import replace

from epochal.state.messages.history_rows import Moment
from epochal.state.phase_names import RunState
from epochal.state.shown.glossary import PARTS
from epochal.state.wire import ClientId
from epochal.view.round_lines import bar_of, waterfall_lines
from epochal.view.run_screen import RunScreen
from epochal.view.watched_run import RunPicture
from epochal.view.waterfall import waterfall
from tests.support.data.documents import run_document
from tests.support.data.shown_rounds import client, detail, drawn
from tests.unit.epochal.view.test_status_panel import status_of

SIZE = 80, 24
DOWN, PAGE_DOWN, HOME, END = b"\x1b[B", b"\x1b[6~", b"\x1b[H", b"\x1b[F"


def test_waterfall_shows_the_slowest_client_first() -> None:
    fast = client(1, train_s=1.0, upload_s=1.0, delivered_s=2.0)
    slow = client(2, train_s=1.0, upload_s=7.0, delivered_s=8.0)
    text = drawn(waterfall_lines(waterfall(detail(fast, slow), {slow.client_id: "slow"}), 200), 200)
    first, second = text.splitlines()
    assert "slow" in first
    assert first.count("U") > 5 * second.count("U") > 0


def test_every_part_of_a_clients_round_has_its_letter() -> None:
    parts = {f"{name}_s": 0.5 for name in PARTS} | {"upload_s": 0.001}
    (found,) = waterfall(detail(client(1, **parts, delivered_s=3.5, attested_s=8.0)), {}).rows
    assert set(bar_of(found, 4.0).plain) == {part.letter for part in PARTS.values()} | {"-"}


def picture(members: int = 3) -> RunPicture:
    status = replace(status_of(1, 2.0), waiting="waits for results", explanation="Client a is the slowest.")
    rows = tuple(replace(status.members[0], client_id=ClientId(f"{number:02x}" * 16)) for number in range(members))
    moment = Moment(
        run_document(RunState.ROUND_TRAIN), 1.0, 1, 1, None, 0, 1.5,
        (client(1), client(2, delivered_s=1.0)), detail(client(1, train_s=2.0, delivered_s=2.0)),
        None, None,
    )  # fmt: skip
    return RunPicture(replace(status, members=rows, member_count=members), moment)


def test_screen_shows_the_run_its_round_and_why_it_is_not_faster() -> None:
    text = drawn(RunScreen(picture(), "http://host:1"), 120, 40)
    assert "Epochal · run demo" in text
    assert "The run waits for results" in text
    assert "Client a is the slowest." in text
    assert "1 of 2 results came; awaited: 00000000" in text
    assert "step 1: " in text
    assert "TTTT" in text
    assert "last loss" in text


def test_screen_before_the_first_answer_says_whom_it_asks() -> None:
    text = drawn(RunScreen(RunPicture(problem="refused; trying again"), "http://host:1"), *SIZE)
    assert "http://host:1" in text
    assert "refused; trying again" in text


def test_screen_has_as_many_lines_as_the_terminal() -> None:
    for members in (1, 100):
        lines = drawn(RunScreen(picture(members), ""), *SIZE).splitlines()
        assert len(lines) == SIZE[1]
        assert max(map(len, lines)) <= SIZE[0]


def test_keys_scroll_to_the_last_line_and_back() -> None:
    screen = RunScreen(picture(100), "")
    top = drawn(screen, *SIZE)
    assert "lines 1 to 21 of " in top
    for key, first in ((DOWN, 2), (PAGE_DOWN, 23), (HOME, 1)):
        screen.press(key)
        assert f"lines {first} to {first + 20} of " in drawn(screen, *SIZE)
    screen.press(END)
    assert "63" * 6 in drawn(screen, *SIZE)
    screen.press(DOWN)
    screen.press(b"\x1b[A")
    screen.press(HOME)
    assert drawn(screen, *SIZE) == top
