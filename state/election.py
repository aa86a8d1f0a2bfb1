"""Elects witnesses and checkpointers, and sizes the quorum: pure functions of a roster and a seed."""

from itertools import islice

from epochal.state.documents import Roster
from epochal.state.permutation import shuffled_positions
from epochal.state.wire import ClientId, Seed

MAX_WITNESSES = 32
_WITNESS_DOMAIN = b"epochal/witness/v1"
_CHECKPOINTER_DOMAIN = b"epochal/checkpointer/v1"


def witness_count(electorate_count: int, witness_nodes: int) -> int:
    """Return the number of witnesses of a round: at most `witness_nodes` (0 for everyone) and `MAX_WITNESSES`."""
    return min(witness_nodes or electorate_count, electorate_count, MAX_WITNESSES)


def elect_witnesses(roster: Roster, seed: Seed, count: int) -> tuple[ClientId, ...]:
    """Return the `count` elected witnesses of the round, of the roster's electorate, in order of election."""
    electorate = frozenset(roster.electorate())
    elected = (client_id for client_id in _shuffled(roster, seed, _WITNESS_DOMAIN) if client_id in electorate)
    return tuple(islice(elected, count))


def checkpointer_order(roster: Roster, seed: Seed) -> tuple[ClientId, ...]:
    """Return the whole roster in the order in which its clients are asked to write a checkpoint."""
    return _shuffled(roster, seed, _CHECKPOINTER_DOMAIN)


def _shuffled(roster: Roster, seed: Seed, domain: bytes) -> tuple[ClientId, ...]:
    order = shuffled_positions(bytes.fromhex(seed), len(roster.clients), domain)
    return tuple(roster.clients[position].client_id for position in order)


def quorum(elected_count: int) -> int:
    """Return the number of `elected_count` witnesses that must agree: `max(⌊2n/3⌋, ⌊n/2⌋ + 1)`, at least 1."""
    return max(2 * elected_count // 3, elected_count // 2 + 1)
