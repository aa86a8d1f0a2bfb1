"""The identity of a run: its state file, its names, and the proof with which its journal begins."""

from dataclasses import dataclass, replace
from typing import Any

from epochal.coordinator.machine.stimuli import RULES_VERSION
from epochal.state.config.state_file import StateFile
from epochal.state.wire import Sha256, document_digest
from epochal.state.wire_document import WireDocument

LINEAGE_CHARACTERS = 32


@dataclass(frozen=True, slots=True)
class CompactedJournal:
    """The part of the journal in whose place a proof is kept (`coordinator/proof/journal_proof.py`).

    Attributes:
        segment_count: number of segments that the proof covers, from the first.
        proof_sha256: digest of the proof's bytes.
    """

    segment_count: int
    proof_sha256: Sha256

    def unless_shorter_than(self, known: "CompactedJournal | None") -> "CompactedJournal":
        """Return this one; the known one if that covers as many segments."""
        return self if known is None or self.segment_count > known.segment_count else known


@dataclass(frozen=True, slots=True)
class RunIdentity(WireDocument):
    """The identity of a run.

    Attributes:
        state_file: as it was read last, with all changes that are announced.
        config_sha256: the digest of the state file as clients see it.
        lineage: 16 random bytes in hex, anew whenever later documents become void.
        coordinator_key: the coordinator's raw Ed25519 public key in hex.
        compacted: the part of the journal that is kept as a proof; None if all of it is kept.
        rules_version: the rules of the machine by which the run was made.
        applied_count: number of changes in force.
        in_force: the state file with these; None without any.
    """

    state_file: StateFile
    config_sha256: Sha256
    lineage: str
    coordinator_key: str
    compacted: CompactedJournal | None = None
    rules_version: int = RULES_VERSION
    applied_count: int = 0
    in_force: StateFile | None = None

    def with_compacted(self, found: CompactedJournal) -> "RunIdentity":
        """Return the identity with this part of the journal as a proof; the same if a longer one is known."""
        compacted = found.unless_shorter_than(self.compacted)
        return self if compacted is self.compacted else replace(self, compacted=compacted)

    def with_state_file(self, state_file: StateFile) -> "RunIdentity":
        """Return the identity with an edited state file, and the digest of that file as clients see it."""
        found = replace(self, state_file=state_file, config_sha256=document_digest(config_json(state_file)))
        return found._with_applied(self.applied_count)

    def at(self, step: int) -> "RunIdentity":
        """Return the identity with the changes up to a step in force; the same if they are already."""
        count = sum(change.at_step <= step for change in self.state_file.changes)
        return self if count == self.applied_count else self._with_applied(count)

    def back_at(self, step: int) -> "RunIdentity":
        """Return the identity of a run that goes back to a step: later changes wait, with their mixes."""
        changes = tuple(
            change.model_copy(update={"first_batch": None}) if change.at_step > step else change
            for change in self.state_file.changes
        )
        return self.with_state_file(self.state_file.model_copy(update={"changes": changes})).at(step)

    def _with_applied(self, count: int) -> "RunIdentity":
        file = self.state_file
        return replace(self, applied_count=count, in_force=file.at(file.changes[count - 1].at_step) if count else None)


def lineage_of(seed: str) -> str:
    """Return a lineage, 16 random bytes in hex, of a fresh seed."""
    return seed[:LINEAGE_CHARACTERS]


def config_json(state_file: StateFile) -> Any:
    """Return the state file as clients see it, in plain JSON: without phase, progress and the coordinator's own."""
    of_blobs = {"store", "origins", "checker_wait_s"}
    own = {"run_state": True, "progress": True, "access": True, "run": True, "notify": True}
    shown: dict[str, Any] = state_file.model_dump(mode="json", exclude={**own, "blobs": of_blobs})
    blobs = state_file.blobs
    origins = blobs.origins or (() if blobs.store is None else (blobs.store.origin,))
    if origins:
        shown["blobs"]["origins"] = list(origins)
    return shown
