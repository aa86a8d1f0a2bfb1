"""Who witnesses a round, who writes a checkpoint, how many make a quorum: pure functions of a roster and a seed.

Source of the quorum: DESIGN section 4, `max(⌊2n/3⌋, ⌊n/2⌋ + 1)`.
"""

from state.documents import Roster
from state.permutation import shuffled_positions
from state.wire import ClientId, Seed

MAX_WITNESSES = 32
_WITNESS_DOMAIN = b"epochal/witness/v1"
_CHECKPOINTER_DOMAIN = b"epochal/checkpointer/v1"


def witness_count(roster_count: int, witness_nodes: int) -> int:
    """How many witnesses a round elects: `witness_nodes`, or everyone when it is 0; never above `MAX_WITNESSES`."""
    wanted = witness_nodes or roster_count
    return min(wanted, roster_count, MAX_WITNESSES)


def elect_witnesses(roster: Roster, seed: Seed, count: int) -> tuple[ClientId, ...]:
    """The `count` elected witnesses of the round, in order of election."""
    order = shuffled_positions(bytes.fromhex(seed), len(roster.clients), _WITNESS_DOMAIN)
    return tuple(roster.clients[position].client_id for position in order[:count])


def checkpointer_order(roster: Roster, seed: Seed) -> tuple[ClientId, ...]:
    """The whole roster in the order in which its clients are asked to write a checkpoint."""
    order = shuffled_positions(bytes.fromhex(seed), len(roster.clients), _CHECKPOINTER_DOMAIN)
    return tuple(roster.clients[position].client_id for position in order)


def quorum(elected_count: int) -> int:
    """How many of `elected_count` elected witnesses must agree: `max(⌊2n/3⌋, ⌊n/2⌋ + 1)`; 1 at the least."""
    return max(2 * elected_count // 3, elected_count // 2 + 1)
