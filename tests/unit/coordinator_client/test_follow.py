"""`coordinator_client/follow.py`: documents that never go back."""

from epochal.coordinator_client.api import DocumentMark
from epochal.coordinator_client.follow import DocumentFeed
from epochal.state.documents import RunDocument
from epochal.state.phase_names import RunState
from tests.support.data.documents import run_document
from tests.support.simulate.virtual_time import in_virtual_time


class ForgetfulRun:
    """`DocumentRequests` that answers with these (lineage, version) in turn, whatever the client knows.

    Attributes:
        asked: the documents that it was asked for what follows.
    """

    def __init__(self, *answers: tuple[str, int]) -> None:
        self._answers = iter(answers)
        self.asked: list[DocumentMark | None] = []

    async def run_document(self, after: DocumentMark | None, wait_s: float) -> RunDocument | None:
        self.asked.append(after)
        lineage, version = next(self._answers)
        return run_document(RunState.WARMUP, lineage=lineage * 8, version=version)


@in_virtual_time
async def test_feed_ignores_older_documents_and_lineages_that_were_left() -> None:
    feed = DocumentFeed(ForgetfulRun(("ab", 5), ("ab", 3), ("cd", 1), ("ab", 9), ("cd", 2)))
    found = [await feed.next(0.0) for _ in range(3)]
    assert [(document.lineage[:2], document.version) for document in found] == [("ab", 5), ("cd", 1), ("cd", 2)]


@in_virtual_time
async def test_feed_ignores_documents_older_than_one_that_was_seen_before() -> None:
    run = ForgetfulRun(("ab", 5), ("ab", 7), ("ab", 8))
    feed = DocumentFeed(run, DocumentMark("ab" * 8, 7))
    assert (await feed.next(0.0)).version == 8
    assert run.asked == [None, DocumentMark("ab" * 8, 7), DocumentMark("ab" * 8, 7)]


@in_virtual_time
async def test_feed_takes_the_document_that_was_seen_last_or_another_lineage() -> None:
    for lineage, version in (("ab", 7), ("cd", 1)):
        feed = DocumentFeed(ForgetfulRun((lineage, version)), DocumentMark("ab" * 8, 7))
        assert (await feed.next(0.0)).version == version
