"""Which step a client takes when a run document arrives: one table, and the document's news in the table's terms.

Theory of operation. A client sees only some of the run's documents: it may sleep through phases and rounds, and find
the run anywhere *ahead* of where it was. What it can never see is the run going back, because a coordinator keeps a
document before it publishes it. So most cells are allowed, and those that are not say that client and run contradict
each other: training after the witnessing of the same round, a round before the one that was seen last, a run that was
never started. Such a document is a `Desync`; the client starts anew from the checkpoint.

News are the document's phase, and for a round's phases whether the round is the one seen last (`same`), another one
that follows (`next`), or an earlier one (`past`):

                 waiting   warmup   train_next train_same witness_next witness_same cooldown finished unstarted past
    Observing    Observing Warmup   Training   –          Witness      –            Cooldown Finished Observing –
    Warmup       Observing Warmup   Training   –          Witness      –            Cooldown Finished –         –
    Training     Observing Warmup   Training   Training   Witness      Witness      Cooldown Finished –         –
    Witness      Observing Warmup   Training   –          Witness      Witness      Cooldown Finished –         –
    Cooldown     Observing Warmup   Training   –          Witness      –            Cooldown Finished –         –
    Finished     Observing Warmup   Training   –          Witness      –            Cooldown Finished –         –
"""

from enum import StrEnum
from functools import cache
from typing import Any

from transitions import Machine

from state.documents import RoundHead, RunDocument
from state.errors import Desync
from state.phases import ROUND_PHASES, RunState


class StepName(StrEnum):
    """The steps of a client. Observing is for phases in which there is nothing to do; it is the first one."""

    OBSERVING = "Observing"
    WARMUP = "Warmup"
    TRAINING = "Training"
    WITNESS = "Witness"
    COOLDOWN = "Cooldown"
    FINISHED = "Finished"


class News(StrEnum):
    """What a run document says, seen from the round that this client saw last."""

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


_ANYWHERE = tuple(step.value for step in StepName)

TRANSITIONS: tuple[tuple[News, tuple[str, ...], StepName], ...] = (
    (News.WAITING, _ANYWHERE, StepName.OBSERVING),
    (News.WARMUP, _ANYWHERE, StepName.WARMUP),
    (News.TRAIN_NEXT, _ANYWHERE, StepName.TRAINING),
    (News.TRAIN_SAME, (StepName.TRAINING,), StepName.TRAINING),
    (News.WITNESS_NEXT, _ANYWHERE, StepName.WITNESS),
    (News.WITNESS_SAME, (StepName.TRAINING, StepName.WITNESS), StepName.WITNESS),
    (News.COOLDOWN, _ANYWHERE, StepName.COOLDOWN),
    (News.FINISHED, _ANYWHERE, StepName.FINISHED),
    (News.UNSTARTED, (StepName.OBSERVING,), StepName.OBSERVING),
    (News.PAST, (), StepName.OBSERVING),
)
"""(news, sources, destination). What is not here is not allowed."""

_PHASE_NEWS = {
    RunState.UNINITIALIZED: News.UNSTARTED,
    RunState.WAITING_FOR_MEMBERS: News.WAITING,
    RunState.PAUSED: News.WAITING,
    RunState.WARMUP: News.WARMUP,
    RunState.COOLDOWN: News.COOLDOWN,
    RunState.FINISHED: News.FINISHED,
}


@cache
def _table() -> Any:
    machine = Machine(
        model=None, states=list(_ANYWHERE), initial=StepName.OBSERVING.value, auto_transitions=False, send_event=False
    )
    for news, sources, goal in TRANSITIONS:
        for source in sources:
            machine.add_transition(news.value, str(source), goal.value)
    return machine


@cache
def destination(step: StepName, news: News) -> StepName | None:
    """The step that follows, or None where the table allows none."""
    found = _table().get_transitions(trigger=news.value, source=step.value) if news.value in _table().events else []
    return StepName(found[0].dest) if found else None


def news_of(document: RunDocument, last_round: RoundHead | None) -> News:
    """What the document says to a client that saw `last_round` last.

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


def next_step(step: StepName, document: RunDocument, last_round: RoundHead | None) -> StepName:
    """The step that a client in `step` takes for this document.

    Raises:
        Desync: none is allowed; names the step and the document. The client starts anew from the checkpoint.
    """
    news = news_of(document, last_round)
    goal = destination(step, news)
    if goal is None:
        seen = "no round" if last_round is None else f"round {last_round.step} try {last_round.attempt}"
        raise Desync(
            f"step {step.value}, which saw {seen} last, does not allow a document in {document.run_state.value} at "
            f"step {document.step} (version {document.version}, {news.value})",
            step_name=step.value,
            news=news.value,
            version=document.version,
        )
    return goal
