"""The assignment for a large roster, beside the hashing and sorting that any keyed permutation needs."""

import hashlib

from benchmarks.figures import Figure, median_ms
from epochal.state.assignment import assign_data_for_state
from epochal.state.documents import Roster, RosterEntry, WorkList
from epochal.state.intervals import BatchId
from epochal.state.wire import ClientId, Seed

CLIENTS = 10_000
BATCHES = 100_000


def measure() -> list[Figure]:
    """Measure `assign_data_for_state` for `CLIENTS` clients, in this process."""
    roster = Roster(tuple(RosterEntry(ClientId(f"{number:032x}"), 1) for number in range(CLIENTS)))
    work = WorkList((), (BatchId(0, BATCHES - 1),))
    seed = Seed(hashlib.sha256(b"benchmark").hexdigest())
    baseline = median_ms(lambda: sorted(hashlib.blake2b(b"%d" % number).digest() for number in range(CLIENTS)))
    measured = median_ms(lambda: assign_data_for_state(roster, work, seed))
    name = f"assign_data_for_state, {CLIENTS:,} clients"
    return [Figure(name, measured, "ms", "≤ 50 ms", baseline, f"BLAKE2b of {CLIENTS:,} numbers, sorted")]
