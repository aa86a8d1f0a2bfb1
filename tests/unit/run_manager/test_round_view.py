"""`run_manager/round_view.py`: documents of a round that are not asked for."""

from dataclasses import replace

import pytest

from epochal.run_manager.round_view import RoundViews
from epochal.state.documents import Roster, RosterEntry, WorkList
from epochal.state.errors import Refused
from epochal.state.intervals import BatchId
from epochal.state.refusals import Refusal
from epochal.state.wire import ClientId, Sha256, document_digest
from tests.support.data.documents import round_head

CLIENTS = tuple(ClientId(f"{number:032x}") for number in (1, 2))


class AskedDocuments:
    """The requests for documents of a round, and which were made."""

    def __init__(self, roster: Roster, work: WorkList) -> None:
        self._roster = roster
        self._work = work
        self.asked: list[str] = []

    async def roster(self, sha256: Sha256) -> Roster:
        self.asked.append("roster")
        return self._roster

    async def work(self, sha256: Sha256) -> WorkList:
        self.asked.append("work")
        if sha256 != document_digest(self._work):
            raise Refused(Refusal.NOT_FOUND, "another work list")
        return self._work


@pytest.mark.parametrize(
    ("work", "asked"),
    [
        (WorkList((), (BatchId(0, 11),)), ["roster"]),
        (WorkList((), (BatchId(0, 3), BatchId(4, 11))), ["roster", "work"]),
        (WorkList((), (BatchId(20, 31),)), ["roster", "work"]),
    ],
)
async def test_work_list_is_asked_for_unless_its_digest_tells_it(work: WorkList, asked: list[str]) -> None:
    roster = Roster(tuple(RosterEntry(client_id, 1, proven=True) for client_id in CLIENTS))
    head = replace(round_head(1), roster_sha256=document_digest(roster), work_sha256=document_digest(work))
    requests = AskedDocuments(roster, work)
    view = await RoundViews(requests).of(head)  # type: ignore[arg-type]
    assert requests.asked == asked
    assert {batch for batches in view.assignments.values() for batch in batches}
    assert sum(batch.count for batches in view.assignments.values() for batch in batches) == 12
