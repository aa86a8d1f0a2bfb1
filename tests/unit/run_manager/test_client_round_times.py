"""The times of a client's rounds, from its events."""

from epochal.run_manager.client_round_times import RoundTimes
from epochal.run_manager.events import (
    Attested,
    BlobFetched,
    DocumentArrived,
    Event,
    OutcomeMerged,
    PartBegan,
    RoundTrained,
)
from epochal.state.messages.requests import ResultCommitment, ResultMetrics
from epochal.state.messages.round_times import LaterTimes, WorkTimes
from epochal.state.phase_names import RunState
from epochal.state.wire import Sha256
from epochal.trainers.protocol import TrainedRound
from tests.support.data.documents import run_document

DIGEST = Sha256("0" * 64)


class Watched:
    """Times on a clock that the test moves, and the events that were passed on."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.events: list[Event] = []
        self.times = RoundTimes(lambda: self.now_s, self.events.append)

    def after(self, seconds: float, event: Event) -> None:
        self.now_s += seconds
        self.times.observe(event)

    def begin(self, step: int, attempt: int = 0) -> None:
        self.times.observe(DocumentArrived(run_document(RunState.ROUND_TRAIN, step, attempt)))

    def train(self, step: int) -> ResultMetrics:
        """Wait half a second for the replica, train for 4 s and encode for 0.25 s."""
        self.after(0.0, PartBegan(step, 0, "replica"))
        self.after(0.5, PartBegan(step, 0, "train"))
        self.after(4.0, PartBegan(step, 0, "encode"))
        self.now_s += 0.25
        return self.times.result_metrics(TrainedRound({}, 2.5, 8), None)


def trained(step: int, attempt: int = 0) -> RoundTrained:
    return RoundTrained(step, attempt, 1.0, 8, 1, 1.0, 0.0, DIGEST, upload_s=2.0, uploaded_bytes=500)


def test_times_known_after_the_round_are_told_once() -> None:
    watched = Watched()
    watched.begin(1)
    watched.after(5, trained(1))
    watched.after(1, BlobFetched(300, 0.75, is_merged=True))
    watched.after(0, BlobFetched(200, 0.5, is_merged=True))
    watched.after(1, Attested(1, 0, 2, 0.25))
    assert watched.times.before() is None, "the round is under way"
    watched.begin(2)
    watched.after(0.5, OutcomeMerged(1, 0.125))
    expected = LaterTimes(1, 0, 2000, 250, 750, 125, 500, 500)
    assert watched.times.before() == expected, "fetched at the same time counts once"
    assert watched.times.before() is None


def test_idle_time_is_from_the_last_work_to_the_next_document() -> None:
    watched = Watched()
    watched.begin(1)
    assert watched.train(1).work == WorkTimes(None, 500, 250)
    watched.after(5, trained(1))
    watched.now_s += 3
    watched.begin(2)
    watched.begin(2)
    assert watched.train(2).work == WorkTimes(3000, 500, 250)


def test_delivered_result_is_reported_with_the_times_of_its_parts() -> None:
    watched = Watched()
    watched.begin(1)
    metrics = watched.train(1)
    watched.after(0.0, PartBegan(1, 0, "upload"))
    watched.now_s += 1.5
    watched.times.delivered(ResultCommitment(1, 0, DIGEST, 500, metrics), 3)
    event = watched.events[-1]
    assert isinstance(event, RoundTrained)
    assert (event.loss, event.token_count, event.batch_count, event.uploaded_bytes) == (2.5, 8, 3, 500)
    assert (event.replica_s, event.train_s, event.encode_s, event.upload_s) == (0.5, 4.0, 0.25, 1.5)


def test_every_event_is_passed_on() -> None:
    watched = Watched()
    watched.begin(1)
    watched.after(1, trained(1))
    assert [type(event) for event in watched.events] == [DocumentArrived, RoundTrained]


def test_fetches_of_a_round_without_an_outcome_are_its_own() -> None:
    watched = Watched()
    watched.begin(3)
    watched.after(5, trained(3))
    watched.after(1, BlobFetched(300, 0.5, is_merged=True))
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
