"""A run in a terminal, with hostile words in all that others choose: they are shown, and never obeyed."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import RenderableType

from epochal.state.documents import RunDocument
from epochal.state.intervals import BatchId
from epochal.state.messages.evaluation_reports import Evaluation
from epochal.state.messages.history_rows import Moment
from epochal.state.messages.requests import DatasetView, FailedBatches, FailedData, RunStatus
from epochal.state.phase_names import RunState
from epochal.state.wire import ClientId, Sha256
from epochal.view.run_screen import RunScreen
from epochal.view.status_panel import status_line, status_panel
from epochal.view.watched_run import RunPicture
from tests.support.data.documents import run_document
from tests.support.data.hostile_texts import OBEYED, TEXTS
from tests.support.data.shown_rounds import client, detail, drawn
from tests.unit.epochal.view.test_status_panel import status_of

SIZES = ((80, 24), (120, 40))
ID = ClientId(f"{1:032x}")


def hostile(document: Any, text: str, *names: str) -> Any:
    """Return a document with this text in these fields."""
    return replace(document, **dict.fromkeys(names, text))


def document_with(text: str) -> RunDocument:
    document: RunDocument = hostile(run_document(RunState.ROUND_TRAIN), text, "lineage", "reason")
    return document


def status_with(text: str) -> RunStatus:
    """Return a status in which everything that somebody else can have written is this text."""
    failed = (FailedBatches(BatchId(1, 2), (ID,), text),)
    known = status_of(1, 1.0)
    status: RunStatus = hostile(
        known, text, "run_id", "reason", "waiting", "explanation", "data_fingerprint", "hold", "store_problem"
    )
    return replace(
        status,
        members=(hostile(replace(known.members[0], missed=3), text, "name", "trainer", "last_miss"),),
        quarantined_batches=2, waiting_batches=2, failed_data=FailedData(failed, failed),
        evaluations=(Evaluation(text, 0, 2.5, 9, 3, Sha256("ab" * 32), 1.0),),
        datasets=(DatasetView(text, 1, None), DatasetView("other", 2, None)),
    )  # fmt: skip


def screen_with(text: str, problem: str = "") -> RunScreen:
    busy = client(1, name=text, fate="rejected", detail=text, train_s=1.0)
    shown = replace(detail(busy), reason=text)
    moment = Moment(document_with(text), 1.0, 1, 1, None, 0, 1.0, (busy,), shown, None, None, text, text)
    return RunScreen(RunPicture(status_with(text), moment, problem), "http://host:1")


def views_of(text: str) -> dict[str, Callable[[], RenderableType]]:
    return {
        "screen": partial(screen_with, text),
        "problem": partial(screen_with, "", text),
        "status": lambda: status_panel(status_with(text)),
        "line": lambda: status_line(status_with(text)),
    }


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_no_view_obeys_what_others_wrote(text: str) -> None:
    for width, height in SIZES:
        for name, view in views_of(text).items():
            lines = drawn(view(), width, height).splitlines()
            assert OBEYED.findall("".join(lines)) == [], name
            assert name == "line" or max(map(cell_len, lines)) <= width, name


def test_every_view_shows_what_others_wrote() -> None:
    text = "[bold]written[/bold]"
    for name, view in views_of(text).items():
        assert name == "line" or text in drawn(view(), 400, 60), name
