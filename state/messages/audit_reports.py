"""Audits of a run (`epochal audit`), as they are reported to its coordinator and kept."""

from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import fields as dataclass_fields
from typing import Annotated, Any

from pydantic import Field

from epochal.state.documents import Count, HexSha256
from epochal.state.wire_document import WireDocument

MAX_AUDIT_PROBLEMS = 20
MAX_AUDIT_CHARS = 500
"""Maximum length of a problem or a remark; longer ones are cut."""
MAX_AUDITED_COUNT = 2**53
"""Largest number in a report: every JSON reader represents it exactly."""

AuditedCount = Annotated[int, Field(ge=0, le=MAX_AUDITED_COUNT)]
AuditTexts = Annotated[
    tuple[Annotated[str, Field(max_length=MAX_AUDIT_CHARS)], ...], Field(max_length=MAX_AUDIT_PROBLEMS)
]


@dataclass(frozen=True, slots=True)
class AuditRecord(WireDocument):
    """The findings of an audit of the run (`POST …/audits`): the operator's word, which the coordinator does not check.

    Attributes:
        rounds: outcomes that were replayed.
        applied, duplicates, missing, quarantined, unapplied: batches, as `epochal audit` counts them.
        replay_identical: whether every published document was replayed to the same bytes.
        record_chain, replica_chain: hashes over all records, and over all outcomes with their replicas.
        blobs, wrong_blobs: blobs that the run relies on, and those of them that are missing or have other bytes.
        recomputed_steps: replicas that were computed again; None if none were.
        replicas_identical: whether all of those agree with the attested digests.
        problems, remarks: what is wrong, and what an operator should know although nothing is.
    """

    rounds: AuditedCount
    applied: AuditedCount
    duplicates: AuditedCount
    missing: AuditedCount
    quarantined: AuditedCount
    unapplied: AuditedCount
    replay_identical: bool
    record_chain: HexSha256
    replica_chain: HexSha256
    blobs: AuditedCount
    wrong_blobs: AuditedCount
    recomputed_steps: AuditedCount | None
    replicas_identical: bool | None
    problems: AuditTexts
    remarks: AuditTexts

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> "AuditRecord":
        """Return a record with these fields, in which texts are cut to what it holds; other fields are left out."""
        names = [field.name for field in dataclass_fields(cls)]
        texts = {
            name: tuple(text[:MAX_AUDIT_CHARS] for text in fields[name][:MAX_AUDIT_PROBLEMS])
            for name in ("problems", "remarks")
        }
        return cls(**({name: fields[name] for name in names} | texts))

    @property
    def passed(self) -> bool:
        """Whether no problem was found."""
        return not self.problems


@dataclass(frozen=True, slots=True)
class RecordedAudit(WireDocument):
    """An audit that was reported.

    Attributes:
        step: the last step that the run had applied when it was reported.
        recorded_s: when, in seconds since 1970 on the coordinator's clock.
    """

    report: AuditRecord
    step: Count
    recorded_s: float


@dataclass(frozen=True, slots=True)
class AuditHistory(WireDocument):
    """The audits that were reported last, in their order (`GET …/audits`)."""

    audits: tuple[RecordedAudit, ...]
