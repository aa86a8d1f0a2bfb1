"""How long this client takes for the parts of its rounds, from its events, as it tells the coordinator for display.

Some of it is known only after the round: how long the upload took, and, of a client that learns the outcome with the
next round's document, the downloads and the merge. So the last rounds are kept until their times were told.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from epochal.run_manager.events import Attested, BlobFetched, Event, OutcomeMerged, RoundTrained
from epochal.state.documents import RoundHead, RunDocument
from epochal.state.messages.round_times import MAX_TOLD_BYTES, LaterTimes, WorkTimes, milliseconds

KEPT_ROUNDS = 4
"""Number of rounds of which times are kept."""
MAX_SPANS = 64
"""Maximum number of separate times of fetching that are kept; further ones count with the gap before them."""

RoundName = tuple[int, int]


@dataclass(slots=True)
class _Fetched:
    """The times in which something was fetched, as spans that do not overlap, and its size."""

    spans: list[tuple[float, float]] = field(default_factory=list)
    size_bytes: int = 0

    def add(self, start_s: float, end_s: float, size_bytes: int) -> None:
        self.size_bytes += size_bytes
        while self.spans and (self.spans[-1][1] >= start_s or len(self.spans) >= MAX_SPANS):
            earlier = self.spans.pop()
            start_s, end_s = min(start_s, earlier[0]), max(end_s, earlier[1])
        self.spans.append((start_s, end_s))

    def total_s(self) -> float:
        return sum(end_s - start_s for start_s, end_s in self.spans)


@dataclass(slots=True)
class _Later:
    """Times of a round that are known afterwards; None for what did not happen."""

    upload_s: float | None = None
    attest_s: float | None = None
    merge_s: float | None = None
    fetched: _Fetched | None = None
    uploaded_bytes: int = 0
    is_told: bool = False

    def told(self, name: RoundName) -> LaterTimes:
        fetched = self.fetched
        return LaterTimes(
            *name,
            upload_ms=_known(self.upload_s),
            attest_ms=_known(self.attest_s),
            download_ms=None if fetched is None or not fetched.size_bytes else milliseconds(fetched.total_s()),
            merge_ms=_known(self.merge_s),
            uploaded_bytes=min(self.uploaded_bytes, MAX_TOLD_BYTES),
            downloaded_bytes=0 if fetched is None else min(fetched.size_bytes, MAX_TOLD_BYTES),
        )


class RoundTimes:
    """Measures the rounds of one client. `observe` is an `Observer`.

    Args:
        now_s: returns the seconds on a monotonic clock.
    """

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._rounds: OrderedDict[RoundName, _Later] = OrderedDict()
        self._head: RoundHead | None = None
        self._began_s = 0.0
        self._idle_s: float | None = None
        self._done_s: float | None = None
        """When this client did something last for a round."""
        self._fetched = _Fetched()
        """What was fetched for an outcome that is not merged yet."""

    def saw(self, document: RunDocument) -> None:
        """Take a run document."""
        head = document.round
        if head is None or head == self._head:
            return
        now_s = self._now_s()
        if self._head is not None and self._head.step == head.step:  # it had no outcome
            self._end_fetches((self._head.step, self._head.attempt))
        self._idle_s = None if self._done_s is None else now_s - self._done_s
        self._head, self._began_s = head, now_s

    def observe(self, event: Event) -> None:
        """Take an event."""
        now_s = self._now_s()
        match event:
            case RoundTrained(step=step, attempt=attempt):
                later = self._of((step, attempt))
                later.upload_s, later.uploaded_bytes = event.upload_s, event.uploaded_bytes
            case Attested(step=step, attempt=attempt):
                self._of((step, attempt)).attest_s = event.attest_s
            case BlobFetched(is_result=True):
                self._fetched.add(now_s - event.duration_s, now_s, event.size_bytes)
            case OutcomeMerged(step=step, merge_s=merge_s):
                name = next((name for name in reversed(self._rounds) if name[0] == step), (step, 0))
                self._of(name).merge_s = merge_s
                self._end_fetches(name)
            case _:
                return
        self._done_s = now_s

    def since_document_s(self) -> float:
        """Return the seconds since the round's document came."""
        return self._now_s() - self._began_s

    def work(self, replica_s: float, encode_s: float = 0.0) -> WorkTimes:
        """Return the times of this round's work.

        Args:
            replica_s: from the document until the replica was held.
            encode_s: to encode the result; 0 until that is done.
        """
        idle_ms = None if self._idle_s is None else milliseconds(self._idle_s)
        return WorkTimes(idle_ms, milliseconds(replica_s), milliseconds(encode_s))

    def before(self) -> LaterTimes | None:
        """Return the times of the last round before the present one, unless they were told."""
        present = None if self._head is None else (self._head.step, self._head.attempt)
        return self._told(lambda name: name != present)

    def last(self) -> LaterTimes | None:
        """Return the times of the last round of all, unless they were told."""
        return self._told(lambda _: True)

    def _told(self, is_wanted: Callable[[RoundName], bool]) -> LaterTimes | None:
        name = next((name for name in reversed(self._rounds) if is_wanted(name)), None)
        if name is None or self._rounds[name].is_told:
            return None
        self._rounds[name].is_told = True
        return self._rounds[name].told(name)

    def _of(self, name: RoundName) -> _Later:
        if name not in self._rounds:
            self._rounds[name] = _Later()
            while len(self._rounds) > KEPT_ROUNDS:
                self._rounds.popitem(last=False)
        return self._rounds[name]

    def _end_fetches(self, name: RoundName) -> None:
        fetched, self._fetched = self._fetched, _Fetched()
        if fetched.size_bytes:
            self._of(name).fetched = fetched


def _known(seconds: float | None) -> int | None:
    return None if seconds is None else milliseconds(seconds)
