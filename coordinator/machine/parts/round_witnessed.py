"""The attestations of a round's witnesses."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from epochal.state.messages.requests import Attestation
from epochal.state.wire import ClientId


@dataclass(frozen=True, slots=True)
class RoundWitnessed:
    """The attestations of a round's witnesses.

    Attributes:
        attestations: each witness's latest attestation, its bits limited to verified results.
        closing: the witnesses that attested in RoundWitness, when no further result can come.
    """

    attestations: Mapping[ClientId, Attestation] = field(default_factory=dict)
    closing: frozenset[ClientId] = frozenset()

    def attested(self, client_id: ClientId, attested: Attestation, *, is_closing: bool) -> "RoundWitnessed":
        """Return it with a witness's attestation; the same value if it is known."""
        closing = self.closing | {client_id} if is_closing else self.closing
        if self.attestations.get(client_id) == attested and closing == self.closing:
            return self
        return RoundWitnessed({**self.attestations, client_id: attested}, closing)

    def complete(self, held: int) -> frozenset[ClientId]:
        """Return the witnesses that attested every one of these results, a bit set of positions."""
        return frozenset(
            witness for witness, attested in self.attestations.items() if not held & ~attested.received_bits()
        )
