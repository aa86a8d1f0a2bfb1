"""What is called the cause of a slow round, against the model of a round: without it the round is that much shorter."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import median

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from epochal.state.messages.history_rows import ClientFigures, RoundDetail
from epochal.state.round_model import ClientGroup, Costs, Delivery, Link, Links, RoundModel, RunSizes, Workers
from epochal.state.shown.explanation import MAX_EXPLAINED_ROUNDS, NAMED_CAUSE_SHARE, SpeedCause, explained
from tests.support.data.round_details import detail_of, figures_of_client
from tests.support.drive.machine_driver import client

FAST = 1e15
"""Bytes or tokens a second of what takes no time."""
LIMITING_DATA_BYTES = 4_000_000
"""Bytes of a batch with which data may come too slowly for a client that trains faster."""
OUTER_S = 0.05
"""Of the time between a document and a replica, what the outer step takes."""
MODEL = RoundModel(
    RunSizes(20_000_000, 10_000_000, 10_000_000, 160_000_000, 1_000, 0),
    Links(),
    Costs(slow_start=False),
    "int4",
    "int4",
    through_store=False,
    client_count=4,
)


@st.composite
def rounds_played(draw: st.DrawFn) -> tuple[RoundModel, list[Workers], float]:
    """Return a round's model, its clients, and how long its attestation takes."""
    workers = []
    for _ in range(draw(st.integers(1, 4))):
        link = Link(draw(st.sampled_from([1e6, 1e7, 1e8])), draw(st.sampled_from([2e5, 1e6, 5e6, 1e8])))
        group = ClientGroup(1, link, 0.002, draw(st.sampled_from([300.0, 1_000.0, 3_000.0])))
        heard_s = draw(st.sampled_from([0.01, 0.3, 5.0]))
        workers.append(Workers(group, 1, draw(st.integers(1, 8)), heard_s + draw(st.floats(0.1, 8.0)), heard_s))
    encode_s = draw(st.sampled_from([1e-9, 1e-7, 5e-7]))
    codecs = {"int4": replace(MODEL.costs.codecs["int4"], encode_s=encode_s, check_s=draw(st.floats(1e-9, 4e-7)))}
    sizes = replace(MODEL.sizes, data_bytes_per_batch=draw(st.sampled_from([0, 1_000, LIMITING_DATA_BYTES])))
    return (
        replace(MODEL, sizes=sizes, costs=replace(MODEL.costs, codecs=codecs), client_count=len(workers)),
        workers,
        draw(st.sampled_from([0.01, 1.0, 10.0])),
    )


def figures(number: int, one: Workers, found: Delivery, attest_s: float) -> ClientFigures:
    return figures_of_client(
        number,
        batches=one.batches,
        document_s=one.heard_s,
        replica_s=one.held_s - one.heard_s,
        download_s=one.held_s - one.heard_s - OUTER_S,
        merge_s=OUTER_S,
        data_s=found.data_s,
        train_s=found.trained_s - found.held_s - found.data_s,
        encode_s=found.encoded_s - found.trained_s,
        upload_s=found.sent_s - found.committed_s,
        committed_s=found.committed_s,
        delivered_s=found.verified_s,
        check_s=found.verified_s - found.sent_s,
        attested_s=found.verified_s + attest_s,
    )


def history(model: RoundModel, workers: Sequence[Workers], attest_s: float) -> list[RoundDetail]:
    found = model.deliveries(workers)
    clients = [
        figures(1 + place, one, took, attest_s) for place, (one, took) in enumerate(zip(workers, found, strict=True))
    ]
    train_s = max(took.verified_s for took in found)
    return [detail_of(number, *clients, train_s=train_s, witness_s=attest_s) for number in range(MAX_EXPLAINED_ROUNDS)]


def without(cause: SpeedCause, model: RoundModel, workers: Sequence[Workers]) -> float:
    """Return when the last result of the round is checked without its cause, in seconds."""
    speeds = [one.group.tokens_per_s / one.batches for one in workers]
    times_s = model.deliveries(workers)
    changed: dict[str, Callable[[RoundModel, int, Workers], tuple[RoundModel, Workers]]] = {
        "upload": lambda model, _, one: (model, with_link(one, replace(one.group.link, up_bytes_per_s=FAST))),
        "data": lambda model, _, one: (replace(model, sizes=replace(model.sizes, data_bytes_per_batch=0)), one),
        "encode": lambda model, _, one: (with_costs(model, encode_s=0.0), one),
        "check": lambda model, _, one: (with_costs(model, check_s=0.0), one),
        "document": lambda model, _, one: (model, replace(one, heard_s=0.0, held_s=one.held_s - one.heard_s)),
        "download": lambda model, _, one: (model, replace(one, held_s=one.heard_s + OUTER_S)),
        "merge": lambda model, _, one: (model, replace(one, held_s=one.held_s - OUTER_S)),
        "train": lambda model, place, one: (model, trained_as_others(one, place, speeds)),
    }
    ends_s = []
    for place, one in enumerate(workers):
        if cause.client_id not in (None, client(1 + place)):
            ends_s.append(times_s[place].verified_s)
            continue
        (found,) = changed[cause.kind](model, place, one)[0].deliveries([changed[cause.kind](model, place, one)[1]])
        ends_s.append(found.verified_s)
    return max(ends_s)


def with_link(one: Workers, link: Link) -> Workers:
    return replace(one, group=replace(one.group, link=link))


def with_costs(model: RoundModel, **costs: float) -> RoundModel:
    codecs = {"int4": replace(model.costs.codecs["int4"], **costs)}
    return replace(model, costs=replace(model.costs, codecs=codecs))


def trained_as_others(one: Workers, place: int, batches_per_s: Sequence[float]) -> Workers:
    usual_s = median(1 / speed for other, speed in enumerate(batches_per_s) if other != place)
    return replace(one, group=replace(one.group, tokens_per_s=one.batches / usual_s))


@settings(max_examples=200, deadline=None)
@given(rounds_played())
def test_without_its_cause_the_round_is_shorter_by_what_is_said(
    played: tuple[RoundModel, list[Workers], float],
) -> None:
    model, workers, attest_s = played
    found = explained(history(model, workers, attest_s), {})
    cause = found.cause
    assert cause is not None
    assume(cause.kind not in ("train", "download", "merge") or model.sizes.data_bytes_per_batch < LIMITING_DATA_BYTES)
    before_s = max(took.verified_s for took in model.deliveries(workers)) + attest_s
    after_s = before_s - attest_s if cause.kind == "attest" else without(cause, model, workers) + attest_s
    if cause.share >= NAMED_CAUSE_SHARE:
        assert 1 - after_s / before_s == pytest.approx(cause.share, rel=0.1)
        assert f"{100 * cause.share:.0f} %" in found.sentence
    else:
        assert 1 - after_s / before_s <= NAMED_CAUSE_SHARE * 1.1
        assert "would be" not in found.sentence
