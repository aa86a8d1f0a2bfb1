"""The figures of each member since it was first seen: a part of the projection, and a fold like it.

It is folded from the machine's instructions about members and rounds; the run holds no part of it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from epochal.coordinator.machine.instructions import CheckpointRefused, EndedRound, MembershipChanged
from epochal.coordinator.machine.parts.persistent_map import plain
from epochal.state.documents import Count, Outcome
from epochal.state.intervals import total_batches
from epochal.state.messages.history_rows import MAX_DETAIL_CHARS, RoundDetail
from epochal.state.messages.member_rows import MAX_REFUSALS_TOLD, RefusalCount, RefusalTold
from epochal.state.weights import number_of
from epochal.state.wire import ClientId
from epochal.state.wire_document import WireDocument

MAX_KNOWN_MEMBERS = 32_768
"""Maximum number of clients of which figures are kept; beyond, those are forgotten that left longest ago."""
RESULT_INVALID = "result-invalid"
CHECKPOINT_INVALID = "checkpoint-invalid"
LEFT = frozenset({"withdrew", "fell silent", "ejected", "convicted", "left the finished run", "lost its access"})
"""Changes by which a client is a member no longer."""
JOINED = frozenset({"joined", "joined again"})
"""Changes by which a process is a member."""


@dataclass(slots=True)
class KnownMember(WireDocument):
    """A client's figures, while they are counted and as they are kept. See `MemberFigures` for what both have.

    Attributes:
        refusals: of its results, checkpoints and rounds, by kind.
        last_refusals: the last of them, at most `MAX_REFUSALS_TOLD`, the latest last.
        last_loss: of its last result in a round that was applied, since it is a member.
        batches: of its applied results.
        weighed_tokens: tokens of its applied results, each times the factor with which it counted.
        first_step, last_step: of its first and last applied result; None before one.
    """

    client_id: ClientId
    name: str = ""
    software: str = ""
    trainer: str = ""
    joined_s: float | None = None
    left: str = ""
    left_s: float | None = None
    applied: Count = 0
    lost: Count = 0
    tokens: Count = 0
    data_wait_s: float = 0.0
    result_bytes: Count = 0
    uploaded_bytes: Count | None = None
    downloaded_bytes: Count | None = None
    refusals: dict[str, int] = field(default_factory=dict)
    last_refusals: tuple[RefusalTold, ...] = ()
    last_loss: float | None = None
    batches: Count = 0
    weighed_tokens: float = 0.0
    first_step: Count | None = None
    last_step: Count | None = None


class MemberBook:
    """Every client that is or was a member, as far as they are kept."""

    def __init__(self, records: Iterable[KnownMember] = ()) -> None:
        self.names: dict[ClientId, str] = {}
        """Of the clients that have chosen one."""
        self._known: dict[ClientId, KnownMember] = {}
        """The present members first, in the order in which they came, mixed with those that left, the latest last."""
        for record in records:
            self._known[record.client_id] = record
            self._note_name(record.client_id, record.name)

    def get(self, client_id: ClientId) -> KnownMember | None:
        """Return what is known of a client."""
        return self._known.get(client_id)

    def gone(self, most: int) -> list[KnownMember]:
        """Return the clients that left last, the latest first."""
        found = [known for known in self._known.values() if known.left]
        return sorted(found, key=lambda known: known.left_s or 0.0, reverse=True)[:most]

    def change(self, told: MembershipChanged) -> None:
        """Take in that a client joined or left."""
        known = self._of(told.client_id)
        if told.member is not None:
            known.name, known.software, known.trainer = told.member.name, told.member.software, told.member.trainer
            self._note_name(told.client_id, known.name)
        if told.change in LEFT:
            known.left, known.left_s = told.change, told.at_s
            known.last_loss = None
            self._known[told.client_id] = self._known.pop(told.client_id)
            self._forget()
        else:
            if told.change in JOINED:
                known.last_loss = None
            if told.change == "joined":
                known.joined_s = told.at_s
            known.left, known.left_s = "", None

    def end_round(self, detail: RoundDetail, ended: EndedRound) -> None:
        """Take in a round that has ended, with its figures."""
        row, failures = detail.figures, plain(ended.round.missing.failures)
        for figures in detail.clients:
            known = self._of(ClientId(figures.client_id))
            if figures.fate == "applied":
                known.applied += 1
                known.tokens += figures.tokens
            elif figures.fate != "idle":
                known.lost += 1
            if figures.delivered_s is not None:
                known.result_bytes += figures.result_bytes
            known.data_wait_s += figures.data_s or 0.0
            if figures.fate == "rejected":
                self._refuse(known, RefusalTold(RESULT_INVALID, figures.detail, row.step, row.ended_s))
            elif figures.fate == "failed":
                report = failures[known.client_id]
                words = report.message[:MAX_DETAIL_CHARS]
                self._refuse(known, RefusalTold(report.kind, words, row.step, row.ended_s))
        self._forget()

    def credit(self, outcome: Outcome, tokens: Mapping[ClientId, int]) -> None:
        """Take in the results of an outcome, for as much as they count; `tokens` as `EndedRound` has them."""
        for entry in outcome.entries:
            known, batches = self._of(ClientId(entry.client_id)), total_batches(entry.assignment)
            known.batches += batches
            known.weighed_tokens += tokens[known.client_id] * number_of(entry.factor)
            known.first_step = outcome.step if known.first_step is None else known.first_step
            known.last_step = outcome.step

    def take_metrics(self, ended: EndedRound) -> None:
        """Take in the figures that the members reported with their results of an applied round."""
        commitments = plain(ended.round.results.commitments)
        for client_id in ended.round.results.verified:
            known, metrics = self._known.get(client_id), commitments[client_id].metrics
            if known is None or known.left:
                continue
            if metrics.loss is not None:
                known.last_loss = metrics.loss

    def refuse_checkpoint(self, told: CheckpointRefused) -> None:
        """Take in that a checkpoint of a client broke a rule."""
        rule = told.rule[:MAX_DETAIL_CHARS]
        self._refuse(self._of(told.client_id), RefusalTold(CHECKPOINT_INVALID, rule, told.step, told.at_s))

    def transferred(self, client_id: ClientId, uploaded_bytes: int, downloaded_bytes: int) -> None:
        """Take in the bytes that a client says it has sent and received for a round."""
        known = self._known.get(client_id)
        if known is not None:
            known.uploaded_bytes = (known.uploaded_bytes or 0) + uploaded_bytes
            known.downloaded_bytes = (known.downloaded_bytes or 0) + downloaded_bytes

    def records(self) -> tuple[KnownMember, ...]:
        """Return everything that is known, in the order in which it is kept."""
        return tuple(self._known.values())

    def _note_name(self, client_id: ClientId, name: str) -> None:
        if name:
            self.names[client_id] = name
        else:
            self.names.pop(client_id, None)

    def _of(self, client_id: ClientId) -> KnownMember:
        known = self._known.get(client_id)
        if known is None:
            known = self._known[client_id] = KnownMember(client_id)
        return known

    def _refuse(self, known: KnownMember, told: RefusalTold) -> None:
        known.last_refusals = (*known.last_refusals, told)[-MAX_REFUSALS_TOLD:]
        known.refusals[told.kind] = known.refusals.get(told.kind, 0) + 1

    def _forget(self) -> None:
        """Forget clients that left longest ago, while there are too many."""
        excess = len(self._known) - MAX_KNOWN_MEMBERS
        if excess > 0:
            for client_id in [one.client_id for one in self._known.values() if one.left][:excess]:
                del self._known[client_id]
                self._note_name(client_id, "")


def counts_of(counts: dict[str, int]) -> tuple[RefusalCount, ...]:
    """Return counts by kind, the largest first."""
    return tuple(RefusalCount(kind, count) for kind, count in sorted(counts.items(), key=lambda one: (-one[1], one[0])))
