"""The ledger of a run, counted from its journal and not taken from the machine: what was applied, and two hash chains.

The chain of the records is a hash over every record so far, in order, and so over every state version and the digest of
every document that was published. The chain of the replicas is one over every outcome with its replica's digest. Both
are the same whether they are counted from the whole journal, or on from a proof of its beginning.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from epochal.coordinator.machine.instructions import Instruction, OutcomeDecided, Recorded, Rewound
from epochal.coordinator.machine.journal_records import JournalRecord
from epochal.coordinator.machine.run import Run
from epochal.coordinator.machine.stimuli import EvaluationReported
from epochal.state.documents import Outcome
from epochal.state.intervals import BatchId, coalesce, subtract, total_batches
from epochal.state.text.amounts import counted
from epochal.state.wire import Blake3, Sha256, document_digest, sha256_hex
from epochal.state.wire_document import WireDocument

RECORD_CHAIN_START = sha256_hex(b"epochal/records/v1")
REPLICA_CHAIN_START = sha256_hex(b"epochal/replicas/v1")
_REWOUND = hashlib.sha256(b"epochal/rewound/v1").digest()
_NUMBER_BYTES = 8


def _link(chain: Sha256, number: int, *digests: bytes) -> Sha256:
    """Return the SHA-256 of a chain so far, a number (8 bytes, little-endian) and digests."""
    parts = bytes.fromhex(chain) + number.to_bytes(_NUMBER_BYTES, "little") + b"".join(digests)
    return Sha256(hashlib.sha256(parts).hexdigest())


def with_outcome(chain: Sha256, outcome: Outcome) -> Sha256:
    """Return the chain of the replicas with one more outcome."""
    digests = (bytes.fromhex(outcome.replica_digest), bytes.fromhex(document_digest(outcome)))
    return _link(chain, outcome.step, *digests)


def with_rewind(chain: Sha256, step: int) -> Sha256:
    """Return the chain of the replicas after the run went back to a step; what it took back stays in the chain."""
    return _link(chain, step, _REWOUND)


@dataclass
class Ledger(WireDocument):
    """Counts of a journal, from its first record on.

    Attributes:
        first_batch, first_step: the run's cursor and step when the journal began.
        rounds: number of outcomes of the run's present branch.
        last_step: step of the last of them; before one, the step before the first.
        applied: the batches of those that no rewind takes back any more, as intervals that are disjoint after `settle`.
        late: the batches of each later one, with its step.
        applied_count: the number of both, counted with repetitions.
        record_chain: hash over the records.
        evaluations: number of evaluations that were reported.
        replica_chain: hash over the outcomes, each with the digest of the replica from which it was trained.
        rewinds, dropped_rounds: number of times that the run went back, and of outcomes that this took back.
    """

    first_batch: int
    first_step: int
    rounds: int = 0
    last_step: int = 0
    applied: list[BatchId] = field(default_factory=list)
    late: list[tuple[int, tuple[BatchId, ...]]] = field(default_factory=list)
    applied_count: int = 0
    record_chain: Sha256 = RECORD_CHAIN_START
    replica_chain: Sha256 = REPLICA_CHAIN_START
    evaluations: int = 0
    rewinds: int = 0
    dropped_rounds: int = 0

    @classmethod
    def begin(cls, opening: Run) -> "Ledger":
        """Return the ledger of a journal that begins with this run."""
        return cls(opening.work.cursor, opening.progress.step, last_step=opening.progress.step - 1)

    def take_records(self, records: Iterable[JournalRecord]) -> None:
        """Add records to their chain."""
        for record in records:
            self.record_chain = _link(self.record_chain, record.sequence, hashlib.sha256(record.body).digest())

    def take(self, instructions: Sequence[Instruction]) -> list[Outcome]:
        """Add the outcomes among a stimulus's instructions, and count its evaluations; return the outcomes."""
        self.evaluations += sum(_is_evaluation(instruction) for instruction in instructions)
        for instruction in instructions:
            if isinstance(instruction, Rewound):
                self._go_back(instruction.mark.step)
        outcomes = [
            instruction.outcome
            for instruction in instructions
            if isinstance(instruction, OutcomeDecided) and instruction.outcome is not None
        ]
        for outcome in outcomes:
            batches = tuple(batch for entry in outcome.entries for batch in entry.assignment)
            self.late.append((outcome.step, batches))
            self.applied_count += total_batches(batches)
            self.rounds, self.last_step = self.rounds + 1, outcome.step
            self.replica_chain = with_outcome(self.replica_chain, outcome)
        return outcomes

    def _go_back(self, step: int) -> None:
        """Take back the outcomes after a step, as far as they may be."""
        dropped = [batches for number, batches in self.late if number > step]
        self.late = [one for one in self.late if one[0] <= step]
        self.applied_count -= sum(map(total_batches, dropped))
        self.rounds, self.last_step = self.rounds - len(dropped), step
        self.rewinds, self.dropped_rounds = self.rewinds + 1, self.dropped_rounds + len(dropped)
        self.replica_chain = with_rewind(self.replica_chain, step)

    def settle(self, step: int | None = None) -> None:
        """Make the outcomes up to a step final, all with None: no rewind takes them back any more."""
        final = [batches for number, batches in self.late if step is None or number <= step]
        self.late = [] if step is None else [one for one in self.late if one[0] > step]
        self.applied = list(coalesce([*self.applied, *(batch for batches in final for batch in batches)]))

    def once(self) -> tuple[BatchId, ...]:
        """Return all applied batches as disjoint intervals, in order."""
        return coalesce([*self.applied, *(batch for _, batches in self.late for batch in batches)])


@dataclass(frozen=True, slots=True)
class Balance:
    """The batches below a run's cursor, by their fate: each must have one. Numbers of batches.

    Attributes:
        applied: those that were applied, each counted once.
        duplicates: those that were applied more than once, by each time more.
        missing: those below the cursor that have no fate.
        quarantined, skipped, unapplied: as `AuditReport`.
        problems: descriptions of what is wrong.
    """

    applied: int
    duplicates: int
    missing: int
    quarantined: int
    skipped: int
    unapplied: int
    problems: tuple[str, ...]


def balance(ledger: Ledger, run: Run) -> Balance:
    """Return whether each batch below the run's cursor was applied once, or is still to be."""
    under_way = () if run.round is None else run.round.tasks.work.shared
    unapplied = (*run.work.carried, *(suspect.batch_id for suspect in run.work.suspects), *under_way)
    quarantined = tuple(item.batch_id for item in run.work.quarantined)
    once, first = ledger.once(), ledger.first_batch
    passed_over = (*quarantined, *run.work.skipped)
    duplicates = ledger.applied_count - total_batches(once)
    whole = (BatchId(first, run.work.cursor - 1),) if run.work.cursor > first else ()
    missing = subtract(whole, (*once, *unapplied, *passed_over))
    beyond = subtract(once, whole)
    both = total_batches(once) - total_batches(subtract(once, (*unapplied, *passed_over)))
    problems = []
    if duplicates:
        problems.append(f"applied more than once: {counted(duplicates, 'batch', 'batches')}")
    if missing:
        problems.append(f"missing: {counted(total_batches(missing), 'batch', 'batches')}, from {missing[0]} on")
    if beyond:
        problems.append(f"batches {beyond[0]} were applied although no work list contained them")
    if both:
        problems.append(f"applied and also carried, quarantined or skipped: {counted(both, 'batch', 'batches')}")
    return Balance(
        total_batches(once),
        duplicates,
        total_batches(missing),
        total_batches(quarantined),
        total_batches(run.work.skipped),
        total_batches(unapplied),
        tuple(problems),
    )


def known_digests(run: Run) -> Mapping[int, Blake3]:
    """Return the digests of replicas that a run knows, by step: of its checkpoints, and as its outcomes attest."""
    attested = {outcome.step - 1: outcome.replica_digest for outcome in run.models.outcomes.values()}
    return attested | {checkpoint.step: checkpoint.replica_digest for checkpoint in run.models.checkpoints}


def _is_evaluation(instruction: Instruction) -> bool:
    return isinstance(instruction, Recorded) and isinstance(instruction.stimulus, EvaluationReported)
