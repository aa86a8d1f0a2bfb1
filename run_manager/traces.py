"""A client's rounds as spans, from its events: each part with its time, and the requests that it makes meanwhile."""

import contextlib
import time
from collections.abc import Callable, Iterator

from epochal.run_manager.events import (
    Attested,
    BlobFetched,
    DocumentArrived,
    Event,
    OutcomeMerged,
    PartBegan,
    RoundFailed,
    RoundPart,
    RoundTrained,
    WorkAssigned,
)
from epochal.runtime.tracing.spans import Attributes, RoundSpan, SpanSink, new_span_id
from epochal.runtime.tracing.trace_ids import TracedRound, traceparent
from epochal.state.documents import RunDocument
from epochal.state.wire import ClientId

KEPT_ROUNDS = 4
"""Number of rounds to whose traces later parts are added, such as a merge."""
PART_NAMES = {"replica": "wait for model", "train": "train", "encode": "encode result", "upload": "upload result"}


class _Round:
    """A round of this client that is under way, or over."""

    def __init__(self, name: TracedRound, start_s: float) -> None:
        self.name = name
        self.span_id = new_span_id()
        self.start_s = start_s
        self.part: tuple[RoundPart, float] | None = None
        self.attributes: dict[str, str | int | float | bool] = {}
        self.failure: str | None = None


class ClientTraces:
    """Makes spans of a client's events. `observe` is an `Observer`, and it is a `RequestTracer`.

    Args:
        sink: takes the spans.
        client_id: of the client.
        now_s: returns seconds since 1970.
    """

    def __init__(self, sink: SpanSink, client_id: ClientId, now_s: Callable[[], float] = time.time) -> None:
        self._sink = sink
        self._client = {"epochal.client_id": client_id}
        self._now_s = now_s
        self._round: _Round | None = None
        self._last: dict[int, _Round] = {}

    def observe(self, event: Event) -> None:
        """Take an event of the client."""
        now_s = self._now_s()
        if isinstance(event, DocumentArrived):
            self._follow(event.document, now_s)
        elif isinstance(event, Attested | OutcomeMerged):
            self._add_late(event, now_s)
        elif self._round is not None:
            self._add(self._round, event, now_s)

    def _follow(self, document: RunDocument, now_s: float) -> None:
        head = document.round
        name = None if head is None else TracedRound(document.run_id, head.step, head.attempt)
        if self._round is not None and name == self._round.name:
            return
        self.end(now_s)
        if name is not None:
            self._round = self._last[name.step] = _Round(name, now_s)
            while len(self._last) > KEPT_ROUNDS:
                self._last.pop(next(iter(self._last)))

    def end(self, now_s: float | None = None) -> None:
        """End the round under way, if there is one."""
        under_way, self._round = self._round, None
        if under_way is None:
            return
        end_s = self._now_s() if now_s is None else now_s
        self._end_part(under_way, end_s)
        name, start_s, attributes = under_way.name, under_way.start_s, self._client | under_way.attributes
        ids, failure = (under_way.span_id, name.root_span_id), under_way.failure
        self._sink.take(RoundSpan("client round", name, start_s, end_s, attributes, *ids, failure=failure))

    def _add(self, under_way: _Round, event: Event, now_s: float) -> None:
        match event:
            case WorkAssigned(batch_count=batch_count, is_witness=is_witness):
                under_way.attributes |= {"epochal.batches": batch_count, "epochal.witness": is_witness}
            case PartBegan(part=part):
                self._end_part(under_way, now_s)
                under_way.part = part, now_s
            case RoundTrained():
                under_way.attributes |= _figures(event)
                self._end_part(under_way, now_s, {"epochal.bytes": event.uploaded_bytes})
            case RoundFailed(kind=kind):
                under_way.failure = kind
                self._end_part(under_way, now_s)
            case BlobFetched(size_bytes=size_bytes, duration_s=duration_s, is_result=is_result):
                what = "download result" if is_result else "download checkpoint"
                self._part(under_way, what, now_s - duration_s, now_s, {"epochal.bytes": size_bytes})

    def _add_late(self, event: Attested | OutcomeMerged, now_s: float) -> None:
        """Add what may come after the round's end."""
        of = self._last.get(event.step)
        if of is None:
            return
        if isinstance(event, Attested):
            counts = {"epochal.results": event.received_count}
            self._part(of, "attest", now_s - event.attest_s, now_s, counts)
        else:
            self._part(of, "merge", now_s - event.merge_s, now_s)

    def _end_part(self, under_way: _Round, now_s: float, attributes: Attributes | None = None) -> None:
        if under_way.part is not None:
            part, start_s = under_way.part
            under_way.part = None
            self._part(under_way, PART_NAMES[part], start_s, now_s, attributes)

    def _part(self, of: _Round, name: str, start_s: float, end_s: float, attributes: Attributes | None = None) -> None:
        found = self._client | dict(attributes or {})
        self._sink.take(RoundSpan(name, of.name, start_s, end_s, found, parent_id=of.span_id))

    @contextlib.contextmanager
    def request(self, name: str, server: str) -> Iterator[str | None]:
        """Trace a request of the round under way, as `RequestTracer.request`."""
        under_way = self._round
        if under_way is None:
            yield None
            return
        span_id, start_s, failure = new_span_id(), self._now_s(), None
        try:
            yield traceparent(under_way.name.trace_id, span_id)
        except BaseException as error:
            failure = type(error).__name__
            raise
        finally:
            attributes = self._client | {"server.address": server}
            times, ids = (start_s, self._now_s()), (span_id, under_way.span_id)
            self._sink.take(RoundSpan(name, under_way.name, *times, attributes, *ids, failure, is_request=True))


def _figures(event: RoundTrained) -> dict[str, str | int | float | bool]:
    figures: dict[str, str | int | float | bool] = {
        "epochal.tokens": event.token_count,
        "epochal.data_wait_s": event.data_wait_s,
        "epochal.fetching_s": event.fetching_s,
        "epochal.decoding_s": event.decoding_s,
        "epochal.packing_s": event.packing_s,
    }
    return figures if event.loss is None else figures | {"epochal.loss": event.loss}
