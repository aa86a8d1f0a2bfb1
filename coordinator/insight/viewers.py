"""Viewers of a run, who are sent its news as server-sent events: serialised once for all of them.

Theory of operation. News are frames of bytes in one short ring that all viewers read; each knows only its place in it.
So memory does not grow with the viewers, and one that is so slow that its place has left the ring is sent `dropped`,
and ends. A frame holds the rounds that ended since the one before, and the run document if it has changed. The more
viewers wait, the longer a frame gathers news, and they are woken some after the others: this takes a bounded part of a
processor, however many they are, and never holds up a round.

An event's id names lineage, version and the next round: with it a viewer that comes back is sent the rounds that it has
missed. Where that is impossible, it is sent `reset`, after which it reads the whole history again.
"""

import asyncio
import re
from collections import OrderedDict, deque
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from epochal.coordinator.insight.history_views import HistoryViews
from epochal.coordinator.insight.projection import Projection
from epochal.coordinator.insight.read_side import ReadSide
from epochal.coordinator.insight.wait_facts import situation_of
from epochal.coordinator.run.long_polls import Pool, Reader, ReaderKind, WaitingPlaces
from epochal.coordinator.run.publication import Published
from epochal.runtime.http.parameters import MAX_SHOWN_CHARS
from epochal.state.errors import Refused
from epochal.state.refusals import Refusal
from epochal.state.shown.explanation import RunNow
from epochal.state.shown.waiting_words import waiting_words
from epochal.state.wire import canonical_json

POOLS: Mapping[ReaderKind, Pool] = {
    ReaderKind.MEMBER: Pool(total=2_000, each=16),
    ReaderKind.OPERATOR: Pool(total=64, each=64),
    ReaderKind.STRANGER: Pool(total=2_000, each=1_024),
}
"""Maximum numbers of viewers, of all of a kind together and of one. Behind a stranger's address may be a proxy."""
MAX_FRAMES = 256
MAX_FRAME_BYTES = 4 * 1024 * 1024
"""Maximum size of all frames together, unless the newest alone is larger."""
MAX_MISSED_ROUNDS = 1_024
"""Maximum number of rounds in one frame, or for a viewer that comes back; with more it reads the history."""
MAX_OPENINGS = 16
"""Maximum number of first frames that are kept for others who come back from the same place."""
HEARTBEAT_S = 15.0
"""Time without news after which a comment is sent, so that proxies keep the connection."""
MAX_STREAM_S = 3600.0
"""Time after which a stream ends, and its viewer comes back: with a token that is still valid."""
RECONNECT_MS = 2000
"""Time after which a viewer is asked to come back."""
VIEWERS_ASKING_PER_S = 40
"""Number of viewers that may ask for the same again in a second, if all keep to the interval that they are given."""
MIN_ASK_AGAIN_S = 1

_ID = re.compile(r"([0-9a-f]{1,64})-([0-9]{1,18})-([0-9]{1,18})")
HEARTBEAT = b": alive\n\n"


@dataclass(frozen=True, slots=True)
class EventPlace:
    """The last event that a viewer has seen: lineage and version of the run document, and the next round's number."""

    lineage: str
    version: int
    next: int

    def __str__(self) -> str:
        return f"{self.lineage}-{self.version}-{self.next}"


def parse_place(text: str) -> EventPlace:
    """Return the place that an event's id names. Raise `Refused` (`invalid-parameter`) if it is no such id."""
    found = _ID.fullmatch(text)
    if found is None:
        shown = text[:MAX_SHOWN_CHARS]
        raise Refused(
            Refusal.INVALID_PARAMETER, f"Last-Event-ID: {shown!r} is no id of an event; allowed: as it was sent"
        )
    return EventPlace(found[1], int(found[2]), int(found[3]))


class Viewers:
    """The viewers of one coordinator's run.

    Args:
        insight: of the coordinator.
        views: make the pages of its history.
    """

    def __init__(self, insight: ReadSide, views: HistoryViews) -> None:
        self._insight = insight
        self._views = views
        self._frames: deque[bytes] = deque()
        self._first = 0
        """Number of the oldest frame in the ring."""
        self._bytes = 0
        self._shown: Published | None = None
        self._gathering = asyncio.Lock()
        self._gathered_turn = 0
        """The last turn of waking viewers whose news are in a frame."""
        self._now_of: tuple[object, ...] | None = None
        self._now = b""
        """The last event `now`: the run's wait, and why it is not faster."""
        self._next: int | None = None
        """Number of the first round that is in no frame yet; None if the history is to be read again."""
        self._openings: OrderedDict[tuple[EventPlace | None, EventPlace, bytes], bytes] = OrderedDict()
        self._places = WaitingPlaces()
        self.dropped_count = 0
        self.frame_count = 0
        """Number of frames that were made, each for all viewers."""

    @property
    def count(self) -> int:
        """Number of viewers."""
        return self._places.count

    @property
    def ask_again_s(self) -> int:
        """Seconds after which each viewer may ask for the same again."""
        return max(MIN_ASK_AGAIN_S, -(-self.count // VIEWERS_ASKING_PER_S))

    @contextmanager
    def place(self, reader: Reader) -> Iterator[None]:
        """Hold a place for a viewer. Raise `Refused` (`overloaded`) if those of its kind have none left."""
        pool, had_viewers = POOLS[reader.kind], self.count > 0
        if not self._places.take(reader, pool):
            raise Refused(
                Refusal.OVERLOADED,
                f"too many {reader.kind.value}s follow the run; allowed: {pool.total}, and {pool.each} of one",
                retry_after_s=HEARTBEAT_S,
            )
        try:
            if not had_viewers:  # nobody has followed: nothing is old news
                self._forget()
            yield
        finally:
            self._places.give_back(reader)

    def _forget(self) -> None:
        self._first += len(self._frames)
        self._frames.clear()
        self._bytes, self._shown, self._next, self._now_of, self._now = 0, None, None, None, b""
        self._collect()
        self._first += len(self._frames)
        self._frames.clear()
        self._bytes = 0

    async def ready(self) -> None:
        """Return once the history was read. Raise `Refused` if it is not within `READ_WAIT_S`."""
        await self._insight.ready()
        _ = self._insight.projection  # or it says why not

    async def frames(self, seen: EventPlace | None) -> AsyncGenerator[bytes, None]:
        """Yield what a viewer is sent, until its stream is to end: a comment at least each `HEARTBEAT_S`.

        Args:
            seen: the last event that it has seen, if it comes back.
        """
        loop = asyncio.get_running_loop()
        ends_s = loop.time() + MAX_STREAM_S
        await self._explain()
        self._collect()
        place = self._first + len(self._frames)
        yield self._opening(seen)
        news = self._insight.readers.viewer_news
        while loop.time() < ends_s and self._insight.health.failure is None:
            if place == self._first + len(self._frames):
                try:
                    async with asyncio.timeout(HEARTBEAT_S):
                        await news.wait()
                except TimeoutError:
                    yield HEARTBEAT
            if news.is_closed:
                return
            await self._gather(news.turn_count)
            if place < self._first:
                self.dropped_count += 1
                yield _event("dropped", canonical_json({"detail": "you read too slowly for the run; come back"}))
                return
            told = [self._frames[number - self._first] for number in range(place, self._first + len(self._frames))]
            if told:
                place += len(told)
                yield b"".join(told)

    async def _gather(self, turn: int) -> None:
        """Return once the news of a turn are in a frame: the first viewer that the turn wakes makes the frame."""
        async with self._gathering:
            if turn > self._gathered_turn:
                self._gathered_turn = turn
                await self._explain()
                self._collect()

    async def _explain(self) -> None:
        """Bring the explanation up to date for the next frame."""
        history = self._insight.known
        if history is not None:
            await self._insight.history.explanations.refresh(history, self._insight.run)

    def _said_now(self) -> bytes:
        """Return the event `now`: the run's wait, and why it is not faster."""
        insight, clock = self._insight, self._insight.run.clock
        now = situation_of(insight.run, insight.health.problem)
        began = "" if clock.reason == now.hold else clock.reason
        why = insight.history.explanations.sentence(insight.known, insight.run, insight.health.problem)
        return canonical_json(RunNow(waiting_words(now), clock.phase_ends_s, began, why))

    def _collect(self) -> None:
        """Add a frame with what has changed since the last one, if anything has."""
        published, history, parts = self._insight.readers.published, self._insight.known, list[bytes]()
        lineage = published.document.lineage
        if self._shown is not None and self._shown.document.lineage != lineage:
            parts.append(_reset("the run went back, and goes on differently"))
            self._next = None
        if history is not None and self._next is None:
            self._next = history.next
        place = EventPlace(lineage, published.version, self._next or 0)
        if history is not None and self._next is not None and history.next > self._next:
            place = EventPlace(lineage, published.version, history.next)
            parts.append(self._rounds_since(history, self._next, place))
            self._next = history.next
        if self._shown is None or self._shown.etag != published.etag:
            parts.append(_event("document", published.body, place))
        self._shown = published
        of = self._insight.run, self._insight.history.explanations.latest, self._insight.health.problem
        if self._now_of is None or any(one is not other for one, other in zip(of, self._now_of, strict=True)):
            self._now_of = of
            said = self._said_now()
            if said != self._now:
                self._now = said
                parts.append(_event("now", said, place))
        if parts:
            self._add(b"".join(parts))

    def _add(self, frame: bytes) -> None:
        self.frame_count += 1
        self._frames.append(frame)
        self._bytes += len(frame)
        while len(self._frames) > 1 and (len(self._frames) > MAX_FRAMES or self._bytes > MAX_FRAME_BYTES):
            self._bytes -= len(self._frames.popleft())
            self._first += 1

    def _rounds_since(self, history: Projection, first: int, place: EventPlace) -> bytes:
        rows = history.between(first, history.next - 1)
        if len(rows) > MAX_MISSED_ROUNDS or (rows and rows[0].number != first):
            return _reset("you have missed more rounds than are sent here", place)
        return _event("rounds", canonical_json(self._views.page_of(rows)), place)

    def _opening(self, seen: EventPlace | None) -> bytes:
        """Return the first frame of a viewer's stream."""
        assert self._shown is not None, "something was collected"
        place = EventPlace(self._shown.document.lineage, self._shown.version, self._next or 0)
        name = seen, place, self._now
        if name not in self._openings:
            self._openings[name] = self._made_opening(seen, place, self._shown)
            while len(self._openings) > MAX_OPENINGS:
                self._openings.popitem(last=False)
        return self._openings[name]

    def _made_opening(self, seen: EventPlace | None, place: EventPlace, shown: Published) -> bytes:
        parts, history = [b"retry: %d\n\n" % RECONNECT_MS], self._insight.known
        if seen is not None and (seen.lineage != place.lineage or seen.next > place.next):
            parts.append(_reset("the run went back, and goes on differently", place))
        elif seen is not None and history is not None and seen.next < place.next:
            parts.append(self._rounds_since(history, seen.next, place))
        if seen is None or (seen.lineage, seen.version) != (place.lineage, place.version):
            parts.append(_event("document", shown.body, place))
        parts.append(_event("now", self._now, place))
        return b"".join(parts)


def _event(kind: str, data: bytes, place: EventPlace | None = None) -> bytes:
    """Return an event. `data` is JSON on one line, as canonical JSON is."""
    name = b"" if place is None else b"id: %b\n" % str(place).encode()
    return b"event: %b\n%bdata: %b\n\n" % (kind.encode(), name, data)


def _reset(detail: str, place: EventPlace | None = None) -> bytes:
    return _event("reset", canonical_json({"detail": f"{detail}; read the history again"}), place)
