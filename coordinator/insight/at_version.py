"""A run as it was at one version: replayed from the segment of the journal that holds it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from epochal.coordinator.insight.present import moment_of, names_of
from epochal.coordinator.insight.projection import Projection
from epochal.coordinator.insight.wait_facts import situation_of
from epochal.coordinator.machine.instructions import Instruction, OutcomeDecided, TimesTold
from epochal.coordinator.machine.journal_records import JournalRecord, Segment
from epochal.coordinator.machine.records import Kept, opened_by, replay_unchecked, replay_until
from epochal.coordinator.machine.run import Run
from epochal.state.documents import RunDocument
from epochal.state.messages.history_rows import Moment, RoundDetail
from epochal.state.shown.explanation import MAX_EXPLAINED_ROUNDS, SpeedExplanation, explained
from epochal.state.shown.waiting_words import speed_words

MAX_EXPLAINED_CLIENTS = 16_384
"""Maximum number of clients, in all rounds together, of which an explanation of the past is made."""


@dataclass(frozen=True, slots=True)
class Past:
    """A run at one version.

    Attributes:
        run: as it was.
        document: of that version.
        history: of the rounds that had ended since the first replayed segment; they are numbered from 0 there.
        ended: the last of these rounds, the oldest first, with their numbers in the whole history.
        known: the whole history, until now.
    """

    run: Run
    document: RunDocument
    history: Projection
    ended: tuple[RoundDetail, ...]
    known: Projection

    def explanation(self) -> SpeedExplanation:
        """Return why the run was not faster, by the last rounds that had ended then."""
        rounds: list[RoundDetail] = []
        clients = 0
        for detail in reversed(self.ended[-MAX_EXPLAINED_ROUNDS - 1 :]):
            clients += len(detail.clients)
            if rounds and clients > MAX_EXPLAINED_CLIENTS:
                break
            rounds.append(detail)
        return explained(rounds[::-1], {str(client_id): name for client_id, name in names_of(self.run).items()})

    def moment(self) -> Moment:
        """Return the run as viewers are shown it."""
        why = speed_words(situation_of(self.run), self.explanation().sentence) if self.ended else ""
        last_round = self.ended[-1] if self.ended else None
        return moment_of(self.run, self.document, last_round, loss=self.loss, explanation=why)

    @property
    def loss(self) -> float | None:
        """The mean loss of the last applied round of then."""
        rows = (row for row in reversed(self.known.rows) if row.version <= self.document.version)
        return next((row.loss for row in rows if row.loss is not None), None)


def past_of(segment: Segment, version: int, known: Projection, before: Segment | None = None) -> Past:
    """Return the run as it was at a version that a segment holds.

    Args:
        segment: which holds it.
        version: of the document.
        known: the run's whole history, in which rounds have their numbers.
        before: the segment before, whose rounds are wanted too; None if they are not.

    Raises:
        StoreFailed: as `replay_until`.
    """
    first = segment if before is None else before
    opened = opened_by(first.snapshot)
    history = Projection()
    history.book.names.update(names_of(opened))

    def watch(_run: Run, instructions: tuple[Instruction, ...], kept: Kept) -> None:
        history.take(instructions, kept.version)

    if before is not None:
        replay_unchecked(opened, before.records, watch)
    found = replay_until(segment, version, watch)
    _tell_what_follows(history, found.run, segment.records[found.sequence - segment.snapshot.sequence :])
    return Past(found.run, found.document, history, _numbered_all(history.details, known), known)


def _tell_what_follows(history: Projection, run: Run, records: Sequence[JournalRecord]) -> None:
    """Take into a history what clients told of its last round afterwards, until the next one ended."""
    is_over = not history.next

    def watch(_run: Run, instructions: tuple[Instruction, ...], _kept: Kept) -> None:
        nonlocal is_over
        for one in instructions:
            is_over |= isinstance(one, OutcomeDecided)
            if isinstance(one, TimesTold) and not is_over:
                history.tell(one)

    for record in records:
        if is_over:
            break
        run = replay_unchecked(run, (record,), watch)


def _numbered_all(details: Sequence[RoundDetail], known: Projection) -> tuple[RoundDetail, ...]:
    """Return neighbouring rounds with their numbers in the whole history, counted back from the last one's."""
    if not details:
        return ()
    last = _numbered(details[-1], known)
    first = last.figures.number - len(details) + 1
    rest = (
        replace(detail, figures=replace(detail.figures, number=max(0, first + place)))
        for place, detail in enumerate(details[:-1])
    )
    return (*rest, last)


def _numbered(detail: RoundDetail, known: Projection) -> RoundDetail:
    """Return a round with its number in the whole history, or that of the row into which it was merged."""
    figures = detail.figures
    name = figures.version, figures.step, figures.attempt
    found = next((row for row in known.rows if (row.version, row.step, row.attempt) >= name), None)
    if found is None:
        return detail
    held = known.detail(found.number)  # with all that its clients have told since
    if held is not None and (held.figures.version, held.figures.step, held.figures.attempt) == name:
        return held
    return replace(detail, figures=replace(figures, number=found.number))
