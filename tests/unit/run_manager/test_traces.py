"""A client's rounds as spans: each in its round's trace, whenever it comes."""

from dataclasses import replace

from epochal.run_manager.events import Attested, BlobFetched, DocumentArrived, OutcomeMerged, PartBegan, RoundFailed
from epochal.run_manager.traces import KEPT_ROUNDS, ClientTraces
from epochal.runtime.tracing.spans import RoundSpan
from epochal.runtime.tracing.trace_ids import TracedRound, traceparent
from epochal.state.phase_names import RunState
from epochal.state.wire import ClientId
from tests.support.data.documents import round_head, run_document

CLIENT = ClientId("ab" * 16)


class Traced:
    """A client's traces, on a clock that the test sets."""

    def __init__(self) -> None:
        self.spans: list[RoundSpan] = []
        self.now_s = 100.0
        self.traces = ClientTraces(self, CLIENT, lambda: self.now_s)

    def take(self, span: RoundSpan) -> None:
        self.spans.append(span)

    def enter(self, step: int) -> None:
        document = replace(run_document(RunState.ROUND_TRAIN), round=round_head(step))
        self.run_id = document.run_id
        self.traces.observe(DocumentArrived(document))

    def named(self, name: str) -> list[RoundSpan]:
        return [span for span in self.spans if span.name == name]


def test_parts_follow_each_other_within_the_clients_round() -> None:
    traced = Traced()
    traced.enter(1)
    traced.traces.observe(PartBegan(1, 0, "train"))
    traced.now_s += 4
    traced.traces.observe(PartBegan(1, 0, "encode"))
    traced.now_s += 1
    traced.enter(2)
    (train,), (encode,), (whole,) = traced.named("train"), traced.named("encode result"), traced.named("client round")
    assert [(span.start_s, span.end_s) for span in (train, encode, whole)] == [(100, 104), (104, 105), (100, 105)]
    assert train.parent_id == encode.parent_id == whole.span_id
    assert whole.parent_id == TracedRound(traced.run_id, 1, 0).root_span_id


def test_merge_and_attestation_belong_to_their_round_also_later() -> None:
    traced = Traced()
    traced.enter(1)
    traced.enter(2)
    traced.traces.observe(Attested(1, 0, 3, 4, attest_s=0.5))
    traced.traces.observe(OutcomeMerged(1, 0.25))
    assert [span.round.step for span in (*traced.named("attest"), *traced.named("merge"))] == [1, 1]
    assert traced.named("attest")[0].start_s == traced.now_s - 0.5


def test_failed_round_is_a_failed_span() -> None:
    traced = Traced()
    traced.enter(1)
    traced.traces.observe(RoundFailed(1, 0, "trainer", "secret words", None))
    traced.traces.end()
    (whole,) = traced.named("client round")
    assert whole.failure == "trainer"


def test_requests_are_spans_that_servers_may_continue() -> None:
    traced = Traced()
    with traced.traces.request("ask data source", "host:1") as parent:
        assert parent is None, "no round is under way"
    traced.enter(1)
    with traced.traces.request("ask data source", "host:1") as parent:
        traced.now_s += 2
    (span,) = traced.named("ask data source")
    assert parent == traceparent(TracedRound(traced.run_id, 1, 0).trace_id, span.span_id)
    assert (span.end_s - span.start_s, span.attributes["server.address"]) == (2, "host:1")


def test_rounds_that_may_get_parts_are_few() -> None:
    traced = Traced()
    for step in range(1, KEPT_ROUNDS + 3):
        traced.enter(step)
    traced.traces.observe(OutcomeMerged(1, 0.25))
    traced.traces.observe(BlobFetched(5, 0.1, is_result=True))
    assert traced.named("merge") == []
    assert traced.named("download result")[0].round.step == KEPT_ROUNDS + 2
