"""Files that are appended to a run's data: from which data index on, and which members can train there.

The operator says what the data have grown from and to. The larger data begin with the first pass that starts at least
`ROUNDS_AHEAD` rounds ahead, so that no data index that a client may know as its own changes its meaning. Until then a
member may have either data; from the round that reaches the new pass on, it needs the larger ones.
"""

from epochal.coordinator.machine.run import Run
from epochal.coordinator.machine.stimuli import DataAppended
from epochal.state.errors import Refused
from epochal.state.generations import (
    MAX_GENERATIONS,
    DataAppend,
    Generations,
    SizedDataset,
    generation_at,
    with_appended,
)
from epochal.state.intervals import MAX_INDEX
from epochal.state.phase_names import RunState
from epochal.state.refusals import Refusal

ROUNDS_AHEAD = 4
"""Rounds of full size from the cursor within which no larger data begin: clients may know the next round's work,
and those that have the new files need a round to say so."""


def append_data(run: Run, event: DataAppended) -> Run:
    """Return the run with the larger data from a later pass on; with the last append taken back if there are none.

    Raises:
        Refused: `not-now` if the run trains on other data than those that have grown, or they have not grown, or what
            is to be taken back has begun.
    """
    if run.clock.phase is RunState.FINISHED:
        raise Refused(Refusal.NOT_NOW, "the run is finished")
    if event.request is None:
        return _taken_back(run)
    known, request = run.state_file.data_generations, event.request
    if known and known[-1].fingerprint == request.grown_to.fingerprint:
        return run  # the request came twice
    _check_growth(run, request)
    earliest = max(_assigned_end(run, ROUNDS_AHEAD), request.from_data_index)
    try:
        grown = with_appended(known, request.grown_from, request.grown_to, earliest)
    except ValueError as error:
        raise Refused(Refusal.NOT_NOW, f"the data have not grown: {error}") from error
    if grown[-1].first_data_index >= MAX_INDEX:
        raise Refused(Refusal.NOT_NOW, f"no pass begins between data index {earliest} and {MAX_INDEX}")
    return _with_generations(run, grown)


def _check_growth(run: Run, request: DataAppend) -> None:
    known, now = run.state_file.data_generations, request.grown_from
    if len(known) >= MAX_GENERATIONS:
        raise Refused(Refusal.NOT_NOW, f"the data have grown {len(known) - 1} times; at most {MAX_GENERATIONS - 1}")
    if not known and run.data.fingerprint is None:
        raise Refused(
            Refusal.NOT_NOW, "it is not decided yet which data are the run's; pin them: `epochal fingerprint`"
        )
    newest = known[-1].fingerprint if known else run.data.fingerprint
    if now.fingerprint != newest:
        raise Refused(
            Refusal.NOT_NOW,
            f"the run's data have fingerprint {newest}; those that are said to have grown have {now.fingerprint}",
        )
    if known and now != _sized(known, len(known) - 1):
        raise Refused(
            Refusal.NOT_NOW,
            f"the run's data have {known[-1].sample_count} samples in {known[-1].file_count} files; those that are "
            f"said to have grown have {now.sample_count} in {now.file_count}",
        )


def _sized(known: Generations, number: int) -> SizedDataset:
    found = known[number]
    return SizedDataset(found.fingerprint, found.sample_count, found.file_count)


def _taken_back(run: Run) -> Run:
    known = run.state_file.data_generations
    if not known:
        return run
    if known[-1].first_data_index < _assigned_end(run, 1):
        raise Refused(
            Refusal.NOT_NOW,
            f"the larger data begin at data index {known[-1].first_data_index}, which the run has reached",
        )
    left = known[:-1]
    return _with_generations(run, left if len(left) > 1 else ())


def _with_generations(run: Run, generations: Generations) -> Run:
    state_file = run.state_file.model_copy(update={"data_generations": generations})
    return run.with_parts(run.identity.with_state_file(state_file))


def _assigned_end(run: Run, rounds: int) -> int:
    """Return the first data index beyond those that are assigned, and those of so many further rounds of full size."""
    config = run.state_file.config
    return (run.work.cursor + rounds * config.global_batch_size_end) * config.data_indices_per_batch


def needed_generation(run: Run) -> int:
    """Return the position of the generation that the next round may reach; 0 if nothing was appended."""
    known = run.state_file.data_generations
    return generation_at(known, _assigned_end(run, 1) - 1) if known else 0


def check_grown(run: Run, fingerprint: str) -> None:
    """Raise `Refused(Refusal.FINGERPRINT_DIFFERS)` if data are those of before an append that the next round needs."""
    known = run.state_file.data_generations
    needed = needed_generation(run)
    if fingerprint not in (found.fingerprint for found in known[:needed]):
        return
    grown = known[needed]
    raise Refused(
        Refusal.FINGERPRINT_DIFFERS,
        f"the client's dataset has fingerprint {fingerprint}; the run's data have grown, and from data index "
        f"{grown.first_data_index} on, which the next round may reach, they are {grown.sample_count} samples in "
        f"{grown.file_count} files with fingerprint {grown.fingerprint}: add the new files, where the client's data or "
        "those of its data server are, and start the client again",
        expected=grown.fingerprint,
    )


def with_needed_data(run: Run) -> Run:
    """Return the run, whose data have grown, on the data that its next round needs."""
    wanted = run.state_file.data_generations[needed_generation(run)].fingerprint
    return run.with_parts(run.data.agreed_on(wanted))
