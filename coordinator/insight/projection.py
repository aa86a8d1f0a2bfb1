"""The projection of a run: all that is shown and recorded of it, folded from the journal's records.

The rule kept here: it depends on nothing but the machine's instructions about rounds, members, operators and reports,
in their order, and on the limits below. So it is the same whether a coordinator has kept it all along, or somebody
reads it from the journal, with a proof in the place of its beginning or without.
"""

import base64
import binascii
import zlib
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import TypeAlias

from epochal.coordinator.insight.actions import action_of
from epochal.coordinator.insight.figures import detail_of, figures_of, with_later_times
from epochal.coordinator.insight.member_book import KnownMember, MemberBook
from epochal.coordinator.insight.notices import NoticeBook
from epochal.coordinator.machine.instructions import (
    CheckpointRefused,
    Instruction,
    MembershipChanged,
    OperatorActed,
    OutcomeDecided,
    Recorded,
    Rewound,
    TimesTold,
)
from epochal.coordinator.machine.stimuli import AuditReported, EvaluationReported, NoticeRaised, NoticeSettled
from epochal.coordinator.proof.ledger import REPLICA_CHAIN_START, with_outcome, with_rewind
from epochal.state.documents import RewindMark, first_attempt
from epochal.state.errors import InvalidDocument, StoreFailed
from epochal.state.messages.audit_reports import RecordedAudit
from epochal.state.messages.evaluation_reports import Evaluation
from epochal.state.messages.history_rows import RoundColumns, RoundDetail, RoundFigures, are_alike, merged
from epochal.state.messages.notices import Notice
from epochal.state.messages.round_times import LaterTimes
from epochal.state.shown.operator_actions import OperatorAction
from epochal.state.wire import ClientId, Sha256, canonical_json, parse_document
from epochal.state.wire_document import WireDocument

MAX_ROWS = 16_384
"""Maximum number of rows: with one more, each two neighbours of the older half are merged. A row takes about 1 KB."""
MAX_DETAILED_ROUNDS = 64
"""Maximum number of rounds of which each client's figures are kept, the newest."""
MAX_DETAILED_CLIENTS = 32_768
"""Maximum number of clients in all these rounds, unless the newest alone has more. Each takes about 400 bytes."""
MAX_ACTIONS = 1_000
"""Maximum number of actions of operators, the newest; the journal has all that were not compacted."""
MAX_EVALUATIONS = 1_000
"""Maximum number of evaluations, those that were reported last."""
MAX_AUDITS = 16
"""Maximum number of audits, those that were reported last."""
MAX_LOSSES = 512
"""Maximum number of losses of the last applied rounds."""
MAX_ENCODED_BYTES = 64 * 1024 * 1024
"""Maximum size of a kept history, before it is compressed."""
Told: TypeAlias = (
    OutcomeDecided | TimesTold | MembershipChanged | CheckpointRefused | OperatorActed | Recorded | Rewound
)
"""Instructions of the machine that are taken into a projection."""


@dataclass(frozen=True, slots=True)
class _Encoded(WireDocument):
    rows: RoundColumns
    details: tuple[RoundDetail, ...]
    members: tuple[KnownMember, ...] = ()
    actions: tuple[OperatorAction, ...] = ()
    evaluations: tuple[Evaluation, ...] = ()
    audits: tuple[RecordedAudit, ...] = ()
    notices: tuple[Notice, ...] = ()
    outcome_chain: Sha256 = REPLICA_CHAIN_START
    outcome_step: int = 0


class _KeptDetail:
    """A round with its clients, to which their times are added when they report them."""

    def __init__(self, detail: RoundDetail) -> None:
        self.number = detail.figures.number
        self.name = detail.figures.step, first_attempt(detail.figures.branch) + detail.figures.attempt
        self.client_count = len(detail.clients)
        self.told_count = sum(client.uploaded_bytes is not None for client in detail.clients)
        self._detail = detail
        self._told: dict[ClientId, LaterTimes] = {}
        self._client_ids: frozenset[ClientId] | None = None

    @property
    def detail(self) -> RoundDetail:
        """The round, with the times that were reported so far."""
        if self._told:
            told, self._told = self._told, {}
            clients = tuple(
                with_later_times(client, told[ClientId(client.client_id)]) if client.client_id in told else client
                for client in self._detail.clients
            )
            self._detail = replace(self._detail, clients=clients)
        return self._detail

    def with_figures(self, figures: RoundFigures) -> "_KeptDetail":
        """Return the round with another row; itself if that is its own."""
        detail = self.detail
        return self if figures == detail.figures else _KeptDetail(replace(detail, figures=figures))

    def tell(self, client_id: ClientId, times: LaterTimes) -> None:
        """Take in the times that a client reports, if it was in the round."""
        if self._client_ids is None:
            self._client_ids = frozenset(ClientId(client.client_id) for client in self._detail.clients)
        if client_id in self._client_ids:
            self._told[client_id] = times
            self.told_count += 1


class Projection:
    """The rounds of a run that have ended, the members that took part, and what was reported and done.

    Attributes:
        rows: of the rounds, the oldest first.
        book: the members.
        actions: the last ones of its operators, the latest last.
        evaluations: those that were reported last, in their order; under one name and metric a replica has one.
        audits: those that were reported last, in their order.
        notices: the newest notice of each kind.
        outcome_chain: hash over all outcomes with their replicas: the `replica_chain` of an audit.
        outcome_step: step of the last of them; 0 before one.
    """

    def __init__(self) -> None:
        self.rows: list[RoundFigures] = []
        self.book = MemberBook()
        self.actions: deque[OperatorAction] = deque(maxlen=MAX_ACTIONS)
        self.evaluations: tuple[Evaluation, ...] = ()
        self.audits: tuple[RecordedAudit, ...] = ()
        self.notices = NoticeBook()
        self.outcome_chain = REPLICA_CHAIN_START
        self.outcome_step = 0
        self._kept: deque[_KeptDetail] = deque()
        self._detailed_clients = 0

    @property
    def details(self) -> list[RoundDetail]:
        """The last rounds with their clients' figures, the oldest first."""
        return [kept.detail for kept in self._kept]

    @property
    def next(self) -> int:
        """Number of the round that ends next."""
        return self.rows[-1].next_number if self.rows else 0

    @property
    def detailed_from(self) -> int:
        """Number of the first round of which the clients' figures are held; `next` if there is none."""
        return self._kept[0].number if self._kept else self.next

    def take(self, instructions: Iterable[Instruction], version: int) -> list[RoundDetail]:
        """Take in the instructions of one stimulus; return the rounds that ended with it.

        Args:
            instructions: the stimulus gave.
            version: of the run document that was published with the record that holds it.
        """
        ended = []
        for one in instructions:
            if isinstance(one, OutcomeDecided) and one.ended is not None:
                ended.append(self.add(one, version))
            elif isinstance(one, TimesTold):
                self.tell(one)
            elif isinstance(one, MembershipChanged):
                self.book.change(one)
            elif isinstance(one, OperatorActed):
                self._act(one, version)
            elif isinstance(one, CheckpointRefused):
                self.book.refuse_checkpoint(one)
            elif isinstance(one, Recorded):
                self._record(one)
            elif isinstance(one, Rewound):
                self._go_back(one.mark)
        return ended

    def tell(self, told: TimesTold) -> None:
        """Take in the times that a client reports of a round, if its clients' figures are held."""
        self.book.transferred(told.client_id, told.times.uploaded_bytes, told.times.downloaded_bytes)
        name = told.times.step, told.times.attempt
        kept = next((kept for kept in reversed(self._kept) if kept.name == name), None)
        if kept is not None:
            kept.tell(told.client_id, told.times)

    @property
    def next_action(self) -> int:
        """Number of the next action of an operator."""
        return self.actions[-1].number + 1 if self.actions else 0

    def _act(self, acted: OperatorActed, version: int) -> None:
        name, arguments = action_of(acted)
        self.actions.append(OperatorAction(self.next_action, name, arguments, acted.at_s, version))

    def _go_back(self, mark: RewindMark) -> None:
        """Mark what a rewind took back: the rows of later steps, and evaluations of their replicas.

        Members keep the credit for their results in these rounds.
        """

        def marked(row: RoundFigures) -> RoundFigures:
            return replace(row, dropped_rounds=row.rounds) if row.step > mark.step and not row.is_dropped else row

        self.rows = [marked(row) for row in self.rows]
        self._kept = deque(kept.with_figures(marked(kept.detail.figures)) for kept in self._kept)
        self.evaluations = tuple(
            replace(one, is_dropped=True) if one.step > mark.step else one for one in self.evaluations
        )
        self.outcome_chain = with_rewind(self.outcome_chain, mark.step)
        self.outcome_step = min(self.outcome_step, mark.step)

    def _evaluate(self, found: Evaluation) -> None:
        """Take an evaluation in, in the place of that of the same name, metric and replica, unless it is the same."""
        earlier = next((one for one in self.evaluations if one.is_of(found)), None)
        if earlier is not None and replace(earlier, recorded_s=found.recorded_s) == found:
            return
        others = tuple(one for one in self.evaluations if one is not earlier)
        self.evaluations = (*others, found)[-MAX_EVALUATIONS:]

    def _record(self, recorded: Recorded) -> None:
        match recorded.stimulus:
            case EvaluationReported(report=report):
                self._evaluate(Evaluation.of(report, recorded.at_s))
            case AuditReported(report=report):
                self.audits = (*self.audits, RecordedAudit(report, recorded.step, recorded.at_s))[-MAX_AUDITS:]
            case NoticeRaised():
                self.notices.raised(recorded.stimulus, recorded.at_s)
            case NoticeSettled():
                self.notices.settled(recorded.stimulus)

    def losses(self, most: int = MAX_LOSSES) -> tuple[tuple[int, float], ...]:
        """Return the mean losses of the last applied rounds that have one, with their steps, the oldest first."""
        found = ((row.step, row.loss) for row in reversed(self.rows) if row.loss is not None and not row.is_dropped)
        return tuple(islice(found, most))[::-1]

    @property
    def loss(self) -> float | None:
        """The mean loss of the last applied round that has one."""
        return next((row.loss for row in reversed(self.rows) if row.loss is not None and not row.is_dropped), None)

    @property
    def gradient_norm(self) -> float | None:
        """The mean gradient norm of the last applied round that has one."""
        rows = (row for row in reversed(self.rows) if not row.is_dropped)
        return next((row.gradient_norm for row in rows if row.gradient_norm is not None), None)

    def add(self, decided: OutcomeDecided, version: int) -> RoundDetail:
        """Add a round that has ended, and return it."""
        detail = detail_of(decided, figures_of(decided, self.next, version), self.book.names)
        assert decided.ended is not None, "every end of a round tells the round"
        self.book.end_round(detail, decided.ended)
        if decided.outcome is not None:
            self.book.take_metrics(decided.ended)
            self.book.credit(decided.outcome, decided.ended.tokens)
            self.outcome_chain = with_outcome(self.outcome_chain, decided.outcome)
            self.outcome_step = decided.outcome.step
        self.rows.append(detail.figures)
        if len(self.rows) > MAX_ROWS:
            self.rows = _halved(self.rows, MAX_ROWS // 2)
        self._keep(detail)
        return detail

    def _keep(self, detail: RoundDetail) -> None:
        self._kept.append(_KeptDetail(detail))
        self._detailed_clients += len(detail.clients)
        while len(self._kept) > 1 and (
            len(self._kept) > MAX_DETAILED_ROUNDS or self._detailed_clients > MAX_DETAILED_CLIENTS
        ):
            self._detailed_clients -= self._kept.popleft().client_count

    def between(self, first: int, last: int) -> list[RoundFigures]:
        """Return the rows of the rounds from `first` to `last`, both included; a merged row covers several."""
        begin = bisect_right(self.rows, first, key=lambda row: row.next_number)
        return self.rows[begin : max(begin, bisect_right(self.rows, last, key=lambda row: row.number))]

    def detail(self, number: int) -> RoundDetail | None:
        """Return a round with its clients, or None if they are not held."""
        kept = self._kept_of(number)
        return None if kept is None else kept.detail

    def last_details(self, count: int) -> list[RoundDetail]:
        """Return the last rounds with their clients, at most so many, the oldest first."""
        first = max(0, len(self._kept) - count)
        return [kept.detail for kept in islice(self._kept, first, None)]

    def is_told(self, number: int) -> bool:
        """Whether as many clients have reported their times of a round as it had."""
        kept = self._kept_of(number)
        return kept is not None and kept.told_count >= kept.client_count

    def told_count(self, number: int) -> int:
        """Return how many clients have reported their times of a round since it ended, as far as they are counted."""
        kept = self._kept_of(number)
        return 0 if kept is None else kept.told_count

    def _kept_of(self, number: int) -> _KeptDetail | None:
        place = number - self.detailed_from
        return next(islice(self._kept, place, None), None) if place >= 0 else None

    def encoded(self) -> str:
        """Return the whole history as text, from which `decoded` makes the same."""
        kept = _Encoded(
            RoundColumns.of(self.rows),
            tuple(self.details),
            self.book.records(),
            tuple(self.actions),
            self.evaluations,
            self.audits,
            self.notices.notices(),
            self.outcome_chain,
            self.outcome_step,
        )
        return base64.b64encode(zlib.compress(canonical_json(kept))).decode()

    @classmethod
    def decoded(cls, text: str) -> "Projection":
        """Return the history that `encoded` wrote; an empty one of an empty text.

        Raises:
            StoreFailed: it is something else.
        """
        found = cls()
        if not text:
            return found
        try:
            opened = zlib.decompressobj()
            body = opened.decompress(base64.b64decode(text, validate=True), MAX_ENCODED_BYTES)
            read: _Encoded = parse_document(_Encoded, body)
            found.rows = read.rows.rows()
            found.book = MemberBook(read.members)
            found.actions.extend(read.actions)
            found.evaluations, found.audits, found.notices = read.evaluations, read.audits, NoticeBook(read.notices)
            found.outcome_chain, found.outcome_step = read.outcome_chain, read.outcome_step
        except (binascii.Error, zlib.error, InvalidDocument, ValueError) as error:
            raise StoreFailed(f"a kept history cannot be read: {error}") from error
        for detail in read.details:
            found._keep(detail)
        return found


def _halved(rows: Sequence[RoundFigures], count: int) -> list[RoundFigures]:
    """Return the rows with each two neighbours among the first `count` merged that are alike."""
    halved = list[RoundFigures]()
    for place in range(0, count, 2):
        pair = rows[place], rows[place + 1]
        halved += (merged(*pair),) if are_alike(*pair) else pair
    return [*halved, *rows[count:]]
