"""The state of a run's view: what was read last, and what follows from it. No clock, no terminal."""

from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median

from epochal.state.documents import CheckpointRef, RunDocument
from epochal.state.messages.evaluation_reports import Evaluation
from epochal.state.messages.history_rows import HistoryPage, Moment, RoundDetail, RoundFigures, thinned
from epochal.state.messages.member_rows import MemberDetail, MembersPage
from epochal.state.messages.requests import RunStatus
from epochal.state.phase_names import RunState
from epochal.state.shown.explanation import SpeedExplanation
from epochal.state.shown.join_guide import JoinGuide
from epochal.state.shown.operator_actions import ActionsPage
from epochal.state.shown.trust import TrustView

MAX_ROWS = 2048
"""Number of rows of the history that are kept; with more, neighbours are merged."""
LAST_ROUNDS = 32
"""Number of rounds over which speeds and estimates are taken."""
PAUSE_RATIO = 20
"""A round that began so many times later than usual after the one before it: the run was paused or down."""


@dataclass(slots=True)
class RunPicture:
    """The last that is known of a run.

    Attributes:
        address: the coordinator's, as the user gave it, without a password.
        document: the run document.
        status: with what changes too often for the document.
        rows: of the history, merged where there are many.
        next: number of the round that ends next.
        detailed_from: number of the first round whose clients are held.
        detail: the round that is shown, with its clients.
        selected: number of the round that the user chose; None for the last one.
        explanation: why the run is not faster, at the time that is shown.
        members: all of them, at the time that is shown.
        member: the one whose own page is open, once it has arrived.
        evaluations: of the run, as they were recorded; None until they have arrived.
        checkpoints: those that are held, the newest last.
        actions: of the run's operators.
        guide: how to join.
        trust: the last audit, who vouched for the replica, and what was refused, at the time that is shown.
        place: index of the row at which the user looks back; None for the present.
        moment: the run as it was there, or with the clients of the round under way as it is, once it has arrived.
        problem: what is wrong with the coordinator, or what it will answer later; "" if it answers.
        note: the last news about the connection, or about a request of the user.
    """

    address: str = ""
    document: RunDocument | None = None
    status: RunStatus | None = None
    rows: list[RoundFigures] = field(default_factory=list)
    next: int = 0
    detailed_from: int = 0
    detail: RoundDetail | None = None
    selected: int | None = None
    explanation: SpeedExplanation | None = None
    members: MembersPage | None = None
    member: MemberDetail | None = None
    evaluations: tuple[Evaluation, ...] | None = None
    checkpoints: tuple[CheckpointRef, ...] = ()
    actions: ActionsPage | None = None
    guide: JoinGuide | None = None
    trust: TrustView | None = None
    place: int | None = None
    moment: Moment | None = None
    problem: str = ""
    note: str = ""

    def add(self, page: HistoryPage) -> None:
        """Add rounds that have ended."""
        self.rows += page.rounds.rows()
        if len(self.rows) > MAX_ROWS:
            kept, chosen = len(self.rows), self.place
            self.rows = thinned(self.rows, MAX_ROWS // 2)
            if chosen is not None:
                self.place = min(len(self.rows) - 1, chosen * len(self.rows) // kept)
        self.next, self.detailed_from = page.next, page.detailed_from

    def forget_rows(self) -> None:
        """Forget the rounds, because the run went back."""
        self.rows.clear()
        self.selected = None
        self.look_at(None)

    def look_at(self, place: int | None) -> None:
        """Show the run at the end of this row, or the present; what is known of another time is forgotten."""
        self.place, self.moment, self.members, self.trust, self.explanation = place, None, None, None, None

    @property
    def is_past(self) -> bool:
        """Whether a past version is shown."""
        return self.place is not None

    def shown_document(self) -> RunDocument | None:
        """Return the document that is shown: the present one, or the one of the moment."""
        if self.is_past:
            return None if self.moment is None else self.moment.document
        return self.document

    def shown_rows(self) -> list[RoundFigures]:
        """Return the rows up to the place that is shown."""
        return self.rows if self.place is None else self.rows[: self.place + 1]

    def shown_detail(self) -> RoundDetail | None:
        """Return the round that is shown; None if its clients are not known."""
        if self.is_past:
            return None if self.moment is None else self.moment.last_round
        return self.detail

    def shown_evaluations(self) -> list[Evaluation]:
        """Return the evaluations of the replicas up to the one that is shown, the newest replica last."""
        document = self.shown_document()
        known = self.evaluations
        if known is None:
            known = () if self.status is None else self.status.evaluations
        found = [] if document is None else [one for one in known if one.step < document.step]
        return sorted(found, key=lambda one: one.step)

    def shown_checkpoints(self) -> tuple[CheckpointRef, ...]:
        """Return the stored checkpoints, the newest last; of a past version, the one that was the newest."""
        document = self.shown_document()
        newest = None if document is None else document.checkpoint
        if self.checkpoints and not self.is_past:
            return self.checkpoints
        return () if newest is None else (newest,)

    def tokens_per_s(self) -> float | None:
        """Return the tokens applied per second of the last rounds that are shown, waits included."""
        last = self.shown_rows()[-LAST_ROUNDS:]
        if not last or last[-1].ended_s <= last[0].started_s:
            return None
        return sum(row.tokens for row in last) / (last[-1].ended_s - last[0].started_s)

    def step_s(self) -> float | None:
        """Return the mean time from one applied round's start to the next one's, over the last that are shown.

        What lies between epochs counts, pauses and outages do not. None if nothing was applied, or before two rounds.
        """
        last = self.shown_rows()[-LAST_ROUNDS - 1 :]
        spans = [(after.started_s - row.started_s, row.rounds, row.applied_rounds) for row, after in pairwise(last)]
        if not spans:
            return None
        longest_s = PAUSE_RATIO * median(span_s / rounds for span_s, rounds, _ in spans)
        usual = [(span_s, applied) for span_s, rounds, applied in spans if span_s / rounds <= longest_s]
        applied = sum(applied for _, applied in usual)
        return sum(span_s for span_s, _ in usual) / applied if applied else None

    def eta_s(self) -> float | None:
        """Return the seconds until the run has done its steps at the present pace; None if unknown or it is stopped."""
        document, step_s = self.shown_document(), self.step_s()
        if document is None or step_s is None or document.run_state in (RunState.FINISHED, RunState.PAUSED):
            return None
        return max(0, document.total_steps - document.step + 1) * step_s
