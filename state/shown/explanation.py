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
from epochal.state.phase_names import RunState
from epochal.state.shown.critical_path import FAILED_FATES, PartKind, Pause, Span, path_of
from epochal.state.shown.shorter_rounds import Cause, saved_s
from epochal.state.wire_document import WireDocument

MAX_EXPLAINED_ROUNDS = 16
"""Number of the last rounds of which the time is explained."""
MAX_EXPLAINED_CLIENTS = 64
"""Maximum number of clients whose medians are shown, the slowest."""
MAX_PARTS = 16
"""Maximum number of parts that are shown, the largest."""
NAMED_SHARE = 0.6
"""A client is named for a kind of part if so much of it is that client's."""
NAMED_CAUSE_SHARE = 0.2
"""A cause is named if rounds would be shorter by this share without it."""
GOOD_SHARE = 0.9
"""Share of the time from which training is called all that can be wished."""
MAX_LISTED_KINDS = 3
"""Maximum number of other parts that are listed where no single cause is named."""
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
_NOUNS: Mapping[PartKind, str] = {
    "document": "waiting for the run document", "replica": "getting ready", "download": "download", "data": "data",
    "merge": "outer step", "encode": "encoding", "upload": "upload", "check": "check", "attest": "attestation",
    "missing": "waiting in vain", "empty": "rounds without a result", "between": "between epochs", "unknown": "unknown",
}  # fmt: skip
"""Parts beside training, as sentences list them."""


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
class SpeedCause(WireDocument):
    """The cause without which the last rounds would have been the shortest.

    Attributes:
        kind: of the part of the time; `train` is what one client needs beyond the others' median.
        client_id: whose it is; None for that of all clients together.
        share: of the time, by which the rounds would be shorter without it, from 0 to 1.
    """

    kind: PartKind
    client_id: str | None
    share: Share


@dataclass(frozen=True, slots=True)
class SpeedExplanation(WireDocument):
    """The explanation of a run's speed (`GET …/history/explanation`).

    Attributes:
        sentence: says it in words; it may quote names and reasons from other machines.
        first, next: numbers of the first round that was inspected, and of the round that ends next.
        rounds: number of those rounds.
        round_s: median time of a round; None before the first.
        wall_s: time from the first one's start to the last one's end, without operators' pauses and the coordinator's
            absence.
        parts: of that time, the largest first.
        clients: the slowest clients, first those with most of the critical path.
        cause: without which the rounds would be the shortest; None before the first, or if nothing is known of them.
    """

    sentence: str
    first: Count
    next: Count
    rounds: Count
    round_s: float | None
    wall_s: Seconds
    parts: tuple[TimePart, ...]
    clients: tuple[ClientMedians, ...]
    cause: SpeedCause | None = None


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


def explained(
    details: Sequence[RoundDetail], names: Mapping[str, str], pauses: Sequence[Pause] = ()
) -> SpeedExplanation:
    """Return why a run is not faster.

    Args:
        details: its last rounds, neighbours, the oldest first; the last `MAX_EXPLAINED_ROUNDS` of them count.
        names: that clients chose, by client; of those that have left, the rounds themselves have the names.
        pauses: of its operators, which are no part of the time.
    """
    details = settled_rounds(details)
    names = {one.client_id: one.name for detail in details for one in detail.clients if one.name} | dict(names)
    if not details:
        return SpeedExplanation(NOTHING_YET, 0, 0, 0, None, 0.0, (), ())
    spans = [span for span in path_of(details, pauses) if span.kind not in ("pause", "outage")]
    wall_s = sum(span.seconds for span in spans)
    parts = _parts(spans, wall_s, names)
    clients = _medians(details, spans, names)
    saved = saved_s(details, _usual_train_s(clients))
    between_s = sum(span.seconds for span in spans if span.kind == "between")
    cause = _cause_of({**saved, ("between", None): between_s}, wall_s)
    times = [detail.figures.train_s + detail.figures.witness_s for detail in details]
    return SpeedExplanation(
        sentence=_sentence(details, parts, cause, clients),
        first=details[0].figures.number,
        next=details[-1].figures.next_number,
        rounds=len(details),
        round_s=_rounded(median(times)),
        wall_s=_rounded(wall_s),
        parts=parts[:MAX_PARTS],
        clients=clients,
        cause=cause,
    )


def said_of(found: SpeedExplanation, phase: RunState, *, is_held: bool, took_s: float) -> str:
    """Return what is said of a run's speed now: while no round can begin, nothing; of a finished run, its time.

    Args:
        found: the explanation of its last rounds.
        phase: of the run.
        is_held: whether it waits for room on a disk, or for members that rest.
        took_s: from its first round's start to its last one's end.
    """
    if is_held or phase in (RunState.PAUSED, RunState.WAITING_FOR_MEMBERS) or not found.rounds:
        return ""
    if phase is not RunState.FINISHED:
        return found.sentence
    trains = sum(part.share for part in found.parts if part.kind == "train")
    took = f"From its first round to its last it took {_long_duration(took_s)}"
    return f"{took}; {_percent(trains)} of the last rounds was training."


def _long_duration(seconds: float) -> str:
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, hours = whole // 60 % 60, whole // 3600
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {whole % 60} s"


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


def _sentence(
    details: Sequence[RoundDetail],
    parts: Sequence[TimePart],
    cause: SpeedCause | None,
    clients: Sequence[ClientMedians],
) -> str:
    if not parts:
        return NO_TIME
    kinds: dict[PartKind, float] = defaultdict(float)
    for part in parts:
        kinds[part.kind] += part.share
    trains = f"training takes {_percent(kinds['train'])} of the time"
    lost = sum(detail.figures.lost_batches for detail in details)
    batches = sum(detail.figures.batches for detail in details)
    loses = lost >= LOST_SHARE * max(1, batches)
    if cause is not None and cause.share >= NAMED_CAUSE_SHARE:
        said = _cause(cause, parts, details, clients) + ("" if cause.kind == "train" else f"; {trains}")
    elif kinds["train"] >= GOOD_SHARE:
        said = f"{_capital(trains)}: only more or faster clients make the run faster"
    else:
        others = sorted((kind for kind in kinds if kind != "train"), key=lambda kind: (-kinds[kind], kind))
        listed = ", ".join(f"{_NOUNS[kind]} {_percent(kinds[kind])}" for kind in others[:MAX_LISTED_KINDS])
        said = f"{_capital(trains)}, {listed}: {_MORE_IN_TIME if loses else _MORE_STEPS}"
    if (cause is None or cause.kind != "empty") and loses:
        said += f"; {_percent(lost / batches)} of the batches were lost and are trained again"
    return said + "."


_MORE_STEPS = "with more local_steps it takes a larger part"
_MORE_IN_TIME = "with a longer max_round_train_time, or fewer batches in a round, less is lost"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _cause_of(saved: Mapping[Cause, float], wall_s: float) -> SpeedCause | None:
    """Return the cause without which rounds would be shortest: one client's where most of it is that client's."""
    if wall_s <= 0:
        return None
    found = [cause for cause, seconds in saved.items() if seconds > 0]
    shared = [cause for cause in found if cause[1] is None or cause[0] == "train"]
    if not shared:
        return None
    kind, client_id = min(shared, key=lambda cause: (-saved[cause], cause[0], cause[1] or ""))
    if client_id is None and kind != "check":
        single = [cause for cause in found if cause[0] == kind and cause[1] is not None]
        own = min(single, key=lambda cause: (-saved[cause], cause[1] or ""), default=None)
        if own is not None and saved[own] >= NAMED_SHARE * saved[kind, None]:
            client_id = own[1]
    return SpeedCause(kind, client_id, round(min(1.0, saved[kind, client_id] / wall_s), 4))


def _cause(
    cause: SpeedCause, parts: Sequence[TimePart], details: Sequence[RoundDetail], clients: Sequence[ClientMedians]
) -> str:
    """Return what makes rounds long, and by how much they would be shorter without it."""
    share, one = _percent(cause.share), None
    if cause.client_id is not None:
        one = next(part for part in parts if (part.kind, part.client_id) == (cause.kind, cause.client_id))
    whose, rate = ("clients", "") if one is None else (_client(one), _speed(one.bytes_per_s))
    match cause.kind:
        case "train":
            assert one is not None
            return f"Rounds would be {share} shorter if {_slow_training(one, clients)}"
        case "upload":
            what = f"the upload of {whose}{rate} (a smaller codec and more local_steps make it less)"
        case "download":
            what = f"the download of updates by {whose}{rate} (a smaller codec and more local_steps make it less)"
        case "data":
            what = f"waits of {whose} for data ({_cause_of_waits(cause.client_id, details)})"
        case "merge":
            what = f"the outer step of {whose}"
        case "encode":
            what = f"the encoding of results by {whose}"
        case "check":
            what = "the coordinator's check of results"
        case "replica":
            what = f"getting {whose} ready to train (opening a trainer, or catching up)"
        case "document":
            what = f"the time that the run document takes to {whose} (the way from the coordinator)"
        case "attest":
            last = _last_witness(parts)
            what = "attestation" + ("" if last is None else f", of which most is waiting for {_client(last)}")
        case "missing":
            missing = [part for part in parts if part.kind == "missing"]
            named = _client(missing[0]) if len(missing) == 1 and missing[0].client_id is not None else "clients"
            why = _why_missing(details)
            return f"{share} of the time the others wait in vain for {named}, of which nothing usable comes{why}"
        case "empty":
            reason = next(detail.reason for detail in reversed(details) if not detail.figures.applied_rounds)
            return (
                f"{share} of the time goes into rounds of which nothing is applied, lastly because: {_quoted(reason)}"
            )
        case "between":
            return f"{share} of the time passes between epochs, with a checkpoint, a warmup and the wait for members"
        case "unknown" | "outage" | "pause":
            what = f"the time of which {whose} reported nothing"
    return f"Rounds would be {share} shorter without {what}"


def _last_witness(parts: Sequence[TimePart]) -> TimePart | None:
    """Return the part of the witness that was last for most of the time; None if none was."""
    largest, *others = (part for part in parts if part.kind == "attest")
    most = NAMED_SHARE * sum(part.seconds for part in (largest, *others))
    return largest if largest.client_id is not None and largest.seconds >= most else None


def _slow_training(client: TimePart, clients: Sequence[ClientMedians]) -> str:
    own = next(row.train_s for row in clients if row.client_id == client.client_id)
    assert own is not None
    assert client.client_id is not None
    usual = _usual_train_s(clients)[client.client_id]
    return (
        f"{_client(client)} trained as fast as the others: {_duration(own)} a round, their median is {_duration(usual)}"
    )


def _usual_train_s(clients: Sequence[ClientMedians]) -> dict[str, float]:
    """Return the others' median time of training for each client that takes much longer."""
    known = {row.client_id: row.train_s for row in clients if row.train_s is not None}
    found = {}
    for client_id, own in known.items():
        others = [train_s for other, train_s in known.items() if other != client_id]
        if others and own > SLOWER * median(others):
            found[client_id] = median(others)
    return found


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
