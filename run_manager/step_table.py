"""The step that a client takes when a run document arrives: one table, and the document in the table's terms.

Theory of operation. A client sees only some of the run's documents: it may sleep through phases and rounds, and find
the run anywhere *ahead* of where it was. What it can never see is the run going back, because a coordinator keeps a
document before it publishes it. So most cells are allowed, and those that are not say that client and run contradict
each other: training after the witnessing of the same round, a round before the one that was seen last, a run that was
never started. Such a document is a `Desync`; the client starts anew from the checkpoint.

News are the document's phase, and for a round's phases whether the round is the one seen last (`same`), another one
that follows (`next`), or an earlier one (`past`). `docs/concepts.md` shows the table.
"""

from dataclasses import dataclass
from enum import StrEnum

from epochal.state.documents import RoundHead, RunDocument
from epochal.state.errors import Desync
from epochal.state.phase_names import ROUND_PHASES, RunState
from epochal.state.transition_table import TransitionTable
from epochal.state.wire import ClientId


class StepName(StrEnum):
    """The steps of a client. Observing is for phases in which there is nothing to do; it is the first one."""

    OBSERVING = "Observing"
    WARMUP = "Warmup"
    TRAINING = "Training"
    WITNESS = "Witness"
    COOLDOWN = "Cooldown"
    FINISHED = "Finished"


class News(StrEnum):
    """News of a run document, seen from the round that this client saw last."""

    WAITING = "waiting"
    WARMUP = "warmup"
    TRAIN_NEXT = "train_next"
    TRAIN_SAME = "train_same"
    WITNESS_NEXT = "witness_next"
    WITNESS_SAME = "witness_same"
    COOLDOWN = "cooldown"
    FINISHED = "finished"
    UNSTARTED = "unstarted"
    PAST = "past"


# fmt: off
TRANSITIONS = (
    (News.WAITING,      "*",                                   StepName.OBSERVING),
    (News.WARMUP,       "*",                                   StepName.WARMUP),
    (News.TRAIN_NEXT,   "*",                                   StepName.TRAINING),
    (News.TRAIN_SAME,   StepName.TRAINING,                     StepName.TRAINING),
    (News.WITNESS_NEXT, "*",                                   StepName.WITNESS),
    (News.WITNESS_SAME, [StepName.TRAINING, StepName.WITNESS], StepName.WITNESS),
    (News.COOLDOWN,     "*",                                   StepName.COOLDOWN),
    (News.FINISHED,     "*",                                   StepName.FINISHED),
    (News.UNSTARTED,    StepName.OBSERVING,                    StepName.OBSERVING),
)
# fmt: on
"""Every transition: news, the step it finds (`*`: any), the step that follows. What is not here is not allowed."""

STEPS = TransitionTable(StepName, TRANSITIONS)

_PHASE_NEWS = {
    RunState.UNINITIALIZED: News.UNSTARTED,
    RunState.WAITING_FOR_MEMBERS: News.WAITING,
    RunState.PAUSED: News.WAITING,
    RunState.WARMUP: News.WARMUP,
    RunState.COOLDOWN: News.COOLDOWN,
    RunState.FINISHED: News.FINISHED,
}


@dataclass(frozen=True, slots=True)
class DueStep:
    """The step that a document asks for.

    Attributes:
        name: the step.
        depends_on: what of the document the step depends on; when that changes, the step starts again.
    """

    name: StepName
    depends_on: tuple[object, ...]


def news_of(document: RunDocument, last_round: RoundHead | None) -> News:
    """Return what the document says to a client that saw `last_round` last.

    Raises:
        Desync: a document in a round's phase without a round; the coordinator's fault.
    """
    if last_round is not None and document.step < last_round.step:
        return News.PAST
    if document.run_state not in ROUND_PHASES:
        return _PHASE_NEWS[document.run_state]
    head = document.round
    if head is None:
        raise Desync(f"a run document in {document.run_state.value} without a round", version=document.version)
    training = document.run_state is RunState.ROUND_TRAIN
    if last_round is None or (head.step, head.attempt) > (last_round.step, last_round.attempt):
        return News.TRAIN_NEXT if training else News.WITNESS_NEXT
    if head == last_round:
        return News.TRAIN_SAME if training else News.WITNESS_SAME
    return News.PAST


def goes_on(before: DueStep | None, due: DueStep) -> bool:
    """Whether the step that was due before is the one that is due now.

    A client whose turn to write the checkpoint is over goes on with its upload.
    """
    if before is None or due.name is not StepName.COOLDOWN:
        return due == before
    return due == before or before == DueStep(due.name, (*due.depends_on[:-1], True))


def due_step(step: StepName, document: RunDocument, last_round: RoundHead | None, client_id: ClientId) -> DueStep:
    """Return the step that a client in `step`, which saw `last_round` last, takes for this document.

    Raises:
        Desync: none is allowed; names the step and the document. The client starts anew from the checkpoint.
    """
    news = news_of(document, last_round)
    goal = STEPS.fire(step, news)
    if goal is None:
        seen = "no round" if last_round is None else f"round {last_round.step} attempt {last_round.attempt}"
        raise Desync(
            f"step {step.value}, which saw {seen} last, does not allow a document in {document.run_state.value} at "
            f"step {document.step} (version {document.version}, {news.value})",
            step_name=step.value,
            news=news.value,
            version=document.version,
        )
    return DueStep(goal, _dependencies(goal, document, client_id))


def _dependencies(goal: StepName, document: RunDocument, client_id: ClientId) -> tuple[object, ...]:
    is_checkpointer = document.checkpointer == client_id
    match goal:
        case StepName.TRAINING | StepName.WITNESS:
            return (document.round,)
        case StepName.WARMUP:
            return (document.epoch, document.phase_started_s, document.step, document.checkpoint, is_checkpointer)
        case StepName.COOLDOWN:
            return (document.epoch, document.step, document.checkpoint, is_checkpointer)
        case StepName.OBSERVING | StepName.FINISHED:
            return ()
