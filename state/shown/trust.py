"""The evidence for and against trusting a run (`GET …/trust`)."""

from collections.abc import Mapping
from dataclasses import dataclass

from epochal.state.documents import Count, HexSha256
from epochal.state.messages.audit_reports import RecordedAudit
from epochal.state.messages.member_rows import RefusalCount
from epochal.state.messages.requests import FailedBatches
from epochal.state.wire_document import WireDocument

MAX_SHOWN_QUARANTINED = 64


@dataclass(frozen=True, slots=True)
class Vouched(WireDocument):
    """The last replica on whose digest a quorum of witnesses agreed.

    Attributes:
        replica_step: the replica; it was trained from in the next step.
        replica_digest: of it.
        vouched: number of witnesses that attested this digest.
        differed: number of those that attested another one.
        witnesses, quorum: number of elected witnesses, and of those that had to agree.
        at_s: when the round ended, in seconds since 1970 on the coordinator's clock.
    """

    replica_step: Count
    replica_digest: HexSha256
    vouched: Count
    differed: Count
    witnesses: Count
    quorum: Count
    at_s: float


@dataclass(frozen=True, slots=True)
class TrustView(WireDocument):
    """A run's checks, and what was refused.

    Attributes:
        audit: the last one that was reported; None if none was.
        vouched: None before the first applied round, or if it is not known any more.
        checkpoint_step, checkpoint_digest: the last verified checkpoint, and its replica's digest.
        quarantined_batches: number of batches that left the run.
        quarantined: the first of them, with the clients that failed on them and why.
        names: of those clients, as far as they are known.
        refusals: results and checkpoints that broke a rule, and failures that clients reported, by kind, since the run
            began.
        refused_requests: requests that this coordinator refused, by kind, since `refused_since_s`.
        refused_since_s: when this coordinator started, in seconds since 1970.
        is_vouched_known: whether `vouched` says all that there is: False where rounds were applied, and what is kept of
            the journal does not hold the last of them.
    """

    run_id: str
    lineage: str
    version: Count
    at_s: float
    audit: RecordedAudit | None
    vouched: Vouched | None
    checkpoint_step: Count | None
    checkpoint_digest: HexSha256 | None
    quarantined_batches: Count
    quarantined: tuple[FailedBatches, ...]
    names: Mapping[str, str]
    refusals: tuple[RefusalCount, ...]
    refused_requests: tuple[RefusalCount, ...]
    refused_since_s: float
    is_vouched_known: bool = True
