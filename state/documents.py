"""The documents that the coordinator publishes and all clients read.

The run document is small and changes; a roster, a work list, an outcome and a configuration are immutable and named by
the SHA-256 of their canonical JSON. They determine everything that a client must do in a round.
"""

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from epochal.state.intervals import BatchId, total_batches
from epochal.state.phase_names import RunState
from epochal.state.share_ceiling import PARTS
from epochal.state.wire import Blake3, ClientId, Seed, Sha256
from epochal.state.wire_document import WireDocument

DOCUMENT_FORMAT = 1
MAX_RUN_DOCUMENT_BYTES = 4096
MAX_REASON_CHARS = 240
MAX_SHARE = 1_000_000
"""Maximum number of batches that a client may claim to take in a round; such a claim bounds nothing."""
MAX_ROSTER = 100_000
MAX_REWINDS = 1_000
"""Maximum number of times that a run goes back."""
ATTEMPTS_OF_A_BRANCH = 1_000_000_000
"""Going back begins a new branch of a run, in which steps have the same numbers again. The attempts of branch `b` are
numbered from `b` times this on: so step and attempt name one round of the whole run, and no message about a round of an
earlier branch is taken for one about a round of this one. A round takes tenths of a second at least."""

HexId = Annotated[ClientId, Field(pattern=r"^[0-9a-f]{32}$")]
HexSha256 = Annotated[Sha256, Field(pattern=r"^[0-9a-f]{64}$")]
HexBlake3 = Annotated[Blake3, Field(pattern=r"^[0-9a-f]{64}$")]
HexSeed = Annotated[Seed, Field(pattern=r"^[0-9a-f]{64}$")]
Count = Annotated[int, Field(ge=0)]
HexNorm = Annotated[str, Field(pattern=r"^[0-7][0-9a-f]{15}$")]
HexFactor = Annotated[
    str,
    Field(
        pattern=r"^(3f800000|3f[0-7][0-9a-f]{5}|3[0-9a-e][0-9a-f]{6}|[12][0-9a-f]{7}"
        r"|0[1-9a-f][0-9a-f]{6}|00[89a-f][0-9a-f]{5})$"
    ),
]


def first_attempt(branch: int) -> int:
    """Return the number of the first attempt at each step of a branch."""
    return branch * ATTEMPTS_OF_A_BRANCH


def branch_of(attempt: int) -> int:
    """Return the number of the branch to which an attempt belongs."""
    return attempt // ATTEMPTS_OF_A_BRANCH


def tries_before(attempt: int) -> int:
    """Return the number of earlier attempts at the same step in the same branch."""
    return attempt % ATTEMPTS_OF_A_BRANCH


def first_beside(attempt: int) -> int:
    """Return the number of the first attempt at each step of the branch to which an attempt belongs."""
    return attempt - tries_before(attempt)


@dataclass(frozen=True, slots=True)
class RewindMark(WireDocument):
    """The last time that a run went back.

    Attributes:
        branch: number of the branch that began then; the run's first branch is 0.
        step: the replica from which it began.
        at_s: when, in seconds since 1970 on the coordinator's clock.
    """

    branch: Annotated[int, Field(ge=1, le=MAX_REWINDS)]
    step: Annotated[int, Field(ge=0)]
    at_s: float


@dataclass(frozen=True, slots=True)
class RosterEntry(WireDocument):
    """One client of a round.

    Attributes:
        share: its share of the work, in batches, beside those of the other clients; 0 for none in this round.
        proven: whether a result of it was applied before and, where results are verified and some client of the round
            has earned a round, it has too. If any client is proven, only such ones are witnesses.
    """

    client_id: HexId
    share: Count
    proven: bool = True


@dataclass(frozen=True, slots=True)
class Roster(WireDocument):
    """The clients of one round, sorted by client id; frozen when the round starts.

    Attributes:
        ceiling: the largest part of the round for one client, in millionths; None for the default
            (`state/share_ceiling.py`).
    """

    clients: Annotated[tuple[RosterEntry, ...], Field(max_length=MAX_ROSTER)]
    ceiling: Annotated[int, Field(ge=1, le=PARTS)] | None = None

    def electorate(self) -> tuple[ClientId, ...]:
        """Return the clients that may be witnesses: the proven ones, or all if none is proven.

        So nobody can outvote the clients that do the work with keys that cost nothing.
        """
        proven = tuple(entry.client_id for entry in self.clients if entry.proven)
        return proven or tuple(entry.client_id for entry in self.clients)


@dataclass(frozen=True, slots=True)
class IsolatedWork(WireDocument):
    """A suspected interval: the whole assignment of one client, which has not failed on it if there is such a client.

    Attributes:
        batch_id: the suspected batches.
        tried: the last clients that failed on it, oldest first.
    """

    batch_id: BatchId
    tried: tuple[HexId, ...]


@dataclass(frozen=True, slots=True)
class WorkList(WireDocument):
    """The work of one round: `isolated` intervals one client each, and `shared` ones split by share.

    `shared` holds carried intervals first, then at most one fresh interval that ends before the cursor.
    """

    isolated: tuple[IsolatedWork, ...]
    shared: tuple[BatchId, ...]

    def intervals(self) -> tuple[BatchId, ...]:
        """Return every interval of the round, isolated ones first."""
        return tuple(item.batch_id for item in self.isolated) + self.shared

    def isolated_batches(self) -> frozenset[BatchId]:
        """Return the intervals that are tried alone."""
        return frozenset(item.batch_id for item in self.isolated)

    def batch_count(self) -> int:
        """Return the number of batches in the round."""
        return total_batches(self.intervals())


@dataclass(frozen=True, slots=True)
class RoundAhead(WireDocument):
    """The next round if nothing of this one is lost: a hint to fetch data ahead, and nothing to train by.

    Its assignment seed is the `seed` of the round under way.

    Attributes:
        roster_sha256, work_sha256: digests of the roster and the work list that it would have.
    """

    roster_sha256: HexSha256
    work_sha256: HexSha256


@dataclass(frozen=True, slots=True)
class RoundHead(WireDocument):
    """The round under way, as the run document describes it. `(step, attempt)` names the round.

    Attributes:
        step: counts rounds that were applied, from 1; the round trains from replica `step − 1`.
        attempt: with the step it names the round: number of earlier attempts at this step, from the first number of
            the run's branch on (`ATTEMPTS_OF_A_BRANCH`).
        height: the round's number within its epoch, from 0, attempts included.
        seed: 32 random bytes; keys the elections, the turn of clients that are not proven, and the next assignment.
        assignment_seed: keys the assignment of proven clients: the `seed` of the round before, or of this one if it is
            the run's first.
        cursor: the first batch number that no work list up to and including this round contains.
        batches: number of batches in the work list.
        roster_sha256, roster_count: the roster's digest, and its number of clients.
        work_sha256: the work list's digest.
        witness_count: number of witnesses elected from the roster.
        usual_norm, usual_steps: usual length of a result of so many optimizer steps, as the last applied round shows it
            (`state/weights.py`); None if none does.
    """

    step: Annotated[int, Field(ge=1)]
    attempt: Count
    height: Count
    seed: HexSeed
    assignment_seed: HexSeed
    cursor: Count
    batches: Count
    roster_sha256: HexSha256
    roster_count: Count
    work_sha256: HexSha256
    witness_count: Count
    usual_norm: Annotated[float, Field(gt=0)] | None = None
    usual_steps: Annotated[int, Field(ge=1)] = 1


@dataclass(frozen=True, slots=True)
class ReplicaRef(WireDocument):
    """Blobs, held by the coordinator, that lead to the replica after `step` outcomes.

    Attributes:
        blob_sha256: digest of its one blob; with several parts that of their manifest (`state/checkpoint_parts.py`).
        size_bytes: of all parts together.
        replica_digest: of the replica.
        part_count: number of its parts.
    """

    step: Count
    blob_sha256: HexSha256
    size_bytes: Annotated[int, Field(ge=1)]
    replica_digest: HexBlake3
    part_count: Annotated[int, Field(ge=1)] = 1


@dataclass(frozen=True, slots=True)
class CheckpointRef(ReplicaRef):
    """A verified checkpoint: the replica itself."""

    @property
    def purpose(self) -> str:
        """Its name in messages."""
        return f"the checkpoint of step {self.step}"


@dataclass(frozen=True, slots=True)
class UpdateRef(ReplicaRef):
    """The update that takes a step, which every replica of the step before applies (`state/updates.py`)."""

    step: Annotated[int, Field(ge=1)]

    @property
    def purpose(self) -> str:
        """Its name in messages."""
        return f"the update of step {self.step}"


@dataclass(frozen=True, slots=True)
class KeptCheckpoints(WireDocument):
    """The verified checkpoints that the coordinator holds, the newest last."""

    checkpoints: tuple[CheckpointRef, ...]


@dataclass(frozen=True, slots=True)
class RunDocument(WireDocument):
    """The run's published state, under `MAX_RUN_DOCUMENT_BYTES` however many clients there are.

    Attributes:
        lineage: changes when a run is restored from a backup or rewound; with `version` it names the document.
        version: grows by one whenever the published content changes.
        phase_started_s, phase_ends_s: seconds on the coordinator's clock; the end is an upper bound or None.
        reason: why the phase was entered.
        step: the next step to be applied; the agreed replica is `step − 1`.
        cursor: the next fresh batch number.
        data_indices_applied: data indices that outcomes have applied.
        round: the round under way, in RoundTrain and RoundWitness; it does not change while it is.
        ahead: the provisional next round, then; None if it is missing.
        last_outcome_sha256: digest of the outcome of step `step − 1`; None when no outcome is kept for it.
        update: the update of step `step − 1`; None while it is not made, or when none is kept for it.
        rebuild: replicas disagreed or could not be attested: rebuild from the checkpoint and the outcomes.
        checkpointer: the client that must publish a checkpoint now.
        checkpointing_step: the replica that it must hold: `step − 1`, or an earlier one while rounds continue.
        checkpoint: the last verified checkpoint.
        config_sha256: digest of the configuration (`GET …/config/{sha256}`).
        model_sha256: digest of the model document (`GET …/model/{sha256}`); None before the first checkpoint.
        cold_start_step: the step at which the run last started cold, and from which the learning rate grows
            (`epochal.state.schedule`); None before its first round.
        data_fingerprint: fingerprint of the dataset that every client must have, once it is known.
        coordinator_key: the coordinator's raw Ed25519 public key, hex; it signs tokens and tickets.
        rewound: the last time that an operator took the run back to a checkpoint; None if that never happened.
    """

    format: Annotated[int, Field(ge=DOCUMENT_FORMAT, le=DOCUMENT_FORMAT)]
    run_id: str
    lineage: str
    version: Count
    run_state: RunState
    phase_started_s: float
    phase_ends_s: float | None
    reason: Annotated[str, Field(max_length=MAX_REASON_CHARS)]
    epoch: Count
    step: Annotated[int, Field(ge=1)]
    total_steps: Annotated[int, Field(ge=1)]
    cursor: Count
    epoch_start_data_index: Count
    data_indices_applied: Count
    carried_batches: Count
    quarantined_batches: Count
    round: RoundHead | None
    last_outcome_sha256: HexSha256 | None
    rebuild: bool
    checkpointer: HexId | None
    checkpointing_step: Count | None
    checkpoint: CheckpointRef | None
    config_sha256: HexSha256
    model_sha256: HexSha256 | None
    cold_start_step: Count | None
    data_fingerprint: str | None
    coordinator_key: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    ahead: RoundAhead | None = None
    update: UpdateRef | None = None
    rewound: RewindMark | None = None


@dataclass(frozen=True, slots=True)
class OutcomeEntry(WireDocument):
    """One result that a quorum attested: who made it, over which batches, the SHA-256 of its bytes and their number.

    Attributes:
        norm: the result's length √Σx² as a float64, its bits in hex, the most significant first.
        factor: with which its weight in the merge is multiplied (`state/weights.py`): a float32 from 2⁻¹²⁶ to 1, its
            bits in hex likewise.
    """

    client_id: HexId
    assignment: tuple[BatchId, ...]
    result_sha256: HexSha256
    size_bytes: Annotated[int, Field(ge=1)]
    norm: HexNorm
    factor: HexFactor


@dataclass(frozen=True, slots=True)
class Outcome(WireDocument):
    """The results whose mean every replica applies for one step; never empty.

    The entries are in the order in which the results were verified, in which they are summed up.

    Attributes:
        replica_digest: the digest of replica `step − 1`, on which a quorum agreed.
    """

    run_id: str
    step: Annotated[int, Field(ge=1)]
    attempt: Count
    seed: HexSeed
    roster_sha256: HexSha256
    work_sha256: HexSha256
    replica_digest: HexBlake3
    entries: Annotated[tuple[OutcomeEntry, ...], Field(min_length=1)]


OWN_OUTCOME_HEADER = "Epochal-Own-Outcome"
"""Header with which a member is sent a run document, if its last outcome is kept: the member's `OwnOutcome` as JSON."""


@dataclass(frozen=True, slots=True)
class OwnOutcome(WireDocument):
    """As much of an outcome as one member needs to apply its update: its length does not grow with the members.

    Attributes:
        outcome_sha256: digest of the outcome.
        replica_digest: the outcome's.
        result_sha256: of this member's entry in it; None if it has none.
        state_sha256: the inner state with which its next round may begin, where the run asks for such; else None.
        challenged: inner states of which it is to upload the files now.
    """

    run_id: str
    step: Annotated[int, Field(ge=1)]
    outcome_sha256: HexSha256
    replica_digest: HexBlake3
    result_sha256: HexSha256 | None
    state_sha256: HexSha256 | None = None
    challenged: tuple[HexSha256, ...] = ()
