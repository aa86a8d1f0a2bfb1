"""Every page of a run's view with hostile words in every field that others choose: they are shown, and never obeyed."""

from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from functools import partial
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import RenderableType

from epochal.coordinator_client.session import CoordinatorLost, Joined, RestBegan
from epochal.run_manager.events import DataDiffers, ReplicaDistrusted, RoundFailed
from epochal.state.intervals import BatchId
from epochal.state.messages.audit_reports import AuditRecord, RecordedAudit
from epochal.state.messages.evaluation_reports import Evaluation
from epochal.state.messages.history_rows import DataMap, HistoryPage, Moment, RoundColumns
from epochal.state.messages.member_rows import (
    MemberColumns,
    MemberDetail,
    MemberRound,
    MembersPage,
    MemberView,
    RefusalCount,
    RefusalTold,
)
from epochal.state.messages.requests import FailedBatches, FailedData
from epochal.state.phase_names import RunState
from epochal.state.shown.explanation import ClientMedians, SpeedExplanation
from epochal.state.shown.join_guide import JoinData, JoinGuide
from epochal.state.shown.operator_actions import ActionsPage, OperatorAction
from epochal.state.shown.trust import TrustView
from epochal.state.wire import ClientId, Sha256
from epochal.view.status_panel import status_line, status_panel
from epochal.view.terminal.client_progress import ClientProgress
from epochal.view.terminal.client_view import client_panel
from epochal.view.terminal.join_page import join_page
from epochal.view.terminal.member_page import member_page
from epochal.view.terminal.members_page import COLUMNS, MembersTable, members_page
from epochal.view.terminal.operate_page import operate_page
from epochal.view.terminal.operator_desk import OperatorDesk
from epochal.view.terminal.round_page import round_page
from epochal.view.terminal.run_page import run_page
from epochal.view.terminal.trust_page import trust_page
from epochal.view.terminal.view_state import RunPicture
from tests.support.data.documents import run_document
from tests.support.data.hostile_texts import BIDI, OBEYED, TEXTS
from tests.unit.epochal.view.terminal.test_run_pages import client, detail, drawn, member, row
from tests.unit.epochal.view.test_status_panel import status_of

SIZES = ((80, 24), (120, 40))
ID = ClientId(f"{1:032x}")
DIGEST = Sha256("ab" * 32)
FAILED = (FailedBatches(BatchId(1, 2), (ID,), ""),)


def hostile(document: Any, text: str, *names: str) -> Any:
    """Return a document with this text in these fields."""
    return replace(document, **dict.fromkeys(names, text))


def filled(kind: type[Any], **known: Any) -> Any:
    """Return a document with zeros in the fields that are not named."""
    assert is_dataclass(kind)
    return kind(**({field.name: 0 for field in fields(kind)} | known))


def picture_with(text: str) -> RunPicture:
    """Return a picture in which everything that somebody else can have written is this text."""
    failed = (hostile(FAILED[0], text, "message"),)
    document = hostile(run_document(RunState.ROUND_TRAIN), text, "lineage", "reason")
    told = filled(MemberView, client_id=ID, name=text, trainer=text, last_miss=text, missed=3, ready=True,
                  in_roster=True, last_loss=None, rest_s=None, data_wait=None)  # fmt: skip
    status = replace(
        hostile(status_of(1, 1.0), text, "run_id", "reason", "waiting", "explanation", "data_fingerprint", "hold",
                "store_problem"),
        members=(told,), member_count=1, quarantined_batches=2, waiting_batches=2,
        failed_data=FailedData(failed, failed), evaluations=(Evaluation(text, 0, 2.5, 9, 3, DIGEST, 1.0),),
    )  # fmt: skip
    figures = member(1, name=text, software=text, trainer=text, left=text)
    busy = client(1, name=text, fate="rejected", detail=text, train_s=1.0)
    shown = replace(detail(busy), reason=text)
    medians = filled(ClientMedians, client_id=ID, name=text, **dict.fromkeys(_MEDIANS, None))
    audit = filled(AuditRecord, problems=(text,), remarks=(text,), recomputed_steps=None, record_chain=text)
    trust = TrustView(
        text, text, 1, 1.0, RecordedAudit(audit, 1, 1.0), None, None, None, 2, failed, {ID: text},
        (RefusalCount(text, 3),), (RefusalCount(text, 3),), 1.0,
    )  # fmt: skip
    refusals = (RefusalCount(text, 2),)
    told_last = (RefusalTold(text, text, 1, 1.0),)
    taken = filled(MemberRound, figures=busy)
    page = RoundColumns.of([replace(row(number), clients=1) for number in range(3)])
    begun = DataMap(9, (), (), (), is_whole=True)
    picture = RunPicture(
        "http://host:1", document=document, status=status, detail=shown, member=MemberDetail(
            text, text, 1, 1.0, figures, text, (taken,), refusals, told_last, refusals, 1.0, ()),
        explanation=filled(SpeedExplanation, sentence=text, unknown=text, parts=(), clients=(medians,)),
        members=MembersPage(text, text, 1, 1.0, 1, MemberColumns.of((figures,)), MemberColumns.of(())),
        actions=ActionsPage(text, text, 1, (OperatorAction(0, text, {text: text}, 1.0, 1),)),
        guide=JoinGuide(text, text, "keys", text, False, (), text, JoinData("files", (text,), 1, True, False, True),
                        None, None),
        trust=trust,
        moment=Moment(document, 1.0, 1, 1, None, 0, 1.0, (busy,), shown, begun, text, text),
        problem=text, note=text,
    )  # fmt: skip
    picture.add(HistoryPage("run", "a", 3, 0, 0, page))
    return picture


_MEDIANS = tuple(field.name for field in fields(ClientMedians) if field.name.endswith("_s"))


def client_view_of(text: str) -> RenderableType:
    progress = ClientProgress()
    progress.observe(Joined(ID, 1), 0.0)
    for event in (RestBegan(3.0, text), CoordinatorLost(text), DataDiffers(text), ReplicaDistrusted(1, text)):
        progress.observe(event, 1.0)
    progress.observe(RoundFailed(3, 0, "trainer", text, None), 2.0)
    progress.document = picture_with(text).document
    return client_panel(progress, (), 3.0)


def pages_of(text: str, width: int, height: int) -> dict[str, Callable[[], RenderableType]]:
    picture = picture_with(text)
    assert picture.status is not None
    desk = OperatorDesk(lambda token: pytest.fail(f"{token} is for nobody"), "http://host:1")
    desk.begin("finish")
    desk.answer("x")
    return {
        "run": partial(run_page, picture, width, height, is_log=False, is_smooth=False),
        "round": partial(round_page, picture, width),
        "members": partial(members_page, MembersTable(wanted=text[:8]), picture.members, width, height),
        "member": partial(member_page, picture.member),
        "trust": partial(trust_page, picture),
        "join": partial(join_page, picture, "http://host:1"),
        "operate": partial(operate_page, picture, desk),
        "status": partial(status_panel, picture.status),
        "line": partial(status_line, picture.status),
        "client": partial(client_view_of, text),
    }


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_no_page_obeys_what_others_wrote(text: str) -> None:
    for width, height in SIZES:
        for name, page in pages_of(text, width, height).items():
            lines = drawn(page(), width).splitlines()
            assert OBEYED.findall("".join(lines)) == [], name
            assert name == "line" or max(map(cell_len, lines)) <= width, name


def test_every_page_shows_what_others_wrote() -> None:
    text = "[bold]written[/bold]"
    for name, page in pages_of(text, 400, 60).items():
        assert name == "line" or text in drawn(page(), 400), name


def test_table_of_members_keeps_its_width_with_every_order() -> None:
    picture = picture_with(BIDI * 9)
    for order in (None, *range(len(COLUMNS))):
        lines = drawn(members_page(MembersTable(order), picture.members, 80, 24), 80).splitlines()
        assert max(map(cell_len, lines)) <= 80
        assert order is None or f"{COLUMNS[order].title} ▲" in lines[0], "the column of the order is in sight"
