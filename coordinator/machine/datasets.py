"""Which data a run trains on: the operator's word, else that of the members who first deliver.

Every ready report names the fingerprint of the member's data. A fingerprint that `state.toml` or the operator's command
pins is the run's. Without one, data have turns, each of a round or, if it does not begin, a Warmup: first those of most
members, then, each time that nobody delivered anything, those of at least `min_clients` members that have waited
longest. The first applied round decides for good. Keys cost nothing, so numbers alone decide nothing: data that are
reported later have a later turn, however many members have them. Only members with the run's data are ready.
"""

from epochal.coordinator.machine.parts.agreed_data import AgreedData
from epochal.coordinator.machine.parts.member import Member
from epochal.coordinator.machine.parts.run_work import RunWork
from epochal.coordinator.machine.run import Run
from epochal.coordinator.machine.stimuli import DataFingerprintSet
from epochal.state.dataset_descriptions import DatasetDescription, dataset_difference
from epochal.state.errors import Refused
from epochal.state.messages.requests import DataDecision, DatasetView, ReadyReport
from epochal.state.refusals import Refusal
from epochal.state.text.amounts import counted


def check_dataset(data: AgreedData, work: RunWork, in_file: str | None, report: ReadyReport) -> None:
    """Raise `Refused(Refusal.FINGERPRINT_DIFFERS)` if it is decided that the run trains on other data.

    Args:
        data, work: of the run.
        in_file: the fingerprint that `state.toml` pins.
        report: the member's.
    """
    decided, mine = in_file or data.pin or (data.fingerprint if work.batches_applied else None), report.data_fingerprint
    if decided is not None and mine != decided:
        difference = dataset_difference(report.dataset or data.datasets.get(mine), data.datasets.get(decided))
        raise Refused(Refusal.FINGERPRINT_DIFFERS, f"{_both(mine, decided)}: {difference}", expected=decided)


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
    pinned = run.state_file.config.data_fingerprint or run.data.pin
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


def disagreement(data: AgreedData, member: Member | None) -> Refused | None:
    """Return why a member whose report was recorded is not ready: it is the turn of other data. None if it is."""
    mine = None if member is None else member.readiness.data_fingerprint
    if mine is None or mine == data.fingerprint:
        return None
    decision = (
        "its data have a turn if nobody delivers with the others; the operator can pin the right data: "
        "`epochal fingerprint`, or `data_fingerprint` in state.toml"
    )
    if data.fingerprint is None:
        counts = sorted(data.votes.values(), reverse=True)
        other = next((fingerprint for fingerprint in data.votes if fingerprint != mine), mine)
        message = (
            f"members have different data, and no data have a majority ({' to '.join(map(str, counts[:4]))}): "
            f"{_both(mine, other)}"
        )
    else:
        other = data.fingerprint
        message = f"{counted(data.votes.get(other, 0), 'member')} with other data: {_both(mine, other)}"
    difference = dataset_difference(data.datasets.get(mine), data.datasets.get(other))
    expected = {} if data.fingerprint is None else {"expected": other}
    return Refused(Refusal.DATA_UNDECIDED, f"{message}: {difference}. This client waits; {decision}", **expected)


def datasets_of(data: AgreedData, most: int) -> tuple[DatasetView, ...]:
    """Return the data that members have, the most frequent ones first."""
    voted = sorted(data.votes.items(), key=lambda item: (-item[1], item[0]))[:most]
    return tuple(DatasetView(fingerprint, count, data.datasets.get(fingerprint)) for fingerprint, count in voted)


def decided_by(data: AgreedData, work: RunWork, in_file: str | None) -> DataDecision:
    """Return who or what decided which data the run trains on: `in_file` is what `state.toml` pins."""
    if in_file is not None:
        return "state file"
    if data.pin is not None:
        return "operator"
    if data.fingerprint is None:
        return "nobody yet"
    return "first round" if work.batches_applied else "turn of its members"


def _both(mine: str, other: str) -> str:
    return f"the client's dataset has fingerprint {mine}, the run's has {other}"
