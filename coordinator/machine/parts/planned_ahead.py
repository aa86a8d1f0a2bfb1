"""Work that is drawn before its round begins, and what clients have done of it by then (`merge.delay`).

The rule kept here: nothing is taken from the run's work before the round begins. So a round that does not come to be
leaves its batches where they are, carried or beyond the cursor.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from epochal.state.documents import Roster, WorkList
from epochal.state.messages.requests import ResultCommitment
from epochal.state.wire import Blake3, ClientId, Sha256


@dataclass(frozen=True, slots=True)
class Ahead:
    """The next round: as it is if nothing more is lost, or, with `merge.delay`, as it will be.

    Attributes:
        roster: its roster; None if it is that of the round under way.
        is_promised: whether clients may train for it already.
    """

    roster_sha256: Sha256
    work_sha256: Sha256
    work: WorkList
    roster: Roster | None = None
    is_promised: bool = False


class EarlyCommitment(NamedTuple):
    """A client's commitment to a result of the next round, and the seconds from the start of this one until it came."""

    report: ResultCommitment
    at_s: float


@dataclass(frozen=True, slots=True)
class EagerStarts:
    """The starts from which clients may have trained for a round before it began.

    Attributes:
        replica_digest: of the replica two steps before the round's.
        results: each client's own result of the step between, which was applied; its outer step is the start.
    """

    replica_digest: Blake3
    results: Mapping[ClientId, Sha256]


@dataclass(frozen=True, slots=True)
class PromisedRound:
    """A round whose work was drawn as the one before it began.

    Attributes:
        commitments: the results to which clients are bound already. Times are negative: before the round.
        began_s: when each client could begin to train for it, in seconds after the round's start; 0 at most.
    """

    roster: Roster
    work: WorkList
    starts: EagerStarts
    commitments: Mapping[ClientId, EarlyCommitment] = field(default_factory=dict)
    began_s: Mapping[ClientId, float] = field(default_factory=dict)
