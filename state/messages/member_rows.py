"""The members of a run, as they are shown: as rows, as columns, and one with its rounds.

Names, versions and trainers are a client's own words, and so are its times, tokens, loss, GPUs and transferred bytes:
they are shown, and nothing relies on them.
"""

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Annotated

from pydantic import Field

from epochal.state.documents import Count, HexId
from epochal.state.intervals import BatchId
from epochal.state.messages.history_rows import ClientFigures
from epochal.state.wire_document import WireDocument

MAX_MEMBERS_GONE = 1_000
"""Maximum number of former members in a page: those that left last."""
MAX_REFUSALS_TOLD = 8
"""Number of a member's last refusals and failures that are kept with their words."""


@dataclass(frozen=True, slots=True)
class MemberFigures(WireDocument):
    """A member's row: the present, and its part of the run since it was first seen.

    Attributes:
        name, software, trainer: its own words; "" where it says nothing.
        ready: whether it holds the model and the run's data, and does not rest.
        in_roster: whether it has a part in the round under way.
        ahead_step: step of the next round, if it trains, or has trained, for that one already; else None.
        share: number of batches that it has in the round under way.
        part: of the batches of the round under way, those that it has; 0 to 1.
        factor: for how much its result counted in the last outcome, if that was for less than its batches; else None.
        claim: the most batches that it takes in a round, as it says; `MAX_SHARE` for as many as it is fast enough for.
        missed: missed rounds that it has not made up for.
        last_miss: why it missed a round last; "" if it has missed none.
        rest_s: seconds for which it still gets no work, because it missed too many rounds; None if it gets work.
        silent_s: seconds since it was last heard, or since it left.
        joined_s: when it joined first since the last time that it left, in seconds since 1970; None if that is not
            known, because it joined before a version that notes it.
        left: why it left ("withdrew", "fell silent", …); "" of a present member.
        applied, lost: rounds of which its result was applied, and rounds with work of it that was not.
        tokens: of the batches of its applied results, at the run's sequence length.
        tokens_per_s: tokens that it trained on in its last rounds, per second in its trainer, as it says; None if
            nothing is known, as for the rest.
        last_loss: of its last result, in nats per token.
        gpu_memory_bytes, gpu_memory_total_bytes, gpu_utilisation: of its GPUs, as it said last in its last rounds; see
            `ClientFigures`.
        data_wait: part of its trainer's time in its last rounds for which it waited for data, from 0 to 1.
        data_wait_s: seconds for which its trainer waited for data, in all.
        train_s: median of the seconds in its trainer, over its last rounds.
        result_bytes: size of its delivered results.
        uploaded_bytes, downloaded_bytes: that it says it has sent and received for its rounds.
    """

    client_id: HexId
    name: str = ""
    software: str = ""
    trainer: str = ""
    ready: bool = False
    in_roster: bool = False
    ahead_step: Count | None = None
    share: float = 0.0
    part: float = 0.0
    factor: float | None = None
    claim: Count = 0
    missed: Count = 0
    last_miss: str = ""
    rest_s: float | None = None
    silent_s: float = 0.0
    joined_s: float | None = None
    left: str = ""
    applied: Count = 0
    lost: Count = 0
    tokens: Count = 0
    tokens_per_s: float | None = None
    last_loss: float | None = None
    data_wait: float | None = None
    data_wait_s: float = 0.0
    train_s: float | None = None
    result_bytes: Count = 0
    uploaded_bytes: Count | None = None
    downloaded_bytes: Count | None = None
    gpu_memory_bytes: Count | None = None
    gpu_memory_total_bytes: Count | None = None
    gpu_utilisation: float | None = None


@dataclass(frozen=True, slots=True)
class MemberColumns(WireDocument):
    """Members as a list of values for each field of `MemberFigures`; all lists are of one length."""

    client_id: tuple[HexId, ...]
    name: tuple[str, ...]
    software: tuple[str, ...]
    trainer: tuple[str, ...]
    ready: tuple[bool, ...]
    in_roster: tuple[bool, ...]
    ahead_step: tuple[Count | None, ...]
    share: tuple[float, ...]
    part: tuple[float, ...]
    factor: tuple[float | None, ...]
    claim: tuple[Count, ...]
    missed: tuple[Count, ...]
    last_miss: tuple[str, ...]
    rest_s: tuple[float | None, ...]
    silent_s: tuple[float, ...]
    joined_s: tuple[float | None, ...]
    left: tuple[str, ...]
    applied: tuple[Count, ...]
    lost: tuple[Count, ...]
    tokens: tuple[Count, ...]
    tokens_per_s: tuple[float | None, ...]
    last_loss: tuple[float | None, ...]
    data_wait: tuple[float | None, ...]
    data_wait_s: tuple[float, ...]
    train_s: tuple[float | None, ...]
    result_bytes: tuple[Count, ...]
    uploaded_bytes: tuple[Count | None, ...]
    downloaded_bytes: tuple[Count | None, ...]
    gpu_memory_bytes: tuple[Count | None, ...]
    gpu_memory_total_bytes: tuple[Count | None, ...]
    gpu_utilisation: tuple[float | None, ...]

    @classmethod
    def of(cls, rows: Iterable[MemberFigures]) -> "MemberColumns":
        """Return rows as columns."""
        kept = list(rows)
        return cls(*(tuple(getattr(row, name) for row in kept) for name in MEMBER_FIGURES))

    def rows(self) -> list[MemberFigures]:
        """Return the columns as rows. Raise `ValueError` unless all columns are of one length."""
        return [MemberFigures(*row) for row in zip(*(getattr(self, name) for name in MEMBER_FIGURES), strict=True)]


MEMBER_FIGURES = tuple(found.name for found in fields(MemberFigures))
"""Names of the fields of a row, in their order."""


@dataclass(frozen=True, slots=True)
class MembersPage(WireDocument):
    """All members of a run (`GET …/members`).

    Attributes:
        at_s: when this was made, in seconds since 1970 on the coordinator's clock.
        version: of the run document at that time.
        rounds: number of the last rounds by which speeds and medians are: those of which each client's figures are
            held.
        members: all of them, in the order in which they joined.
        gone: those that left last, the latest first; at most `MAX_MEMBERS_GONE`.
    """

    run_id: str
    lineage: str
    version: Count
    at_s: float
    rounds: Count
    members: MemberColumns
    gone: MemberColumns


@dataclass(frozen=True, slots=True)
class MemberRound(WireDocument):
    """A member's part of one of the last rounds. See `RoundFigures` for the fields that both have."""

    number: Count
    epoch: Count
    step: Count
    attempt: Count
    started_s: float
    ended_s: float
    figures: ClientFigures


@dataclass(frozen=True, slots=True)
class RefusalTold(WireDocument):
    """A result of a member that broke a rule, or a failure that it reported.

    Attributes:
        kind: `result-invalid`, `checkpoint-invalid`, or the kind of the failure.
        detail: the rule, or the member's own words.
        step: of the round, or of the checkpoint.
        at_s: when the round ended, or when it was noted, in seconds since 1970 on the coordinator's clock.
    """

    kind: str
    detail: Annotated[str, Field(max_length=240)]
    step: Count
    at_s: float


@dataclass(frozen=True, slots=True)
class RefusalCount(WireDocument):
    """Number of refusals of one kind."""

    kind: str
    count: Count


@dataclass(frozen=True, slots=True)
class MemberDetail(WireDocument):
    """One member, present or former (`GET …/members/{client_id}`).

    Attributes:
        figures: its row.
        rounds: its part of the last rounds of which each client's figures are held, the oldest first.
        refusals: of its results, checkpoints and rounds, by kind, since the run began.
        last_refusals: the last of them, the latest last; at most `MAX_REFUSALS_TOLD`.
        quarantined: batches that left the run, and on which it was among those that failed.
    """

    run_id: str
    lineage: str
    version: Count
    at_s: float
    figures: MemberFigures
    rounds: tuple[MemberRound, ...]
    refusals: tuple[RefusalCount, ...]
    last_refusals: tuple[RefusalTold, ...]
    quarantined: tuple[BatchId, ...]
