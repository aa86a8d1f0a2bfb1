"""Which blobs the run waits for, from whom, and which were delivered. Pure functions of the run."""

from epochal.coordinator.machine.replays.reveals import is_revealed
from epochal.coordinator.machine.run import Run
from epochal.coordinator.machine.views import ExpectedBlob, expected_blob
from epochal.state.documents import Outcome
from epochal.state.errors import Refused
from epochal.state.refusals import Refusal
from epochal.state.wire import ClientId, Sha256


def expectations(run: Run) -> tuple[object, ...]:
    """Return what changes whenever the run waits for other blobs, apart from new commitments and members."""
    return run.clock.phase, run.progress.step, run.progress.attempt, run.models.checkpointing


def _has_committed(run: Run, client_id: ClientId, sha256: Sha256) -> bool:
    bound = None if run.round is None else run.round.results.commitments.get(client_id)
    return bound is not None and bound.result_sha256 == sha256


def is_delivered(run: Run, client_id: ClientId, sha256: Sha256) -> bool:
    """Whether these bytes were delivered and counted: a client that lost the answer delivers again."""
    if run.round is not None and client_id in run.round.results.verified and _has_committed(run, client_id, sha256):
        return True
    if any(sha256 in dict(run.models.blobs_of(checkpoint)) for checkpoint in run.models.checkpoints):
        return True
    if is_revealed(run, client_id, sha256):
        return True
    last = run.models.outcomes.get(run.progress.replica_step)
    return last is not None and _LAST.results_of(last).get(client_id) == sha256


class _LastOutcome:
    """The results of the outcome that was read last, by client: thousands of deliveries ask for the same one."""

    def __init__(self) -> None:
        self._outcome: Outcome | None = None
        self._results: dict[ClientId, Sha256] = {}

    def results_of(self, outcome: Outcome) -> dict[ClientId, Sha256]:
        """Return the digest of each client's result."""
        if self._outcome is not outcome:
            results = {ClientId(entry.client_id): Sha256(entry.result_sha256) for entry in outcome.entries}
            self._outcome, self._results = outcome, results
        return self._results


_LAST = _LastOutcome()


def announced(run: Run, client_id: ClientId, sha256: Sha256) -> ExpectedBlob:
    """Return the blob that this member announced and may deliver now. Raise `Refused` if there is none."""
    if client_id not in run.members:
        raise Refused(Refusal.UNAUTHORIZED, f"client {client_id} is not a member; join again")
    expected = expected_blob(run, client_id, sha256)
    if expected is not None:
        return expected
    if run.round is None or not _has_committed(run, client_id, sha256):
        raise Refused(Refusal.NOT_COMMITTED, f"client {client_id} is not expected to deliver blob {sha256}")
    broken = run.round.missing.rejected.get(client_id)
    if broken is not None:
        raise Refused(Refusal.RESULT_INVALID, f"this result broke rule {broken!r}", rule=broken)
    raise Refused(Refusal.LATE_RESULT, "the result came after the round's training time")


def refusal_of(run: Run, client_id: ClientId, sha256: Sha256) -> Refused | None:
    """Return why this member may not deliver a blob any more; None if it may."""
    try:
        announced(run, client_id, sha256)
    except Refused as refusal:
        return refusal
    return None
