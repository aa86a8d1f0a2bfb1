"""Assigns a round's batches to its clients: every machine computes the same assignment by `assign_data_for_state`.

The roster is permuted: first the proven clients, by the round's assignment seed, and after them the others, by the
round's own seed. Each isolated interval goes whole to the first client in that order that has not failed on it and has
nothing yet. Everyone else takes a contiguous part of the shared batches, in proportion to its share: integers by
largest remainder, ties to the client that comes first in the permuted order, none above the ceiling of
`state/share_ceiling.py`. The coordinator makes the shares so that all end together; without isolated intervals they
are the numbers of batches themselves.

Where some of the clients are proven and others not, the others, whose keys cost nothing, get a quarter of the shared
batches at most, whatever their number, and one of them at least; each of them counts alike, up to its share, so that
the seed gives everyone its turn.

The assignment seed has been known since the round before, so that a proven client can fetch its data ahead. Nobody can
know a round's own seed before it begins, so nobody can choose keys that have their turn before others'.
"""

from collections.abc import Sequence
from functools import lru_cache

from epochal.state.documents import Roster, RosterEntry, WorkList
from epochal.state.errors import InvalidInput
from epochal.state.intervals import BatchId, total_batches
from epochal.state.permutation import shuffled_positions
from epochal.state.share_ceiling import apportion_below, apportion_within, largest_part
from epochal.state.wire import ClientId, Seed

NEWCOMERS_PART = (1, 4)
"""Largest part of the shared batches for clients that are not proven, if others are."""
_ASSIGNMENT_DOMAIN = b"epochal/assignment/v1"

DataAssignments = dict[ClientId, tuple[BatchId, ...]]
"""Each roster client's `BatchId`s, in the permuted order of the round; () for a client without work."""


def assign_data_for_state(
    roster: Roster, work: WorkList, assignment_seed: Seed, seed: Seed | None = None
) -> DataAssignments:
    """Return the data assignment of every client of the round, in the round's permuted order.

    The assignments partition the work list: each batch is in exactly one of them.

    Args:
        roster: the round's clients.
        work: the round's work list.
        assignment_seed: permutes the proven clients.
        seed: permutes the others; None for the same.

    Raises:
        InvalidInput: the work list needs more clients than the roster has; the coordinator's fault.
    """
    clients = [
        *_permuted([entry for entry in roster.clients if entry.proven], assignment_seed),
        *_permuted([entry for entry in roster.clients if not entry.proven], seed or assignment_seed),
    ]
    alone = _assign_isolated(clients, work)
    sharing = [entry for entry in clients if entry.client_id not in alone]
    total = total_batches(work.shared)
    if total and not sharing:
        raise InvalidInput(
            f"{len(work.isolated)} isolated intervals leave none of the {len(clients)} clients for {total} batches"
        )
    counts = _counts(sharing, total, roster.ceiling)
    parts = iter(split_consecutively(work.shared, counts))
    return {entry.client_id: alone.get(entry.client_id) or next(parts) for entry in clients}


def proven_ahead(roster: Roster, work: WorkList, seed: Seed) -> DataAssignments:
    """Return the proven clients' assignments of the provisional next round; the others' parts nobody can know yet.

    Args:
        roster: of the next round, as the run document names it.
        work: its work list.
        seed: of the round under way.

    Raises:
        InvalidInput: the work list needs more clients than the roster has; the coordinator's fault.
    """
    assigned = assign_data_for_state(roster, work, seed)
    return {entry.client_id: assigned[entry.client_id] for entry in roster.clients if entry.proven}


@lru_cache(maxsize=4)
def order_of(seed: Seed, count: int) -> tuple[int, ...]:
    """Return the positions of so many clients, sorted by client id, in the order that a seed gives them."""
    return tuple(shuffled_positions(bytes.fromhex(seed), count, _ASSIGNMENT_DOMAIN)) if count else ()


def for_newcomers(wanted: int, total: int) -> int:
    """Return how many of the shared batches clients that are not proven get, if others are and they want so many."""
    part, whole = NEWCOMERS_PART
    return max(1, min(wanted, total * part // whole)) if wanted and total > 1 else 0


def _permuted(entries: Sequence[RosterEntry], seed: Seed) -> list[RosterEntry]:
    return [entries[position] for position in order_of(seed, len(entries))]


def _counts(sharing: Sequence[RosterEntry], total: int, ceiling: int | None) -> list[int]:
    """Return how many of the shared batches each client gets."""
    shares = [entry.share for entry in sharing]
    proven = [entry.share for entry in sharing if entry.proven]
    new = [entry.share for entry in sharing if not entry.proven]
    if not proven or not new or total < 2:
        return apportion_below(shares, total, total, ceiling)
    wanted = total * sum(new) // sum(shares)
    for_others = min(for_newcomers(max(1, wanted), total), sum(new))
    counts = apportion_below(proven, total - for_others, total, ceiling)
    most = len(new) * int(largest_part(counts, total, ceiling))
    if for_others > most:
        for_others = most
        counts = apportion_below(proven, total - for_others, total, ceiling)
    groups = (iter(counts), iter(apportion_within([1] * len(new), for_others, new)))
    return [next(groups[0 if entry.proven else 1]) for entry in sharing]


def _assign_isolated(clients: Sequence[RosterEntry], work: WorkList) -> dict[ClientId, tuple[BatchId, ...]]:
    alone: dict[ClientId, tuple[BatchId, ...]] = {}
    for item in work.isolated:
        free = [entry.client_id for entry in clients if entry.client_id not in alone]
        if not free:
            raise InvalidInput(
                f"{len(work.isolated)} isolated intervals need as many clients; there are {len(clients)}"
            )
        chosen = next((client_id for client_id in free if client_id not in item.tried), free[0])
        alone[chosen] = (item.batch_id,)
    return alone


def split_consecutively(work: Sequence[BatchId], counts: Sequence[int]) -> list[tuple[BatchId, ...]]:
    """Return the concatenated work cut into consecutive parts of `counts[i]` batches."""
    parts: list[tuple[BatchId, ...]] = []
    index, offset = 0, 0
    for count in counts:
        part: list[BatchId] = []
        while count:
            interval = work[index]
            taken = min(count, interval.count - offset)
            part.append(BatchId(interval.start + offset, interval.start + offset + taken - 1))
            count -= taken
            offset += taken
            if offset == interval.count:
                index, offset = index + 1, 0
        parts.append(tuple(part))
    return parts
