"""Why a run is not faster: time is attributed along the critical path, and one sentence says where most of it goes."""

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochal.state.messages.history_rows import ClientFigures, RoundDetail
from epochal.state.phase_names import RunState
from epochal.state.shown.critical_path import PartKind, Pause, critical_path, path_of, pauses_of
from epochal.state.shown.explanation import (
    MAX_EXPLAINED_ROUNDS,
    NO_TIME,
    NOTHING_YET,
    TimePart,
    _sentence,
    explained,
    said_of,
)
from epochal.state.shown.operator_actions import OperatorAction
from tests.support.data.round_details import detail_of, figures_of_client
from tests.support.drive.machine_driver import client

SLOW = {"committed_s": 4.0, "delivered_s": 14.0, "upload_s": 9.9, "attested_s": 14.5, "result_bytes": 21_000_000}


def sentence(*details: RoundDetail, names: dict[str, str] | None = None) -> str:
    return explained(details, names or {}).sentence


def rounds(*clients: ClientFigures, count: int = 3, **fields: Any) -> list[RoundDetail]:
    return [detail_of(number, *clients, **fields) for number in range(count)]


def test_a_slow_upload_is_named_with_its_client_share_and_rate() -> None:
    slow = figures_of_client(2, **SLOW)
    details = rounds(figures_of_client(1), slow, figures_of_client(3), train_s=14.0)
    said = sentence(*details, names={client(2): "lab-b"})
    shown = client(2)[:12]
    assert said == (
        f"Rounds would be 62 % shorter without the upload of client {shown} ('lab-b') at 2.1 MB/s (a smaller codec and "
        "more local_steps make it less); training takes 26 % of the time."
    )
    found = explained(details, {})
    assert (found.rounds, found.first, found.next, found.round_s, found.wall_s) == (3, 0, 3, 14.5, 43.5)
    assert [found.clients[0].client_id, found.clients[0].upload_s] == [client(2), 9.9]


def test_time_of_attestation_is_that_of_all_witnesses() -> None:
    first = figures_of_client(1, committed_s=1.0, delivered_s=1.0, train_s=1.0, attested_s=10.0)
    others = figures_of_client(2, committed_s=1.0, delivered_s=1.0, train_s=1.0, attested_s=3.0)
    later = replace(first, attested_s=2.0), replace(others, attested_s=10.0)
    details = [*rounds(first, others, train_s=1.0, witness_s=9.0), *rounds(*later, count=1, train_s=1.0, witness_s=9.0)]
    found = explained(details, {})
    attests = sum(part.share for part in found.parts if part.kind == "attest")
    assert found.cause is not None
    assert (found.cause.kind, found.cause.client_id) == ("attest", None)
    assert found.cause.share == pytest.approx(attests, abs=1e-3)
    assert f"without attestation, of which most is waiting for client {client(1)[:12]}" in found.sentence


def test_sums_over_clients_do_not_count() -> None:
    many = [figures_of_client(number, merge_s=50.0, idle_s=60.0, data_s=0.5) for number in range(2, 30)]
    slowest = figures_of_client(1, committed_s=4.9, delivered_s=5.2, train_s=4.6)
    assert sentence(*rounds(slowest, *many, train_s=5.2)).startswith("Training takes 81 % of the time, attestation")


def test_a_slow_trainer_is_compared_with_the_others() -> None:
    slow = figures_of_client(1, committed_s=11.0, delivered_s=11.5, train_s=10.0, attested_s=12.0)
    said = sentence(*rounds(slow, figures_of_client(2), figures_of_client(3), train_s=11.5))
    assert said == (
        f"Rounds would be 50 % shorter if client {client(1)[:12]} trained as fast as the others: 10.0 s a round, their "
        "median is 4.0 s."
    )


def test_absurd_claims_do_not_get_into_the_sentence() -> None:
    liar = figures_of_client(1, train_s=1e9, committed_s=11.0, delivered_s=11.5)
    said = sentence(*rounds(liar, figures_of_client(2), train_s=11.5))
    assert "trained as fast as the others" in said
    assert "11.5 s a round" in said


def test_changing_clients_are_not_blamed_one_by_one() -> None:
    details = [
        detail_of(number, figures_of_client(1 + number % 3, **SLOW), figures_of_client(5), train_s=14.0)
        for number in range(6)
    ]
    assert sentence(*details).startswith("Rounds would be 65 % shorter without the upload of clients (")


def test_client_with_most_of_a_cause_is_named_with_what_its_own_part_costs() -> None:
    details = [
        detail_of(number, figures_of_client(1 if number == 0 else 2, **SLOW), figures_of_client(5), train_s=14.0)
        for number in range(3)
    ]
    found = explained(details, {})
    assert [round(part.share, 2) for part in found.parts if part.kind == "upload"] == [0.46, 0.23]
    assert found.cause is not None
    assert (found.cause.kind, found.cause.client_id) == ("upload", client(2))
    assert found.cause.share == pytest.approx(2 * 9.0 / 43.5, abs=1e-3)
    assert f"the upload of client {client(2)[:12]} at 2.1 MB/s" in found.sentence


def test_upload_of_one_of_two_that_are_late_is_not_blamed_on_one() -> None:
    found = explained(rounds(figures_of_client(1, **SLOW), figures_of_client(2, **SLOW), train_s=14.0), {})
    assert found.cause is not None
    assert (found.cause.kind, found.cause.client_id) == ("upload", None)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"data_s": 3.0, "fetching_s": 0.5, "decoding_s": 2.5, "train_s": 1.0}, "waits of client"),
        ({"encode_s": 3.5, "train_s": 0.5}, "the encoding of results by client"),
        ({"committed_s": 1.0, "train_s": 0.5, "check_s": 3.5}, "the coordinator's check of results"),
        ({"train_s": 0.5, "document_s": 3.5}, "the time that the run document takes to client"),
        ({"train_s": 0.5, "replica_s": 3.9}, "ready to train"),
    ],
)
def test_each_part_of_a_client_s_time_is_said(fields: dict[str, Any], said: str) -> None:
    assert said in sentence(*rounds(figures_of_client(1, **fields), count=1))


def test_the_round_before_is_fetched_and_merged_in_this_one() -> None:
    late = figures_of_client(1, witness=False, replica_s=3.0, train_s=1.0, download_s=2.5, merge_s=0.5)
    spans = {span.kind: span for span in critical_path(detail_of(1, late), detail_of(0, late))}
    assert (spans["download"].seconds, spans["download"].size_bytes, spans["merge"].seconds) == (2.5, 2_000_000, 0.5)


def test_waiting_in_vain_names_who_does_not_deliver_and_why() -> None:
    silent = figures_of_client(2, fate="failed", detail="unavailable: the disk\x1b is away", delivered_s=None)
    said = sentence(*rounds(figures_of_client(1), silent, train_s=60.0, lost_batches=2, batches=4))
    assert f"91 % of the time the others wait in vain for client {client(2)[:12]}, of which nothing usable" in said
    assert "lastly because: unavailable: the disk� is away" in said
    assert said.endswith("50 % of the batches were lost and are trained again.")


def test_more_local_steps_are_no_advice_where_batches_are_lost() -> None:
    """Rounds whose time was over before results came: longer ones lose less, more work in each loses more."""
    shares: dict[PartKind, float] = {"train": 0.56, "data": 0.09, "missing": 0.09, "merge": 0.09, "encode": 0.09}
    parts = [TimePart(kind, None, "", 60 * share, share, None) for kind, share in shares.items()]
    whole = rounds(figures_of_client(1), lost_batches=0, batches=4)
    assert _sentence(whole, parts, None, ()).endswith("with more local_steps it takes a larger part.")
    lossy = _sentence(rounds(figures_of_client(1), lost_batches=2, batches=4), parts, None, ())
    assert "with a longer max_round_train_time, or fewer batches in a round, less is lost; 50 % of the batches" in lossy
    assert "local_steps" not in lossy


def test_empty_rounds_epochs_and_outages_are_said() -> None:
    ended = figures_of_client(1)
    empty = rounds(ended, applied_rounds=0, reason="1 of 3 witnesses attested, 2 must agree")
    assert "goes into rounds of which nothing is applied, lastly because: 1 of 3 witnesses" in sentence(*empty)
    apart = [detail_of(0, ended), detail_of(1, ended, started_s=200.0, epoch=1)]
    assert sentence(*apart).startswith("90 % of the time passes between epochs")


@pytest.mark.parametrize("pauses", [[(103.0, 190.0), (300.0, 400.0)], [(10.0, 20.0), (104.0, 1e9)]])
def test_pauses_and_the_coordinators_absence_are_no_part_of_the_time(pauses: list[Pause]) -> None:
    ended = figures_of_client(1)
    calm = explained([detail_of(0, ended), detail_of(1, ended)], {})
    away = explained([detail_of(0, ended), detail_of(1, ended, started_s=200.0)], {})
    assert away == calm
    gone = [detail_of(0, ended), detail_of(1, ended, started_s=195.0, epoch=1, away_s=85.0)]
    between = [detail_of(0, ended), detail_of(1, ended, started_s=110.0, epoch=1)]
    assert explained(gone, {}) == explained(between, {})
    paused = explained([detail_of(0, ended), detail_of(1, ended, started_s=190.0, epoch=1)], {}, pauses)
    assert paused.wall_s == pytest.approx(calm.wall_s, abs=1e-6)
    assert paused.sentence == calm.sentence


def test_a_pause_is_from_its_request_to_the_resume() -> None:
    names = ["pause", "pause", "invite", "resume", "resume", "pause"]
    actions = [OperatorAction(number, name, {}, float(number), 1) for number, name in enumerate(names)]
    assert pauses_of(actions) == [(0.0, 3.0), (5.0, math.inf)]


def test_training_is_called_good_from_nine_tenths_on() -> None:
    good = figures_of_client(1, committed_s=9.4, delivered_s=9.5, attested_s=9.6, train_s=9.0)
    assert sentence(*rounds(good, train_s=9.5, witness_s=0.1)) == (
        "Training takes 94 % of the time: only more or faster clients make the run faster."
    )
    assert "only more or faster" not in sentence(*rounds(figures_of_client(1)))


def test_nothing_is_said_of_the_speed_of_a_run_in_which_no_round_can_begin() -> None:
    found = explained(rounds(figures_of_client(1)), {})
    assert said_of(found, RunState.ROUND_TRAIN, is_held=False, took_s=618.0) == found.sentence
    assert said_of(found, RunState.ROUND_TRAIN, is_held=True, took_s=618.0) == ""
    assert said_of(found, RunState.PAUSED, is_held=False, took_s=618.0) == ""
    assert said_of(found, RunState.WAITING_FOR_MEMBERS, is_held=False, took_s=618.0) == ""
    said = said_of(found, RunState.FINISHED, is_held=False, took_s=618.0)
    assert said == "From its first round to its last it took 10 min 18 s; 73 % of the last rounds was training."


def test_clients_that_say_nothing_are_unknown_and_never_guessed() -> None:
    nothing = dict.fromkeys(("replica_s", "encode_s", "upload_s", "document_s", "merge_s", "download_s", "idle_s"))
    old = figures_of_client(1, train_s=1.0, committed_s=None, **nothing)
    found = explained([detail_of(0, old)], {})
    shown = f"the time of which client {client(1)[:12]} reported nothing"
    assert found.sentence.startswith(f"Rounds would be 71 % shorter without {shown}; training takes")
    assert found.clients[0].upload_s is None
    assert explained((), {}).sentence == NOTHING_YET


def test_the_newest_round_waits_until_its_clients_have_told_of_it() -> None:
    told, untold = figures_of_client(1), figures_of_client(1, upload_s=None)
    assert explained([detail_of(0, told), detail_of(1, untold)], {}).next == 1
    assert explained([detail_of(0, untold)], {}).next == 1, "it is the only one"
    assert explained(rounds(told, count=40), {}).rounds == MAX_EXPLAINED_ROUNDS


def test_rounds_without_time_are_said_to_have_taken_none() -> None:
    still = figures_of_client(1, committed_s=0.0, delivered_s=0.0, attested_s=0.0)
    assert sentence(detail_of(0, still, train_s=0.0, witness_s=0.0)) == NO_TIME


SECONDS = st.none() | st.floats(0, 1e4)


@st.composite
def client_figures(draw: st.DrawFn, number: int) -> ClientFigures:
    names = (
        "committed_s", "delivered_s", "attested_s", "train_s", "replica_s", "data_s", "encode_s", "upload_s",
        "check_s", "download_s", "merge_s", "fetching_s", "uploaded_bytes",
    )  # fmt: skip
    fields: dict[str, Any] = {name: draw(SECONDS) for name in names}
    fields["uploaded_bytes"] = draw(st.none() | st.integers(0, 2**53))
    fields["fate"] = draw(st.sampled_from(["applied", "lost", "missing", "failed", "idle"]))
    return figures_of_client(number, batches=draw(st.integers(0, 3)), witness=draw(st.booleans()), **fields)


@st.composite
def histories(draw: st.DrawFn) -> list[RoundDetail]:
    found: list[RoundDetail] = []
    for number in range(draw(st.integers(1, 4))):
        clients = [draw(client_figures(one)) for one in range(1, draw(st.integers(1, 4)))]
        fields = {"applied_rounds": draw(st.integers(0, 1)), "epoch": draw(st.integers(0, 2))}
        times = {"train_s": draw(st.floats(0, 1e4)), "witness_s": draw(st.floats(0, 1e4))}
        gap_s = draw(st.sampled_from([0.0, 0.0, 30.0]))
        started_s = (found[-1].figures.ended_s if found else 0.0) + gap_s
        found.append(detail_of(number, *clients, started_s=started_s, **times, **fields))
    return found


@given(histories())
def test_parts_add_up_to_the_time_that_passed(details: list[RoundDetail]) -> None:
    for detail, before in zip(details, [None, *details], strict=False):
        spans = critical_path(detail, before)
        expected = detail.figures.train_s + detail.figures.witness_s
        assert sum(span.seconds for span in spans) == pytest.approx(expected, abs=1e-6)
        assert all(span.seconds >= 0 for span in spans)
    passed = details[-1].figures.ended_s - details[0].figures.started_s
    assert sum(span.seconds for span in path_of(details)) == pytest.approx(passed, abs=0.1)
    found = explained(details, {client(1): "<b>'x'"})
    assert found.sentence.endswith(".")
    assert sum(part.share for part in found.parts) <= 1.01


def test_a_client_that_has_left_keeps_the_name_of_its_rounds() -> None:
    details = rounds(figures_of_client(1), figures_of_client(2, **SLOW, name="lab-b"), train_s=14.0)
    found = explained(details, {client(1): "lab-a"})
    assert {row.client_id: row.name for row in found.clients} == {client(1): "lab-a", client(2): "lab-b"}
    assert "('lab-b')" in found.sentence
