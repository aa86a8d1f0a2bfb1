"""A run at one moment, as it is shown to viewers."""

from collections.abc import Iterable
from dataclasses import replace
from itertools import islice

from epochal.coordinator.insight.figures import clients_of
from epochal.coordinator.insight.wait_facts import situation_of
from epochal.coordinator.machine.pace import elapsed_s
from epochal.coordinator.machine.run import Run
from epochal.state.documents import RunDocument
from epochal.state.generations import generation_at, passes_before
from epochal.state.intervals import BatchId, coalesce, subtract
from epochal.state.messages.history_rows import MAX_MAP_INTERVALS, DataMap, Moment, RoundDetail, slowest_first
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
        has_clients: whether the clients of the round under way are wanted: with thousands, they are most of the work.
    """
    since_s = max(0.0, now_s - run.clock.now_s)
    current = run.round if run.clock.phase in ROUND_PHASES else None
    return Moment(
        document=document,
        at_s=run.clock.now_s + since_s,
        members=len(run.members),
        ready=run.numbers().ready,
        loss=loss,
        tokens_total=run.tokens_applied,
        round_s=None if current is None else elapsed_s(current, run.clock) + since_s,
        under_way=() if current is None or not has_clients else clients_of(current, names=names_of(run)),
        last_round=last_round,
        data=data_map_of(run),
        waiting=waiting_words(situation_of(run, problem)),
        explanation=explanation,
    )


def data_map_of(run: Run) -> DataMap:
    """Return where the batches are that the run has begun."""
    current = run.round if run.clock.phase in ROUND_PHASES else None
    under_way = () if current is None else coalesce(current.tasks.work.intervals())
    quarantined = coalesce(item.batch_id for item in run.work.quarantined)
    waiting = subtract(coalesce((*run.work.carried, *(item.batch_id for item in run.work.suspects))), under_way)
    is_whole = max(map(len, (under_way, waiting, quarantined))) <= MAX_MAP_INTERVALS
    passes, samples = _passes(run)
    return DataMap(run.work.cursor, _first(under_way), _first(waiting), _first(quarantined), is_whole, passes, samples)


def _passes(run: Run) -> tuple[float | None, int | None]:
    """Return the number of passes over the run's data that were begun, and the samples of the last one."""
    index = run.work.cursor * run.state_file.config.data_indices_per_batch
    generations = run.state_file.data_generations
    if generations:
        place = generation_at(generations, index)
        reached = generations[place]
        passes = passes_before(generations)[place] + (index - reached.first_data_index) / reached.sample_count
        return round(passes, _PLACES), reached.sample_count
    described = None if run.data.fingerprint is None else run.data.datasets.get(run.data.fingerprint)
    if described is None or not described.sample_count:
        return None, None
    return round(index / described.sample_count, _PLACES), described.sample_count


def names_of(run: Run) -> dict[ClientId, str]:
    """Return the names that members have chosen."""
    return {member.client_id: member.name for member in run.members.by_id.values() if member.name}


def _first(intervals: Iterable[BatchId]) -> tuple[BatchId, ...]:
    return tuple(islice(intervals, MAX_MAP_INTERVALS))


def with_slowest(moment: Moment, most: int) -> Moment:
    """Return a moment with at most so many clients of each round, the slowest first."""
    last = moment.last_round
    return replace(
        moment,
        under_way=slowest_first(moment.under_way, most),
        last_round=None if last is None else replace(last, clients=slowest_first(last.clients, most)),
    )
