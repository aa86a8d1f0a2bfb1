"""A thousand new keys in a verified run: the coordinator's machine alone, with members whose times are given."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from tests.support.data.states import state_file
from tests.support.simulate.timed_members import TimedMembers, TimedRound, member

MEMBERS, NEW_KEYS, ROUNDS = 10, 1000, 20
BATCHES, BATCH_S, UPLOAD_S = 300, 1.0, 2.0
PERCENT = 10


@dataclass(frozen=True, slots=True)
class Keys:
    """A run before and after the keys have joined, over `ROUNDS` rounds each.

    Attributes:
        rounds_per_hour: before and after.
        merged_per_s: batches of results that were merged, before and after.
        cpu_s: the machine's processor time of a round, before and after.
        given, merged: the largest part of a round's batches that all new keys had together, and of those merged.
        most: the most batches that one of them had.
    """

    rounds_per_hour: tuple[float, float]
    merged_per_s: tuple[float, float]
    cpu_s: tuple[float, float]
    given: float
    merged: float
    most: int


def play() -> Keys:
    """Play the rounds before and after; no verifier is there, so that all of the keys stay new."""
    sizes = {"config__global_batch_size_start": BATCHES, "config__global_batch_size_end": BATCHES}
    long = {"config__total_steps": 1000, "config__epoch_time": 1e7, "config__max_round_train_time": 900}
    more = {"config__init_min_clients": MEMBERS, "merge__inner_state": "reset", "verify": {"percent": PERCENT}}
    members = TimedMembers(state_file(**sizes, **long, **more), [_times] * MEMBERS)
    members.play(ROUNDS)  # until all have their full share
    before, cpu_before_s = _played(members)
    new = frozenset(members.join(number) for number in range(MEMBERS, MEMBERS + NEW_KEYS))
    for number in range(MEMBERS, MEMBERS + NEW_KEYS):
        members.times[member(number)] = _times
        members.ready(member(number))
    after, cpu_after_s = _played(members)
    given, merged, most = 0.0, 0.0, 0
    for one in after:
        of_new = {key: count for key, count in one.batches.items() if key in new}
        given = max(given, sum(of_new.values()) / sum(one.batches.values()))
        merged = max(merged, sum(count for key, count in of_new.items() if key in one.busy_s) / _merged(one))
        most = max(most, *of_new.values(), 0)
    hours = [ROUNDS * 3600 / sum(one.train_s for one in rounds) for rounds in (before, after)]
    rates = [sum(map(_merged, rounds)) / sum(one.train_s for one in rounds) for rounds in (before, after)]
    return Keys((hours[0], hours[1]), (rates[0], rates[1]), (cpu_before_s, cpu_after_s), given, merged, most)


def _played(members: TimedMembers) -> tuple[Sequence[TimedRound], float]:
    begin_s = time.process_time()
    return members.play(ROUNDS), (time.process_time() - begin_s) / ROUNDS


def _merged(one: TimedRound) -> int:
    return sum(count for key, count in one.batches.items() if key in one.busy_s)


def _times(batches: int, _: int) -> tuple[float, float]:
    return batches * BATCH_S, UPLOAD_S
