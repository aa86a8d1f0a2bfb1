"""The data on which a run is agreed, and what its members have (`coordinator/machine/datasets.py`)."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from epochal.state.dataset_descriptions import DatasetDescription
from epochal.state.wire_document import WireDocument

MAX_DESCRIBED_DATASETS = 8
"""Maximum number of datasets, besides the run's, of which a description is kept."""


@dataclass(frozen=True, slots=True)
class AgreedData(WireDocument):
    """The data of a run.

    Attributes:
        fingerprint: of the data on which the run is agreed now; None if it is not.
        pin: the fingerprint that the operator's command pinned.
        votes: number of members with each dataset, by fingerprint, in the order of their turns.
        turns: number of turns in which nobody delivered.
        datasets: descriptions of some of them, by fingerprint.
    """

    fingerprint: str | None = None
    pin: str | None = None
    votes: Mapping[str, int] = field(default_factory=dict)
    turns: int = 0
    datasets: Mapping[str, DatasetDescription] = field(default_factory=dict)

    def with_vote(self, before: str | None, after: str | None) -> "AgreedData":
        """Return the data after a member's vote changed from one fingerprint to another; None is no vote."""
        votes = dict(self.votes)
        for fingerprint, change in ((before, -1), (after, 1)):
            if fingerprint is not None:
                votes[fingerprint] = votes.get(fingerprint, 0) + change
                if not votes[fingerprint]:
                    del votes[fingerprint]
        return replace(self, votes=votes)

    def pinned(self, fingerprint: str | None) -> "AgreedData":
        """Return the data with this pin; the same value if it has it."""
        return self if fingerprint == self.pin else replace(self, pin=fingerprint)

    def agreed_on(self, fingerprint: str | None) -> "AgreedData":
        """Return the data, agreed on these; the same value if they were before."""
        return self if fingerprint == self.fingerprint else replace(self, fingerprint=fingerprint)

    def after_turn(self) -> "AgreedData":
        """Return the data after a turn in which nobody delivered: the agreed ones wait behind all others."""
        votes = dict(self.votes)
        if self.fingerprint in votes:
            votes[self.fingerprint] = votes.pop(self.fingerprint)
        return replace(self, votes=votes, turns=self.turns + 1)

    def in_turn(self, needed: int) -> str | None:
        """Return the data whose turn it is; None in the first turn, or while too few have the same, if there is a tie.

        Args:
            needed: the number of members that must have data whose turn it is.
        """
        waiting = (fingerprint for fingerprint, count in self.votes.items() if self.turns and count >= needed)
        most = max(self.votes.values(), default=None)
        found = [fingerprint for fingerprint, count in self.votes.items() if count == most]
        return next(waiting, found[0] if len(found) == 1 else None)

    def described(self, fingerprint: str, dataset: DatasetDescription) -> "AgreedData":
        """Return the data with the first or a fuller description of a dataset, within the bound."""
        known = self.datasets.get(fingerprint)
        if known is not None and (known.files or not dataset.files):
            return self
        agreed = self.fingerprint
        kept = {name: found for name, found in self.datasets.items() if name in self.votes or name == agreed}
        others = len(kept.keys() - {fingerprint, agreed})
        if fingerprint != agreed and others >= MAX_DESCRIBED_DATASETS:
            return self
        return replace(self, datasets={**kept, fingerprint: dataset})
