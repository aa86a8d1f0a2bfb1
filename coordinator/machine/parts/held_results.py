"""The results of a round: who is bound to which, and which are held and checked."""

from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import Annotated

from pydantic import Field

from epochal.coordinator.machine.parts.persistent_map import Mapped, added, joined, shared_set
from epochal.state.messages.requests import ResultCommitment
from epochal.state.weights import UsualNorm
from epochal.state.wire import Blake3, ClientId, Sha256


@dataclass(frozen=True, slots=True)
class HeldResults:
    """The results of a round.

    Attributes:
        usual: usual length of a result; None if it is not known.
        commitments: the result that each client is bound to.
        verified: the replica from which each held and checked result was trained, by client in order of arrival.
        norms: the length of each of those results.
        verified_bits: bit set of the clients with a verified result; not in snapshots (`Round`).
        digests: of the results that clients are bound to; not in snapshots.
    """

    usual: UsualNorm | None = None
    commitments: Mapped[ClientId, ResultCommitment] = field(default_factory=dict)
    verified: Mapped[ClientId, Blake3] = field(default_factory=dict)
    norms: Mapped[ClientId, float] = field(default_factory=dict)
    verified_bits: Annotated[int | None, Field(exclude=True)] = field(default=None, repr=False, compare=False)
    digests: Annotated[AbstractSet[Sha256] | None, Field(exclude=True)] = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.digests is None:
            committed = frozenset(Sha256(report.result_sha256) for report in self.commitments.values())
            object.__setattr__(self, "digests", shared_set(committed))

    def with_commitment(self, client_id: ClientId, report: ResultCommitment) -> "HeldResults":
        """Return the results with a client bound to its own."""
        assert self.digests is not None
        digests = joined(self.digests, Sha256(report.result_sha256))
        return replace(self, commitments=added(self.commitments, client_id, report), digests=digests)

    def with_verified(self, client_id: ClientId, replica: Blake3, norm: float, position: int) -> "HeldResults":
        """Return the results with a verified one, of the client at this position of the roster."""
        assert self.verified_bits is not None
        bits = self.verified_bits | 1 << position
        verified, norms = added(self.verified, client_id, replica), added(self.norms, client_id, norm)
        return replace(self, verified=verified, norms=norms, verified_bits=bits)
