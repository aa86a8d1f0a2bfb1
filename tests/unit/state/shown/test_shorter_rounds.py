"""The cause of slow rounds, against the model of a round: without it, different rounds are that much shorter."""

from dataclasses import dataclass, replace
from statistics import median
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epochal.state.messages.history_rows import ClientFigures, RoundDetail
from epochal.state.round_model import ClientGroup, Costs, Delivery, Link, Links, RoundModel, RunSizes, Workers
from epochal.state.shown.critical_path import PartKind, Pause
from epochal.state.shown.explanation import NAMED_CAUSE_SHARE, SpeedCause, explained
from tests.support.data.round_details import detail_of, figures_of_client
from tests.support.drive.machine_driver import client

FAST = 1e15
"""Bytes or tokens a second of what takes no time."""
LIMITING_DATA_BYTES = 4_000_000
"""Bytes of a batch with which data may come too slowly for a client that trains faster."""
BEFORE_DATA = frozenset({"train", "replica", "download", "merge", "unknown"})
"""Causes without which such a client might wait for data instead, which its figures do not say."""
MODEL = RoundModel(
    RunSizes(20_000_000, 10_000_000, 10_000_000, 160_000_000, 1_000, 0),
    Links(),
    Costs(slow_start=False),
    "int4",
    "int4",
    through_store=False,
    client_count=4,
)
NAMED_KINDS = sorted(set(get_args(PartKind)) - {"pause", "outage"})
"""Kinds of causes: all parts of the time but those that are left out of it."""
UNREPORTED = ("replica_s", "encode_s", "data_s", "upload_s", "download_s", "merge_s", "idle_s", "document_s")


@dataclass(frozen=True, slots=True)
class Worked:
    """A client's part of a round.

    Attributes:
        opening_s, download_s, merge_s: what it did between the document and its replica.
        is_silent: whether it reports nothing of its times but its training.
    """

    number: int
    workers: Workers
    opening_s: float
    download_s: float
    merge_s: float
    is_silent: bool


@dataclass(frozen=True, slots=True)
class Played:
    """A round, with what passed before it.

    Attributes:
        clients: that delivered.
        failed: numbers of clients of which nothing usable came.
        waited_s: for how long these were waited for after the last result; 0 if they had reported a failure by then.
        attest_s: from the last result to the last attestation.
        is_applied: whether the round had an outcome.
        between_s, pause_s, outage_s: time between this round's epoch and the one before, of an operator's pause in it,
            and of the coordinator's absence before this round's end.
    """

    clients: tuple[Worked, ...]
    failed: tuple[int, ...]
    waited_s: float
    attest_s: float
    is_applied: bool
    between_s: float
    pause_s: float
    outage_s: float


@dataclass(frozen=True, slots=True)
class History:
    model: RoundModel
    rounds: tuple[Played, ...]


@st.composite
def histories(draw: st.DrawFn, large: str) -> History:
    """Return a history of different rounds; causes of the kind `large` tend to be large."""

    def drawn_s(kind: str, most_s: float = 0.6) -> float:
        return draw(st.floats(4.0, 30.0) if kind == large and not rarely() else st.floats(0.01, most_s))

    def rarely() -> bool:
        return draw(st.sampled_from([False] * 5 + [True]))

    groups = {}
    for number in range(1, draw(st.integers(2 if large == "train" else 1, 4)) + 1):
        link = Link(
            draw(st.sampled_from([1e6, 1e7] if large == "data" else [1e7, 1e8])),
            draw(st.sampled_from([2e5, 1e6, 5e6] if large == "upload" else [2e7, 1e8])),
        )
        speeds = [300.0] if rarely() or (large == "train" and number == 1) else [1_000.0, 3_000.0]
        groups[number] = ClientGroup(1, link, 0.002, draw(st.sampled_from(speeds)))
    costs = {"encode_s": 1e-9, "check_s": 1e-9}
    for name in costs:
        costs[name] = draw(st.floats(2e-7, 9e-7) if large == name[:-2] else st.floats(1e-9, 5e-8))
    data_bytes = LIMITING_DATA_BYTES if large == "data" else draw(st.sampled_from([0, 1_000, LIMITING_DATA_BYTES]))
    codecs = {"int4": replace(MODEL.costs.codecs["int4"], **costs)}
    sizes = replace(MODEL.sizes, data_bytes_per_batch=data_bytes)
    model = replace(MODEL, sizes=sizes, costs=replace(MODEL.costs, codecs=codecs))
    silent = draw(st.sets(st.sampled_from(sorted(groups)))) if large == "unknown" or rarely() else set()
    rounds = list[Played]()
    before = set[int]()
    """Those whose report on the round before says what they fetched and merged in this one."""
    for _ in range(draw(st.integers(1, 6))):
        present = (
            draw(st.sets(st.sampled_from(sorted(groups)), min_size=1)) if rarely() or draw(st.booleans()) else {*groups}
        )
        is_applied = not (draw(st.booleans()) if large == "empty" else rarely() and rarely())
        clients = list[Worked]()
        for number in sorted(present):
            heard_s = drawn_s("unknown" if number in silent else "document")
            opening_s, download_s, merge_s = drawn_s("replica"), drawn_s("download"), drawn_s("merge")
            if number not in before:
                download_s = merge_s = 0.0
            held_s = heard_s + opening_s + download_s + merge_s
            workers = Workers(groups[number], 1, draw(st.integers(1, 6)), held_s, heard_s)
            clients.append(Worked(number, workers, opening_s, download_s, merge_s, number in silent))
        failed = draw(st.sets(st.integers(5, 7))) if large == "missing" or rarely() else set()
        is_new = bool(rounds) and (large == "between" or draw(st.booleans()))
        rounds.append(
            Played(
                tuple(clients),
                tuple(sorted(failed)),
                drawn_s("missing", 3.0) if failed and not rarely() else 0.0,
                drawn_s("attest"),
                is_applied,
                drawn_s("between", 3.0) if is_new else 0.0,
                draw(st.sampled_from([0.0, 1.0, 300.0])) if is_new else 0.0,
                draw(st.sampled_from([0.0, 0.0, 30.0])),
            )
        )
        before = present - silent if is_applied else set()
    return History(model, tuple(rounds))


def took_s(model: RoundModel, played: Played) -> float:
    """Return the time of a round's clients, until the last result was checked and no other waited for."""
    found = model.deliveries([one.workers for one in played.clients])
    return max(took.verified_s for took in found) + played.waited_s


def figures(one: Worked, found: Delivery, played: Played, later: Worked | None) -> ClientFigures:
    """Return a client's part of a round: `later` is its part of the next one, for which it fetched this round's."""
    known: dict[str, Any] = {
        "batches": one.workers.batches,
        "document_s": one.workers.heard_s,
        "replica_s": one.workers.held_s - one.workers.heard_s,
        "download_s": None if later is None else later.download_s,
        "merge_s": None if later is None else later.merge_s,
        "data_s": found.data_s,
        "train_s": trained_s(found),
        "encode_s": found.encoded_s - found.trained_s,
        "upload_s": found.sent_s - found.committed_s + played.outage_s,
        "committed_s": found.committed_s,
        "delivered_s": found.verified_s,
        "check_s": found.verified_s - found.sent_s,
        "attested_s": found.verified_s + played.attest_s,
    }
    return figures_of_client(one.number, **(known | dict.fromkeys(UNREPORTED) if one.is_silent else known))


def trained_s(found: Delivery) -> float:
    return found.trained_s - found.held_s - found.data_s


def details_of(history: History) -> tuple[list[RoundDetail], list[Pause]]:
    """Return the history as a coordinator keeps it, and when operators paused the run."""
    details, pauses, now_s, epoch = list[RoundDetail](), list[Pause](), 100.0, 0
    for number, played in enumerate(history.rounds):
        later = history.rounds[number + 1].clients if number + 1 < len(history.rounds) else ()
        parts = {one.number: one for one in later}
        found = history.model.deliveries([one.workers for one in played.clients])
        clients = [
            figures(one, took, played, parts.get(one.number)) for one, took in zip(played.clients, found, strict=True)
        ]
        nothing = {"fate": "missing", "delivered_s": None, "committed_s": None, "train_s": None, "attested_s": None}
        clients += [figures_of_client(failed, **(nothing | dict.fromkeys(UNREPORTED))) for failed in played.failed]
        if played.between_s:
            pauses += [(now_s + played.between_s / 2, now_s + played.between_s / 2 + played.pause_s)]
            epoch += 1
        now_s += played.between_s + played.pause_s + played.outage_s
        times = {
            "train_s": took_s(history.model, played),
            "witness_s": played.attest_s,
            "started_s": now_s,
            "away_s": played.outage_s,
        }
        details.append(
            detail_of(number, *clients, **times, epoch=epoch, applied_rounds=int(played.is_applied), reason="timer")
        )
        now_s = details[-1].figures.ended_s
    return details, pauses


def without(kind: PartKind | None, client_id: str | None, history: History) -> float:
    """Return how long the history's rounds take without a cause, in seconds, without pauses and outages."""
    usual_s = usual_train_s(history) if kind == "train" else {}
    total_s = 0.0
    for played in history.rounds:
        total_s += 0.0 if kind == "between" else played.between_s
        if not played.is_applied:
            total_s += 0.0 if kind == "empty" else took_s(history.model, played) + played.attest_s
            continue
        ends_s = []
        for one in played.clients:
            model, workers = history.model, one.workers
            if client_id in (None, client(one.number)) and not played.waited_s:
                model, workers = changed(kind, model, one, usual_s)
            ends_s.append(model.deliveries([workers])[0].verified_s)
        total_s += max(ends_s) + (0.0 if kind == "missing" else played.waited_s)
        total_s += 0.0 if kind == "attest" else played.attest_s
    return total_s


def changed(kind: str | None, model: RoundModel, one: Worked, usual_s: dict[int, float]) -> tuple[RoundModel, Workers]:
    """Return a round without a cause that a client has reported, or, of `unknown`, without those that it has not."""
    workers = one.workers
    match kind:
        case "upload":
            workers = replace(
                workers, group=replace(workers.group, link=replace(workers.group.link, up_bytes_per_s=FAST))
            )
        case "check":
            model = with_costs(model, check_s=0.0)
        case "train":
            found = model.trained(workers)
            speed = workers.batches * model.sizes.tokens_per_batch / min(trained_s(found), usual_s[one.number])
            workers = replace(workers, group=replace(workers.group, tokens_per_s=speed))
        case "unknown" if one.is_silent:
            model = replace(with_costs(model, encode_s=0.0), sizes=replace(model.sizes, data_bytes_per_batch=0))
            workers = replace(workers, heard_s=0.0, held_s=0.0)
        case _ if one.is_silent:
            pass
        case "data":
            model = replace(model, sizes=replace(model.sizes, data_bytes_per_batch=0))
        case "encode":
            model = with_costs(model, encode_s=0.0)
        case "document":
            workers = replace(workers, heard_s=0.0, held_s=workers.held_s - workers.heard_s)
        case "replica":
            workers = replace(workers, held_s=workers.held_s - one.opening_s)
        case "download":
            workers = replace(workers, held_s=workers.held_s - one.download_s)
        case "merge":
            workers = replace(workers, held_s=workers.held_s - one.merge_s)
    return model, workers


def with_costs(model: RoundModel, **costs: float) -> RoundModel:
    codecs = {"int4": replace(model.costs.codecs["int4"], **costs)}
    return replace(model, costs=replace(model.costs, codecs=codecs))


def usual_train_s(history: History) -> dict[int, float]:
    """Return the median of the other clients' median times of training, for each client."""
    times: dict[int, list[float]] = {}
    for played in history.rounds:
        for one in played.clients:
            times.setdefault(one.number, []).append(trained_s(history.model.trained(one.workers)))
    usual = {number: median(own) for number, own in times.items()}
    return {number: median([usual[other] for other in usual if other != number] or [usual[number]]) for number in usual}


def limits(history: History) -> bool:
    """Return whether data come so slowly that they may limit a client."""
    return history.model.sizes.data_bytes_per_batch == LIMITING_DATA_BYTES


def assert_holds(history: History, cause: SpeedCause, sentence: str, wall_s: float) -> None:
    before_s = without(None, None, history)
    assert wall_s == pytest.approx(before_s, rel=1e-3), "pauses and the coordinator's absence are no part of the time"
    shorter = 1 - without(cause.kind, cause.client_id, history) / before_s
    if cause.share >= NAMED_CAUSE_SHARE:
        if not (limits(history) and cause.kind in BEFORE_DATA):
            assert shorter == pytest.approx(cause.share, rel=0.1)
        assert f"{100 * cause.share:.0f} %" in sentence
    for kind in NAMED_KINDS:
        if kind == "train" or (limits(history) and kind in BEFORE_DATA):
            continue
        most = max(NAMED_CAUSE_SHARE, 1 - without(cause.kind, None, history) / before_s)
        assert 1 - without(kind, None, history) / before_s <= most * 1.1, f"{kind} is a greater cause"


@pytest.mark.parametrize("kind", NAMED_KINDS)
def test_without_its_cause_a_run_is_shorter_by_what_is_said(kind: str) -> None:
    named = list[History]()

    @settings(max_examples=25, deadline=None)
    @given(histories(kind))
    def holds(history: History) -> None:
        details, pauses = details_of(history)
        found = explained(details, {}, pauses)
        assert found.cause is not None
        assert_holds(history, found.cause, found.sentence, found.wall_s)
        if found.cause.kind == kind and found.cause.share >= NAMED_CAUSE_SHARE:
            named.append(history)

    holds()
    assert named, f"{kind} was never the cause that is named"
