"""Explains a run's speed: where the time of its last rounds went, by client and part, and one sentence on it.

The rule kept here: time is attributed along the critical path (`state/shown/critical_path.py`), never by sums over
clients, of which most wait for the slowest. What clients do not say is named as unknown, never guessed.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Annotated

from pydantic import Field

from epochal.state.client_names import shown_client
from epochal.state.documents import Count
from epochal.state.messages.history_rows import ClientFigures, RoundDetail, Seconds
from epochal.state.shown.critical_path import FAILED_FATES, PartKind, Span, path_of
from epochal.state.wire_document import WireDocument

MAX_EXPLAINED_ROUNDS = 16
"""Number of the last rounds of which the time is explained."""
MAX_EXPLAINED_CLIENTS = 64
"""Maximum number of clients whose medians are shown, the slowest."""
MAX_PARTS = 16
"""Maximum number of parts that are shown, the largest."""
NAMED_SHARE = 0.6
"""A client is named for a kind of part if so much of it is that client's."""
SECOND_SHARE = 0.2
"""Share of the time from which a second kind of part is mentioned."""
SLOWER = 1.5
"""A client trains slowly whose time is so many times the others' median."""
LOST_SHARE = 0.1
"""Share of lost batches from which they are mentioned."""
MAX_SAID_CHARS = 120
"""Maximum length of a reason that is quoted."""
SHOWN_ID_CHARS = 12
BYTES_PER_MB = 1_000_000
TIMES = (
    "document_s", "replica_s", "data_s", "train_s", "encode_s", "upload_s", "check_s", "attest_s", "download_s",
    "merge_s", "idle_s", "delivered_s",
)  # fmt: skip
"""The times of a client of which medians are shown."""
BEFORE_DELIVERY = frozenset({"document_s", "replica_s", "data_s", "train_s", "encode_s", "upload_s", "check_s"})
Share = Annotated[float, Field(ge=0, le=1)]


@dataclass(frozen=True, slots=True)
class TimePart(WireDocument):
    """A part of the time of the last rounds.

    Attributes:
        kind: what the time went into.
        client_id: whose it is; None for everybody's.
        name: that this client chose; "" without one. It is text from another machine.
        seconds: in all rounds together.
        share: of the whole time, from 0 to 1.
        bytes_per_s: rate of what was sent or fetched in it; None if nothing was, or if that is not known.
    """

    kind: PartKind
    client_id: str | None
    name: str
    seconds: Seconds
    share: Share
    bytes_per_s: float | None


@dataclass(frozen=True, slots=True)
class ClientMedians(WireDocument):
    """Medians of one client's times over the last rounds, in seconds; None for what it does not say or never did.

    Attributes:
        rounds: number of those rounds in which it had work.
        missed: number of those in which nothing usable came of it.
        uploaded_bytes_per_s, downloaded_bytes_per_s: medians of its rates.
    """

    client_id: str
    name: str
    rounds: Count
    missed: Count
    document_s: float | None
    replica_s: float | None
    data_s: float | None
    train_s: float | None
    encode_s: float | None
    upload_s: float | None
    check_s: float | None
    attest_s: float | None
    download_s: float | None
    merge_s: float | None
    idle_s: float | None
    delivered_s: float | None
    uploaded_bytes_per_s: float | None
    downloaded_bytes_per_s: float | None


@dataclass(frozen=True, slots=True)
class SpeedExplanation(WireDocument):
    """The explanation of a run's speed (`GET …/history/explanation`).

    Attributes:
        sentence: says it in words; it may quote names and reasons from other machines.
        first, next: numbers of the first round that was inspected, and of the round that ends next.
        rounds: number of those rounds.
        round_s: median time of a round; None before the first.
        wall_s: time from the first one's start to the last one's end.
        parts: of that time, the largest first.
        clients: the slowest clients, first those with most of the critical path.
    """

    sentence: str
    first: Count
    next: Count
    rounds: Count
    round_s: float | None
    wall_s: Seconds
    parts: tuple[TimePart, ...]
    clients: tuple[ClientMedians, ...]


@dataclass(frozen=True, slots=True)
class RunNow(WireDocument):
    """The present wait of a run, and why it is not faster (the event `now`).

    Attributes:
        waiting: says what it waits for, as "waits for …".
        ends_s: when it continues without, on the coordinator's clock; None if it waits without end.
        began: says why its phase began; "" if `waiting` says that too.
        explanation: says why it is not faster (`SpeedExplanation.sentence`).
    """

    waiting: str
    ends_s: float | None
    began: str
    explanation: str


NOTHING_YET = "No round has ended yet, so nothing is known of where its time goes."
NO_TIME = "The last rounds took no time that a clock here could measure."


def explained(details: Sequence[RoundDetail], names: Mapping[str, str]) -> SpeedExplanation:
    """Return why a run is not faster.

    Args:
        details: its last rounds, neighbours, the oldest first; the last `MAX_EXPLAINED_ROUNDS` of them count.
        names: that clients chose, by client; of those that have left, the rounds themselves have the names.
    """
    details = settled_rounds(details)
    names = {one.client_id: one.name for detail in details for one in detail.clients if one.name} | dict(names)
    if not details:
        return SpeedExplanation(NOTHING_YET, 0, 0, 0, None, 0.0, (), ())
    spans = path_of(details)
    wall_s = sum(span.seconds for span in spans)
    parts = _parts(spans, wall_s, names)
    clients = _medians(details, spans, names)
    times = [detail.figures.train_s + detail.figures.witness_s for detail in details]
    return SpeedExplanation(
        sentence=_sentence(details, parts, clients),
        first=details[0].figures.number,
        next=details[-1].figures.next_number,
        rounds=len(details),
        round_s=_rounded(median(times)),
        wall_s=_rounded(wall_s),
        parts=parts[:MAX_PARTS],
        clients=clients,
    )


def settled_rounds(details: Sequence[RoundDetail]) -> list[RoundDetail]:
    """Return the last rounds to explain: without the newest while it is incompletely reported and others are not.

    Clients report an upload with their next result.
    """
    found = list(details)[-MAX_EXPLAINED_ROUNDS - 1 :]
    if len(found) > 1 and any(client.encode_s is not None and client.upload_s is None for client in found[-1].clients):
        found.pop()
    return found[-MAX_EXPLAINED_ROUNDS:]


def _parts(spans: Sequence[Span], wall_s: float, names: Mapping[str, str]) -> tuple[TimePart, ...]:
    seconds: dict[tuple[PartKind, str | None], float] = defaultdict(float)
    sizes: dict[tuple[PartKind, str | None], list[int | None]] = defaultdict(list)
    for span in spans:
        seconds[span.kind, span.client_id] += span.seconds
        sizes[span.kind, span.client_id].append(span.size_bytes)
    found = []
    for (kind, client_id), total_s in sorted(
        seconds.items(), key=lambda item: (-item[1], item[0][0], item[0][1] or "")
    ):
        moved = [size for size in sizes[kind, client_id] if size is not None]
        is_known = bool(moved) and len(moved) == len(sizes[kind, client_id]) and sum(moved) > 0
        rate = round(sum(moved) / total_s, 1) if is_known and total_s > 0 else None
        name = "" if client_id is None else names.get(client_id, "")
        share = min(1.0, total_s / wall_s) if wall_s > 0 else 0.0
        found.append(TimePart(kind, client_id, name, _rounded(total_s), round(share, 4), rate))
    return tuple(found)


def _medians(
    details: Sequence[RoundDetail], spans: Sequence[Span], names: Mapping[str, str]
) -> tuple[ClientMedians, ...]:
    critical: dict[str | None, float] = defaultdict(float)
    for span in spans:
        critical[span.client_id] += span.seconds
    rows: dict[str, list[ClientFigures]] = defaultdict(list)
    for detail in details:
        for client in detail.clients:
            if client.batches:
                rows[client.client_id].append(client)
    slowest = sorted(rows, key=lambda client_id: (-critical[client_id], -_late(rows[client_id]), client_id))
    return tuple(
        ClientMedians(
            client_id=client_id,
            name=names.get(client_id, ""),
            rounds=len(rows[client_id]),
            missed=sum(row.fate in FAILED_FATES for row in rows[client_id]),
            uploaded_bytes_per_s=_rate([(row.uploaded_bytes, row.upload_s) for row in rows[client_id]]),
            downloaded_bytes_per_s=_rate([(row.downloaded_bytes, row.download_s) for row in rows[client_id]]),
            **{time: _median([_believed(row, time) for row in rows[client_id]]) for time in TIMES},
        )
        for client_id in slowest[:MAX_EXPLAINED_CLIENTS]
    )


def _believed(row: ClientFigures, time: str) -> float | None:
    """Return one of a client's times, bounded by the time until its result came."""
    value: float | None = getattr(row, time)
    if value is None or row.delivered_s is None or time not in BEFORE_DELIVERY:
        return value
    return min(value, row.delivered_s)


def _late(rows: Sequence[ClientFigures]) -> float:
    return max((row.delivered_s for row in rows if row.delivered_s is not None), default=0.0)


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return _rounded(median(known)) if known else None


def _rate(moved: Sequence[tuple[int | None, float | None]]) -> float | None:
    return _median([size / seconds for size, seconds in moved if size and seconds])


@dataclass(frozen=True, slots=True)
class _Cause:
    """The use of a part of the time, in words.

    Attributes:
        share: of the whole time, from 0 to 1.
        words: that follow the share.
        is_of_time: whether they have the time as their subject ("is …"), and do not say what happens in it.
    """

    share: float
    words: str
    is_of_time: bool

    def first(self) -> str:
        """Return the beginning of a sentence."""
        return f"{_percent(self.share)} of the time {self.words}"

    def second(self) -> str:
        """Return what follows it."""
        return f"; {'' if self.is_of_time else 'in '}another {_percent(self.share)} {self.words}"


_OF_TIME = frozenset[PartKind]({"train", "upload", "check", "document", "empty", "between", "unknown"})
"""The kinds of parts whose words have the time as their subject."""


def _sentence(details: Sequence[RoundDetail], parts: Sequence[TimePart], clients: Sequence[ClientMedians]) -> str:
    if not parts:
        return NO_TIME
    kinds: dict[PartKind, float] = defaultdict(float)
    for part in parts:
        kinds[part.kind] += part.share
    ordered = sorted(kinds, key=lambda kind: (-kinds[kind], kind))
    first = ordered[0]
    said = _cause(first, kinds[first], parts, details, clients).first()
    if len(ordered) > 1 and kinds[second := ordered[1]] >= SECOND_SHARE:
        if second == "train":
            said += _Cause(kinds[second], "is training", is_of_time=True).second()
        else:
            said += _cause(second, kinds[second], parts, details, clients).second()
    lost = sum(detail.figures.lost_batches for detail in details)
    batches = sum(detail.figures.batches for detail in details)
    if first != "empty" and lost >= LOST_SHARE * max(1, batches):
        said += f"; {_percent(lost / batches)} of the batches were lost and are trained again"
    return said + "."


def _cause(
    kind: PartKind,
    whole: float,
    parts: Sequence[TimePart],
    details: Sequence[RoundDetail],
    clients: Sequence[ClientMedians],
) -> _Cause:
    """Return a cause with its share: a client's own where the words blame it, else the kind's."""
    one = _of_one_client(kind, parts)
    slow = None if one is None or kind != "train" else _slow_training(one, clients)
    if one is not None and slow is not None:
        return _Cause(one.share, slow, is_of_time=True)
    share = whole if one is None or kind in ("train", "attest") else one.share
    return _Cause(share, _said(kind, one, details), kind in _OF_TIME)


def _of_one_client(kind: PartKind, parts: Sequence[TimePart]) -> TimePart | None:
    """Return the part of the client that has most of a kind's time; None if none does."""
    largest, *others = (part for part in parts if part.kind == kind)
    most = NAMED_SHARE * sum(part.seconds for part in (largest, *others))
    return largest if largest.client_id is not None and largest.seconds >= most else None


def _said(kind: PartKind, one: TimePart | None, details: Sequence[RoundDetail]) -> str:
    """Return what the time of a kind is, in words that follow "61 % of the time"."""
    whose = "the slowest client of each round" if one is None else _client(one)
    rate = "" if one is None else _speed(one.bytes_per_s)
    match kind:
        case "train":
            return "is training, as it should be: only more or faster clients make the run faster"
        case "upload":
            return f"is the upload of {whose}{rate}"
        case "download":
            return f"{whose} fetches the update of the round before{rate}"
        case "data":
            return f"{whose} waits for data ({_cause_of_waits(None if one is None else one.client_id, details)})"
        case "merge":
            return f"{whose} applies the update of the round before"
        case "encode":
            return f"{whose} encodes its result"
        case "check":
            return "is the coordinator's check of results"
        case "replica":
            return f"{whose} gets ready to train: it opens its trainer, or catches up with the run"
        case "document":
            return f"passes until {whose} has the run document: its connection to the coordinator"
        case "attest":
            return "results are in and witnesses attest them" + ("" if one is None else f", last {whose}")
        case "missing":
            missing = "clients" if one is None else whose
            return f"the others wait in vain for {missing}, of which nothing usable comes{_why_missing(details)}"
        case "empty":
            reason = next(detail.reason for detail in reversed(details) if not detail.figures.applied_rounds)
            return f"goes into rounds of which nothing is applied, lastly because: {_quoted(reason)}"
        case "between":
            return "passes between epochs (Cooldown, WaitingForMembers, Warmup)"
        case "outage":
            return "the coordinator is away, or the run is stopped"
        case "unknown":
            return f"is that of {whose}, which does not say what it does"


def _slow_training(client: TimePart, clients: Sequence[ClientMedians]) -> str | None:
    """Return what training is if it is slow because of this client; None if it is not."""
    own = next((row.train_s for row in clients if row.client_id == client.client_id), None)
    others = [row.train_s for row in clients if row.client_id != client.client_id and row.train_s is not None]
    if own is None or not others or own <= SLOWER * median(others):
        return None
    return (
        f"is the training of {_client(client)}: {_duration(own)} a round, where the others' median is "
        f"{_duration(median(others))}"
    )


def _cause_of_waits(client_id: str | None, details: Sequence[RoundDetail]) -> str:
    rows = [row for detail in details for row in detail.clients if client_id in (None, row.client_id)]
    totals = {
        cause: sum(getattr(row, f"{cause}_s") or 0.0 for row in rows) for cause in ("fetching", "decoding", "packing")
    }
    return max(totals, key=lambda cause: totals[cause])


def _why_missing(details: Sequence[RoundDetail]) -> str:
    for detail in reversed(details):
        for client in detail.clients:
            if client.batches and client.fate in FAILED_FATES and client.detail:
                return f", lastly because: {_quoted(client.detail)}"
    return ""


def _client(part: TimePart) -> str:
    assert part.client_id is not None
    return f"client {shown_member(part.client_id, part.name)}"


def shown_member(client_id: str, name: str) -> str:
    """Return a client as sentences name it: the beginning of its id, and its name in quotes if it has one."""
    return shown_client(client_id[:SHOWN_ID_CHARS], name)


def _quoted(text: str) -> str:
    """Return a reason from another machine, shortened, without characters that are not seen."""
    shown = "".join(char if char.isprintable() else "�" for char in text[:MAX_SAID_CHARS])
    return shown + ("…" if len(text) > MAX_SAID_CHARS else "")


def _speed(bytes_per_s: float | None) -> str:
    if bytes_per_s is None:
        return ""
    if bytes_per_s >= BYTES_PER_MB / 10:
        return f" at {bytes_per_s / BYTES_PER_MB:.1f} MB/s"
    return f" at {bytes_per_s / 1000:.1f} kB/s"


def _percent(share: float) -> str:
    return f"{100 * min(1.0, share):.0f} %"


def _duration(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


def _rounded(seconds: float) -> float:
    return round(seconds, 4)
