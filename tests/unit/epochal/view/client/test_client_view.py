"""A client's view: what it says of its events, and that log lines stay whole."""

import io

import pytest
from rich.console import Console

from epochal.coordinator_client.session import CoordinatorFound, CoordinatorLost, Joined, RestBegan
from epochal.run_manager.events import (
    Attested,
    BlobFetched,
    BlobSent,
    Event,
    OutcomeMerged,
    PartBegan,
    ResultSettled,
    RoundFailed,
    RoundTrained,
    WorkAssigned,
)
from epochal.runtime.long_work import BYTES, LongWork
from epochal.state.wire import ClientId, Sha256
from epochal.view.client.client_progress import MAX_LOSSES, ClientProgress
from epochal.view.client.client_view import MAX_WAITING_LINES, ClientView, client_panel


def trained(step: int, loss: float = 2.5, train_s: float = 4.0) -> RoundTrained:
    sha256 = Sha256("ab" * 32)
    return RoundTrained(step, 0, loss, 10_000, 3, train_s, 0.6, sha256, fetching_s=0.6, upload_s=1.5, idle_s=0.7)


def shown(*events: Event, works: tuple[LongWork, ...] = (), width: int = 80) -> str:
    """Return the panel after these events, one a second."""
    progress = ClientProgress()
    for second, event in enumerate(events):
        progress.observe(event, float(second))
    console = Console(file=io.StringIO(), width=width)
    console.print(client_panel(progress, works, float(len(events))))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_panel_shows_what_the_client_does_and_for_how_long() -> None:
    text = shown(Joined(ClientId("ab" * 16), 1), trained(1), PartBegan(2, 0, "train"), ResultSettled(is_applied=True))
    assert "client abababababab" in text
    assert "training, for 2 s (the last round took 4.0 s)" in text


def test_panel_shows_the_place_in_the_round() -> None:
    text = shown(WorkAssigned(7, 0, 3, 12, 4, is_witness=True), Attested(7, 0, 3, 4), width=120)
    assert "step 7: 3 of 12 batches, one of 4 clients, elected witness; attested 3 of 4 results" in text


def test_panel_shows_speed_and_waits_of_the_last_round() -> None:
    text = shown(trained(1), OutcomeMerged(1, 0.2), trained(2, 2.25), width=120)
    assert "2,500 tokens/s while training, 5,000 with all waits; loss 2.250" in text
    assert "data 0.6 s (fetching 0.6 s), upload 1.5 s, merge 0.2 s, others 0.7 s" in text


def test_panel_names_the_page_of_the_client_whole() -> None:
    progress, console = ClientProgress(), Console(file=io.StringIO(), width=100)
    progress.observe(Joined(ClientId("ab" * 16), 1), 0.0)
    console.print(client_panel(progress, (), 1.0, "http://127.0.0.1:8000"))
    assert isinstance(console.file, io.StringIO)
    assert f"http://127.0.0.1:8000/#/member/{'ab' * 16}" in console.file.getvalue()


def test_panel_says_that_others_train_where_there_is_no_work() -> None:
    assert "none of 12 batches; others train" in shown(WorkAssigned(7, 0, 0, 12, 1, is_witness=False))


def test_panel_counts_results_and_traffic() -> None:
    events = ResultSettled(is_applied=True), ResultSettled(is_applied=False), BlobSent(3_000_000, 1.5)
    text = shown(*events, BlobFetched(500, 0.0), RoundFailed(3, 0, "trainer", "no", None), width=120)
    assert "1 applied, 1 lost, 1 failed" in text
    assert "sent 3.0 MB at 2.0 MB/s, received 500 bytes" in text


def test_lost_coordinator_is_shown_until_it_answers() -> None:
    assert "does not answer: refused; trying again" in shown(CoordinatorLost("refused"))
    assert "does not answer" not in shown(CoordinatorLost("refused"), CoordinatorFound())


def test_text_from_others_is_shown_as_text() -> None:
    text = shown(RestBegan(3.0, "[red]\x1b[31m\u202ex"), CoordinatorLost("\x1b]0;title\x07"), width=120)
    assert "[red]\\x1b[31m\\u202ex" in text
    assert "\\x1b]0;title\\x07" in text
    assert "\x1b" not in text


def test_long_work_has_a_bar_with_an_estimate() -> None:
    work = LongWork("downloading the checkpoint of step 3", 4_000_000, BYTES)
    work.done, work.started_s = 1_000_000, 0.0
    progress, console = ClientProgress(), Console(file=io.StringIO(), width=100)
    console.print(client_panel(progress, (work,), 10.0))
    assert isinstance(console.file, io.StringIO)
    assert "1.0 MB/4.0 MB, 30 s left" in console.file.getvalue()


def test_kept_losses_are_bounded() -> None:
    progress = ClientProgress()
    for step in range(MAX_LOSSES + 10):
        progress.observe(trained(step), float(step))
    assert len(progress.losses) == MAX_LOSSES


@pytest.fixture
def view() -> tuple[ClientView, io.StringIO]:
    file = io.StringIO()
    return ClientView(Console(file=file, width=80, force_terminal=False)), file


def test_log_lines_wait_for_the_next_refresh_but_warnings_do_not(view: tuple[ClientView, io.StringIO]) -> None:
    shown, file = view
    shown._take("a line [bold]" + "x" * 100, False)
    assert file.getvalue() == ""
    shown._take("a warning", True)
    assert file.getvalue() == "a line [bold]" + "x" * 100 + "\na warning\n"


def test_waiting_lines_are_bounded(view: tuple[ClientView, io.StringIO]) -> None:
    shown, file = view
    for number in range(MAX_WAITING_LINES):
        shown._take(f"line {number}", False)
    assert file.getvalue().count("\n") == MAX_WAITING_LINES
