"""Which data a run trains on: the operator's word, else that of the members who first deliver.

Every ready report names the fingerprint of the member's data. A fingerprint that `state.toml` or the operator's command
pins is the run's. Without one, data have turns, each of a round or, if it does not begin, a Warmup: first those of most
members, then, each time that nobody delivered anything, those of at least `min_clients` members that have waited
longest. The first applied round decides for good. Keys cost nothing, so numbers alone decide nothing: data that are
reported later have a later turn, however many members have them. Only members with the run's data are ready.
"""

from epochal.coordinator.machine.run import Run
from epochal.coordinator.machine.stimuli import DataFingerprintSet
from epochal.state.dataset_descriptions import DatasetDescription, dataset_difference
from epochal.state.errors import Refused
from epochal.state.messages.requests import DataDecision, DatasetView, ReadyReport
from epochal.state.refusals import Refusal
from epochal.state.wire import ClientId


def pinned_fingerprint(run: Run) -> str | None:
    """Return the fingerprint that the operator pinned, in `state.toml` or by command."""
    return run.state_file.config.data_fingerprint or run.data.pin


def check_dataset(run: Run, report: ReadyReport) -> None:
    """Raise `Refused(Refusal.FINGERPRINT_DIFFERS)` if it is decided that the run trains on other data."""
    decided = pinned_fingerprint(run) or (run.data.fingerprint if run.work.batches_applied else None)
    if decided is not None and report.data_fingerprint != decided:
        raise Refused(
            Refusal.FINGERPRINT_DIFFERS,
            f"{_both(report.data_fingerprint, decided)}: {_difference(run, report.data_fingerprint, report.dataset)}",
            expected=decided,
        )


def vote(run: Run, before: str | None, after: str | None, dataset: DatasetDescription | None = None) -> Run:
    """Return the run after a member's vote changed; None is no vote.

    Args:
        run: the run.
        before, after: the fingerprints of the member's data.
        dataset: describes the data that it has now.
    """
    if before != after:
        run = agreed(run.with_parts(run.data.with_vote(before, after)))
    return run if after is None or dataset is None else run.with_parts(run.data.described(after, dataset))


def agreed(run: Run) -> Run:
    """Return the run with the data on which it is agreed now. The roster of a round under way stays as it is."""
    pinned = pinned_fingerprint(run)
    if pinned is not None:
        wanted: str | None = pinned
    elif run.work.batches_applied or run.round is not None:
        wanted = run.data.fingerprint
    else:
        wanted = run.data.in_turn(run.state_file.config.min_clients)
    return run.with_parts(run.data.agreed_on(wanted))


def next_turn(run: Run) -> Run:
    """Return the run after a round or a Warmup of which nothing was applied: its data wait behind all others."""
    return run if run.work.batches_applied else run.with_parts(run.data.after_turn())


def set_fingerprint(run: Run, event: DataFingerprintSet) -> Run:
    """Return the run with the fingerprint that the operator pinned by command; None takes the pin back.

    Raises:
        Refused: `not-now` if `state.toml` pins another one.
    """
    in_file = run.state_file.config.data_fingerprint
    if in_file is not None and event.data_fingerprint != in_file:
        raise Refused(
            Refusal.NOT_NOW,
            f"state.toml has `data_fingerprint = {in_file}`; change that line and start the coordinator again",
        )
    return agreed(run.with_parts(run.data.pinned(event.data_fingerprint)))


def disagreement(run: Run, client_id: ClientId) -> Refused | None:
    """Return why a member whose report was recorded is not ready: it is the turn of other data. None if it is."""
    member = run.members.by_id.get(client_id)
    mine = None if member is None else member.readiness.data_fingerprint
    if mine is None or mine == run.data.fingerprint:
        return None
    decision = (
        "its data have a turn if nobody delivers with the others; the operator can pin the right data: "
        "`epochal fingerprint`, or `data_fingerprint` in state.toml"
    )
    if run.data.fingerprint is None:
        counts = sorted(run.data.votes.values(), reverse=True)
        other = next((fingerprint for fingerprint in run.data.votes if fingerprint != mine), mine)
        message = (
            f"members have different data, and no data have a majority ({' to '.join(map(str, counts[:4]))}): "
            f"{_both(mine, other)}"
        )
    else:
        other = run.data.fingerprint
        message = f"{run.data.votes.get(other, 0)} members have other data: {_both(mine, other)}"
    difference = _difference(run, mine, run.data.datasets.get(mine), other)
    expected = {} if run.data.fingerprint is None else {"expected": other}
    return Refused(Refusal.DATA_UNDECIDED, f"{message}: {difference}. This client waits; {decision}", **expected)


def datasets_of(run: Run, most: int) -> tuple[DatasetView, ...]:
    """Return the data that members have, the most frequent ones first."""
    voted = sorted(run.data.votes.items(), key=lambda item: (-item[1], item[0]))[:most]
    return tuple(DatasetView(fingerprint, count, run.data.datasets.get(fingerprint)) for fingerprint, count in voted)


def decided_by(run: Run) -> DataDecision:
    """Return who or what decided which data the run trains on."""
    if run.state_file.config.data_fingerprint is not None:
        return "state file"
    if run.data.pin is not None:
        return "operator"
    if run.data.fingerprint is None:
        return "nobody yet"
    return "first round" if run.work.batches_applied else "turn of its members"


def _both(mine: str, other: str) -> str:
    return f"the client's dataset has fingerprint {mine}, the run's has {other}"


def _difference(run: Run, mine: str, dataset: DatasetDescription | None, other: str | None = None) -> str:
    other = other or pinned_fingerprint(run) or run.data.fingerprint or ""
    return dataset_difference(dataset or run.data.datasets.get(mine), run.data.datasets.get(other))
