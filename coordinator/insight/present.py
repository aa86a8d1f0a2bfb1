"""A run at one moment, as it is shown to viewers."""

from dataclasses import replace

from epochal.coordinator.insight.figures import clients_of
from epochal.coordinator.insight.wait_facts import SilentS, situation_of
from epochal.coordinator.machine.pace import elapsed_s
from epochal.coordinator.machine.run import Run
from epochal.state.documents import RunDocument
from epochal.state.messages.history_rows import Moment, RoundDetail, slowest_first
from epochal.state.phase_names import ROUND_PHASES
from epochal.state.shown.waiting_words import waiting_words
from epochal.state.wire import ClientId

_PLACES = 6


def moment_of(
    run: Run,
    document: RunDocument,
    last_round: RoundDetail | None,
    now_s: float,
    loss: float | None,
    explanation: str,
    problem: str | None,
    silent_s: SilentS | None = None,
    *,
    has_clients: bool = True,
) -> Moment:
    """Return a run as it is.

    Args:
        run: as it is kept.
        document: that it publishes.
        last_round: the last round that has ended, if it is known.
        now_s: the present, on the coordinator's clock.
        loss: mean loss of the last applied round, if it is known.
        explanation: why it is not faster, in a sentence.
        problem: why the coordinator can keep nothing; None if it can.
        silent_s: when its members were last heard; None if that is not known.
        has_clients: whether the clients of the round under way are wanted: with thousands, they are most of the work.
    """
    since_s = max(0.0, now_s - run.clock.now_s)
    current = run.round if run.clock.phase in ROUND_PHASES else None
    passes, pass_samples = passes_of(run)
    return Moment(
        document=document,
        at_s=run.clock.now_s + since_s,
        members=len(run.members),
        ready=run.numbers().ready,
        loss=loss,
        tokens_total=run.tokens_applied,
        round_s=None if current is None else elapsed_s(current, run.clock) + since_s,
        under_way=()
        if current is None or not has_clients
        else clients_of(current, current.tokens(run.state_file), names=names_of(run)),
        last_round=last_round,
        passes=passes,
        pass_samples=pass_samples,
        waiting=waiting_words(situation_of(run, problem, silent_s)),
        explanation=explanation,
    )


def passes_of(run: Run) -> tuple[float | None, int | None]:
    """Return the number of passes over the run's data that were begun, and the samples of the last one."""
    index = run.work.cursor * run.state_file.config.data_indices_per_batch
    described = None if run.data.fingerprint is None else run.data.datasets.get(run.data.fingerprint)
    if described is None or not described.sample_count:
        return None, None
    return round(index / described.sample_count, _PLACES), described.sample_count


def names_of(run: Run) -> dict[ClientId, str]:
    """Return the names that members have chosen."""
    return {member.client_id: member.name for member in run.members.by_id.values() if member.name}


def with_slowest(moment: Moment, most: int) -> Moment:
    """Return a moment with at most so many clients of each round, the slowest first."""
    last = moment.last_round
    return replace(
        moment,
        under_way=slowest_first(moment.under_way, most),
        last_round=None if last is None else replace(last, clients=slowest_first(last.clients, most)),
    )
