"""`python -m benchmarks`: the assignment for a large roster, beside the hashing that any keyed permutation needs."""

import hashlib
import statistics
import sys
import time
from collections.abc import Callable

from state.assignment import assign_data_for_state
from state.documents import Roster, RosterEntry, WorkList
from state.intervals import BatchId
from state.wire import ClientId, Seed

CLIENTS = 10_000
BATCHES = 100_000
REPEATS = 9


def median_ms(work: Callable[[], object]) -> float:
    """The median time of `REPEATS` calls, in milliseconds."""
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1000


def main() -> None:
    """Measure and print."""
    roster = Roster(tuple(RosterEntry(ClientId(f"{number:032x}"), 1) for number in range(CLIENTS)))
    work = WorkList((), (BatchId(0, BATCHES - 1),))
    seed = Seed(hashlib.sha256(b"benchmark").hexdigest())
    baseline = median_ms(lambda: sorted(hashlib.blake2b(b"%d" % number).digest() for number in range(CLIENTS)))
    measured = median_ms(lambda: assign_data_for_state(roster, work, seed))
    sys.stdout.write(
        f"assign_data_for_state, {CLIENTS:,} clients: {measured:.1f} ms "
        f"({measured / baseline:.1f} x hashing and sorting them, {baseline:.1f} ms)\n"
    )


if __name__ == "__main__":
    main()
