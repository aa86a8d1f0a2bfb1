"""Shares and assignment for a large roster, beside the hashing and sorting that any keyed permutation needs."""

import hashlib
import itertools

from benchmarks.figures import Figure, median_ms
from epochal.coordinator.machine.parts.speed import UNKNOWN, TimedDelivery
from epochal.coordinator.machine.shares import Sharing, shared_roster
from epochal.state.assignment import assign_data_for_state
from epochal.state.documents import MAX_SHARE, Roster, WorkList
from epochal.state.intervals import BatchId
from epochal.state.wire import ClientId, Seed

CLIENTS = 10_000
BATCHES = 100_000
STEP = 7


def clients() -> list[Sharing]:
    """Return `CLIENTS` clients of different speeds and links, each of which delivered in the round before."""
    found = list[Sharing]()
    for number in range(CLIENTS):
        batches, batch_ms, upload_ms = 5 + 7 * number % 16, 500 + 1777 * number % 3500, 100 + 7919 * number % 20_000
        delivery = TimedDelivery(batches, batches * batch_ms, upload_ms)
        client_id = ClientId(f"{number:032x}")
        found.append(Sharing(client_id, MAX_SHARE, 2 * batches, True, STEP - 1, UNKNOWN.after(delivery)))
    return found


def measure() -> list[Figure]:
    """Measure shares and `assign_data_for_state` for `CLIENTS` clients of different speeds, in this process."""
    sharing, work, numbers = clients(), WorkList((), (BatchId(0, BATCHES - 1),)), itertools.count()

    def seed() -> Seed:
        return Seed(hashlib.sha256(b"benchmark %d" % next(numbers)).hexdigest())

    def roster_of(seed: Seed) -> Roster:
        return shared_roster(sharing, BATCHES, None, STEP, seed)

    roster = roster_of(seed())
    baseline = median_ms(lambda: sorted(hashlib.blake2b(b"%d" % number).digest() for number in range(CLIENTS)))
    shares = median_ms(lambda: roster_of(seed()))
    measured = median_ms(lambda: assign_data_for_state(roster, work, seed()))
    against = f"BLAKE2b of {CLIENTS:,} numbers, sorted"
    return [
        Figure(f"assign_data_for_state, {CLIENTS:,} clients", measured, "ms", "≤ 50 ms", baseline, against),
        Figure(f"shares by speed, {CLIENTS:,} different clients", shares, "ms", "≤ 50 ms", baseline, against),
    ]
