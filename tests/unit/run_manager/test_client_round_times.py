"""The times of a client's rounds, from its events."""

from epochal.run_manager.client_round_times import RoundTimes
from epochal.run_manager.events import Attested, BlobFetched, Event, OutcomeMerged, RoundTrained
from epochal.state.messages.round_times import LaterTimes, WorkTimes
from epochal.state.phase_names import RunState
from epochal.state.wire import Sha256
from tests.support.data.documents import run_document


class Watched:
    """Times on a clock that the test moves."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.times = RoundTimes(lambda: self.now_s)

    def after(self, seconds: float, event: Event) -> None:
        self.now_s += seconds
        self.times.observe(event)

    def begin(self, step: int, attempt: int = 0) -> None:
        self.times.saw(run_document(RunState.ROUND_TRAIN, step, attempt))


def trained(step: int, attempt: int = 0) -> RoundTrained:
    return RoundTrained(step, attempt, 1.0, 8, 1, 1.0, 0.0, Sha256("0" * 64), upload_s=2.0, uploaded_bytes=500)


def test_times_known_after_the_round_are_told_once() -> None:
    watched = Watched()
    watched.begin(1)
    watched.after(5, trained(1))
    watched.after(1, BlobFetched(300, 0.75, is_result=True))
    watched.after(0, BlobFetched(200, 0.5, is_result=True))
    watched.after(1, Attested(1, 0, 2, 2, 0.25))
    assert watched.times.before() is None, "the round is under way"
    watched.begin(2)
    watched.after(0.5, OutcomeMerged(1, 0.125))
    expected = LaterTimes(1, 0, 2000, 250, 750, 125, 500, 500)
    assert watched.times.before() == expected, "fetched at the same time counts once"
    assert watched.times.before() is None


def test_idle_time_is_from_the_last_work_to_the_next_document() -> None:
    watched = Watched()
    watched.begin(1)
    assert watched.times.work(0.0, 0.0).idle_ms is None
    watched.after(5, trained(1))
    watched.now_s += 3
    watched.begin(2)
    watched.begin(2)
    watched.now_s += 0.5
    assert watched.times.since_document_s() == 0.5
    assert watched.times.work(0.5, 0.25) == WorkTimes(3000, 500, 250)


def test_fetches_of_a_round_without_an_outcome_are_its_own() -> None:
    watched = Watched()
    watched.begin(3)
    watched.after(5, trained(3))
    watched.after(1, BlobFetched(300, 0.5, is_result=True))
    watched.after(0, BlobFetched(9000, 0.5))
    watched.begin(3, attempt=1)
    told = watched.times.before()
    assert told is not None
    assert (told.attempt, told.download_ms, told.downloaded_bytes, told.merge_ms) == (0, 500, 300, None)


def test_a_client_that_leaves_tells_the_round_under_way() -> None:
    watched = Watched()
    assert watched.times.last() is None
    watched.begin(1)
    watched.after(5, trained(1))
    told = watched.times.last()
    assert told is not None
    assert (told.step, told.upload_ms, told.attest_ms) == (1, 2000, None)
