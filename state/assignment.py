"""Assigns a round's batches to its clients: every machine computes the same assignment by `assign_data_for_state`.

The roster is permuted by the round's seed. Each isolated interval goes whole to the first client in that order that
has not failed on it and has nothing yet. Everyone else takes a contiguous part of the shared batches, in proportion
to its share: integers by largest remainder, ties to the client that comes first in the permuted order.
"""

from collections.abc import Sequence

from state.documents import Roster, RosterEntry, WorkList
from state.errors import InvalidInput
from state.intervals import BatchId, total_batches
from state.permutation import shuffled_positions
from state.wire import ClientId, Seed

_ASSIGNMENT_DOMAIN = b"epochal/assignment/v1"

DataAssignments = dict[ClientId, tuple[BatchId, ...]]
"""Each roster client's `BatchId`s, in the permuted order of the round; () for a client without work."""


def assign_data_for_state(roster: Roster, work: WorkList, seed: Seed) -> DataAssignments:
    """Return the data assignment of every client of the round, in the round's permuted order.

    The assignments partition the work list: each batch is in exactly one of them.

    Raises:
        InvalidInput: the work list needs more clients than the roster has; the coordinator's fault.
    """
    order = shuffled_positions(bytes.fromhex(seed), len(roster.clients), _ASSIGNMENT_DOMAIN)
    clients = [roster.clients[position] for position in order]
    alone = _assign_isolated(clients, work)
    sharing = [entry for entry in clients if entry.client_id not in alone]
    total = total_batches(work.shared)
    if total and not sharing:
        raise InvalidInput(
            f"{len(work.isolated)} isolated intervals leave none of the {len(clients)} clients for {total} batches"
        )
    counts = apportion([entry.share for entry in sharing], total)
    parts = iter(split_consecutively(work.shared, counts))
    return {entry.client_id: alone.get(entry.client_id) or next(parts) for entry in clients}


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


def apportion(shares: Sequence[int], total: int) -> list[int]:
    """Return integers in proportion to `shares` (positive) that add up to `total`, by Hamilton's largest remainder.

    Ties go to the earlier position. Without shares the total must be 0.
    """
    if not shares:
        return []
    share_sum = sum(shares)
    counts = [share * total // share_sum for share in shares]
    missing = total - sum(counts)
    by_remainder = sorted(range(len(shares)), key=lambda i: -(shares[i] * total % share_sum))
    for position in by_remainder[:missing]:
        counts[position] += 1
    return counts


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
