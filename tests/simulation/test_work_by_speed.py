"""Members of unlike speeds and links in virtual time: all end together, whatever one of them does."""

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from epochal.coordinator.machine.run import parse_snapshot, snapshot_bytes
from epochal.coordinator.machine.shares import ROUNDS_PER_TURN
from epochal.coordinator.machine.views import document_of
from epochal.state.config.state_file import StateFile
from epochal.state.round_model import ClientGroup, Costs, Link, Links, RoundModel, RunSizes, Workers
from tests.support.data.states import state_file
from tests.support.simulate.timed_members import TimedMembers, TimedRound, Times, member

MODEL = RoundModel(
    RunSizes(50_000_000, 26_000_000, 26_000_000, 400_000_000, tokens_per_batch=1, data_bytes_per_batch=0),
    Links(),
    Costs(slow_start=False),
    "int4",
    "int4",
    through_store=False,
    client_count=16,
)
BATCH_S = 0.5
"""Seconds of the fastest member for a batch."""
MBIT = 125_000.0
LINKS = (1000 * MBIT, 100 * MBIT, 50 * MBIT, 10 * MBIT)


def state_of(members: int, batches: int, **overrides: Any) -> StateFile:
    """Return the state file of a long run whose rounds have room for everybody's first one."""
    sizes = {"config__global_batch_size_start": batches, "config__global_batch_size_end": batches}
    roomy = {"config__max_round_train_time": 900, "config__epoch_time": 1e7, "config__total_steps": 1000}
    fields = sizes | roomy | {"config__init_min_clients": members, "config__max_share": 1.0} | overrides
    return state_file(**{name: value for name, value in fields.items() if value is not None})


def working(batch_s: float, up_bytes_per_s: float = LINKS[0], start_s: float = 2.0) -> Times:
    """Return the times of a member that takes as long for each batch, and whose link carries so much."""
    group = ClientGroup(1, Link(math.inf, up_bytes_per_s), 0.0, 1 / batch_s)
    model = replace(MODEL, costs=replace(MODEL.costs, begin_s=start_s))

    def times(batches: int, _: int) -> tuple[float, float]:
        (found,) = model.deliveries([Workers(group, 1, batches, 0.0, 0.0)])
        return found.encoded_s, found.sent_s - found.encoded_s

    return times


def unlike() -> list[Times]:
    """Return members of speeds 1 : 2 : 4 : 8, each with four links."""
    return [working(BATCH_S * 8 / speed, link) for speed in (1, 2, 4, 8) for link in LINKS]


def optimum_s(times: Sequence[Times], batches: int) -> float:
    """Return the shortest time in which members can do so many batches, by giving each to who ends it first."""
    counts = [0] * len(times)
    ends = [sum(each(1, 1)) for each in times]
    last_s = 0.0
    for _ in range(batches):
        place = min(range(len(times)), key=ends.__getitem__)
        last_s = max(last_s, ends[place])
        counts[place] += 1
        ends[place] = sum(times[place](counts[place] + 1, 1))
    return last_s


def parts_of(rounds: Sequence[TimedRound], number: int) -> list[int]:
    return [one.batches.get(member(number), 0) for one in rounds]


def test_members_of_unlike_speeds_and_links_end_together_within_ten_rounds() -> None:
    times, batches = unlike(), 480
    rounds = TimedMembers(state_of(16, batches), times).play(16)
    assert rounds[0].busy < 0.7, "the first one is shared out evenly"
    for found in rounds[9:]:
        assert found.busy >= 0.9
        assert found.last_s <= 1.05 * optimum_s(times, batches)


def test_members_under_the_default_ceiling_are_busy_most_of_the_time() -> None:
    rounds = TimedMembers(state_of(16, 480, config__max_share=None), unlike()).play(14)
    assert all(found.busy >= 0.9 for found in rounds[9:])


def test_member_that_is_four_times_faster_does_four_times_as_much() -> None:
    times = [working(0.5, start_s=0.0)] * 4 + [working(2.0, start_s=0.0)] * 4
    rounds = TimedMembers(state_of(8, 400, config__max_share=None), times).play(8)
    assert parts_of(rounds, 0)[-1] == pytest.approx(80, abs=2)
    assert parts_of(rounds, 7)[-1] == pytest.approx(20, abs=2)


@pytest.mark.parametrize("noise", [0.0, 0.05])
def test_shares_of_steady_members_stay(noise: float) -> None:
    chance = random.Random(4)

    def steady(batches: int, _: int) -> tuple[float, float]:
        return (2 + batches * BATCH_S) * chance.uniform(1 - noise, 1 + noise), 1.0

    rounds = TimedMembers(state_of(8, 160), [steady] * 8).play(40)
    changes = sum(before.batches != after.batches for before, after in pairwise(rounds[20:]))
    assert changes <= (0 if noise == 0 else 6)


@pytest.mark.parametrize("speed", [0.6, 0.3])
def test_member_that_becomes_slow_is_absorbed_in_three_rounds(speed: float) -> None:
    falls = 20

    def slowing(batches: int, step: int) -> tuple[float, float]:
        return 2 + batches * BATCH_S / (speed if step >= falls else 1), 1.0

    rounds = TimedMembers(state_of(8, 160), [slowing, *[working(BATCH_S)] * 7]).play(40)
    before, after = rounds[falls - 2], rounds[falls + 2 :]
    assert before.last_s == pytest.approx(12, rel=0.1)
    assert all(found.last_s <= 1.25 * before.last_s and not found.missed for found in after)
    assert all(found.busy >= 0.9 for found in after[1:])
    if speed == 0.6:
        assert not any(found.missed for found in rounds), "it gets less without a miss"


@pytest.mark.nightly
@pytest.mark.parametrize("phase", [0, 1])
def test_member_whose_speed_jumps_holds_nobody_up(phase: int) -> None:
    def jumping(batches: int, step: int) -> tuple[float, float]:
        return 2 + batches * BATCH_S * (10 if step % 2 == phase else 1), 1.0

    rounds = TimedMembers(state_of(8, 160), [jumping, *[working(BATCH_S)] * 7]).play(60)
    steady_s = optimum_s([working(BATCH_S)] * 7, 160)
    assert all(found.last_s <= 1.1 * steady_s and not found.missed for found in rounds[10:])
    assert min(parts_of(rounds[10:], 0)) >= 1


def test_member_that_reports_early_and_delivers_late_gains_nothing() -> None:
    def early(batches: int, _: int) -> tuple[float, float]:
        return 0.1, 3 + batches * BATCH_S

    honest = TimedMembers(state_of(8, 160), [working(BATCH_S)] * 8).play(40)
    rounds = TimedMembers(state_of(8, 160), [early, *[working(BATCH_S)] * 7]).play(40)
    assert max(parts_of(rounds, 0)[10:]) <= max(parts_of(honest, 0)[10:]) + 2
    assert all(found.last_s <= 1.1 * honest[-1].last_s for found in rounds[10:])


def test_member_that_delays_on_purpose_gains_nothing() -> None:
    def delaying(batches: int, step: int) -> tuple[float, float]:
        return 2 + batches * BATCH_S + (6 if step > 10 else 0), 0.2

    rounds = TimedMembers(state_of(8, 160), [delaying, *[working(BATCH_S)] * 7]).play(40)
    assert max(parts_of(rounds[14:], 0)) < min(parts_of(rounds[5:10], 0))
    assert max(parts_of(rounds[14:], 0)) < min(parts_of(rounds[14:], 1))


@pytest.mark.nightly
def test_uplink_of_a_tenth_of_a_megabit_holds_nobody_up() -> None:
    slow = working(BATCH_S, 0.1 * MBIT)
    state = state_of(8, 160, config__max_round_train_time=3600)
    rounds = TimedMembers(state, [slow, *[working(BATCH_S)] * 7]).play(100)
    steady_s = optimum_s([working(BATCH_S)] * 7, 160)
    held_up = [found for found in rounds[10:] if found.train_s > 1.1 * steady_s]
    assert len(held_up) <= 100 // ROUNDS_PER_TURN
    assert all(found.train_s <= 2.2 * steady_s for found in held_up)
    assert all(found.busy >= 0.8 for found in rounds[10:] if found not in held_up)


@pytest.mark.nightly
@pytest.mark.parametrize("batches", [12, 160])
def test_nobody_is_starved_over_a_hundred_rounds(batches: int) -> None:
    chance = random.Random(8)
    times = [working(BATCH_S * chance.choice((1, 2, 4, 20)), chance.choice(LINKS)) for _ in range(24)]
    rounds = TimedMembers(state_of(24, batches), times).play(100)
    for number in range(24):
        assert sum(1 for count in parts_of(rounds, number) if count) >= 2


def test_newcomer_does_its_part_within_ten_rounds() -> None:
    run = TimedMembers(state_of(8, 480), [working(BATCH_S)] * 9)
    assert len(run.play(1)[0].batches) == 9
    counts = parts_of(run.play(10), 8)
    assert counts[-1] == pytest.approx(480 / 9, rel=0.1)


def test_coordinators_own_check_is_no_time_of_a_member() -> None:
    quick, slow = (TimedMembers(state_of(8, 160), unlike()[:8], check_ms).play(12) for check_ms in (0, 2000))
    assert [found.batches for found in slow] == [found.batches for found in quick]


def test_journal_replays_to_the_same_shares() -> None:
    chance = random.Random(3)

    def uneven(batches: int, _: int) -> tuple[float, float]:
        return chance.uniform(1, 3) + batches * chance.uniform(0.3, 1.7), chance.uniform(0.01, 2)

    played = TimedMembers(state_of(9, 100), [uneven] * 9)
    played.play(20)
    again = played.replayed()
    assert again == played.run
    assert snapshot_bytes(again) == snapshot_bytes(played.run)
    assert document_of(again, 1) == document_of(played.run, 1)
    read = parse_snapshot(snapshot_bytes(again))
    assert read == again
    assert {one.client_id: one.speed for one in read.members.by_id.values()} == {
        one.client_id: one.speed for one in played.run.members.by_id.values()
    }
