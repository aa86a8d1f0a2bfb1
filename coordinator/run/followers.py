"""Followers of a run's journal: they are called with everything that is kept, and nothing waits for them."""

from collections.abc import Iterable
from typing import Protocol

from epochal.coordinator.machine.instructions import Instruction
from epochal.coordinator.machine.records import Kept
from epochal.coordinator.proof.compaction import Fold


class Follower(Protocol):
    """A follower of one service's journal."""

    def take(self, instructions: Iterable[Instruction], kept: Kept) -> None:
        """Take in what the machine gave with a stimulus, and the record that holds it, in the journal's order."""

    def read_again(self) -> None:
        """Read the journal again, because it went back."""

    async def run(self) -> None:
        """Work until cancelled."""

    def fold(self, text: str) -> Fold:
        """Return the fold that was written as this text; a new one of an empty text. Raise `StoreFailed` if it cannot
        be read."""
