"""What follows from scores, where results cannot be computed again (`[verify] by = "scores"`).

A score is by how much a part of a result lowers the loss on held-out data that nobody knew before the result was made.
The rule kept here: only its sign counts, and never in a weight, as gains differ by data and by chance; and scores
convict nobody.
"""

from dataclasses import replace
from statistics import median

from epochal.coordinator.machine.instructions import Flagged, Instruction, Scored, SentToRest
from epochal.coordinator.machine.parts.conduct import LONGEST_REST_S, MISSES_BEFORE_REST
from epochal.coordinator.machine.parts.run_members import RunMembers
from epochal.coordinator.machine.parts.verification import MAX_GAINS, OpenReplay, Trust
from epochal.coordinator.machine.replays.closing import closed
from epochal.coordinator.machine.replays.judging import check_may_report, heard, open_replay
from epochal.coordinator.machine.run import Handled, Run
from epochal.coordinator.machine.stimuli import ScoreReported
from epochal.state.errors import Refused
from epochal.state.intervals import total_batches
from epochal.state.refusals import Refusal

LEAST_GAINS = 8
"""Number of the run's scores from which their median says whether results lower the loss at all."""
WORSE_TO_MISS = 3
"""Number of a client's results, one after the other, that make the loss larger and then count as missed rounds."""


def take(run: Run, event: ScoreReported) -> Handled:
    """Return the run after a result was scored.

    A result that makes the loss larger counts only while the median of the run's last scores is above 0.

    Raises:
        Refused: as `judging.take`; `not-found` if the client's result of the step is another one.
    """
    check_may_report(run, event)
    report = event.report
    task = open_replay(run, report.step, report.client_id)
    if report.result_sha256 != task.result_sha256:
        raise Refused(Refusal.NOT_FOUND, f"the result of client {report.client_id} is {task.result_sha256}")
    members, told = heard(run.members, run, event.verifier), (Scored(event.verifier, report),)
    before = members.verification.gains
    is_worse = report.gain < 0 and len(before) >= LEAST_GAINS and median(before) > 0
    verification = closed(members.verification, (task,))
    counts = replace(verification.counts, passed=verification.counts.passed + (not is_worse))
    gains = (*before, report.gain)[-MAX_GAINS:]
    members = members.verified_as(replace(verification, gains=gains, counts=counts))
    trust = members.trust_of(task.client_id)
    if not is_worse:
        return run.with_parts(members.with_trust(task.client_id, replace(trust.with_passed(None), worse=0))), told
    worse = replace(trust, worse=trust.worse + 1)
    if worse.worse < WORSE_TO_MISS:
        return run.with_parts(members.with_trust(task.client_id, worse)), told
    members, missed = _missed(run, members, task, worse)
    return run.with_parts(members), (*told, *missed)


def _missed(run: Run, members: RunMembers, task: OpenReplay, trust: Trust) -> tuple[RunMembers, list[Instruction]]:
    """Return the members with a client at rest whose results made the loss larger, as after missed rounds."""
    reason = f"its last {trust.worse} results that were scored made the loss on held-out data larger"
    members = members.with_trust(task.client_id, replace(trust.with_flag(reason), worse=0))
    told: list[Instruction] = [Flagged(task.client_id, task.step, reason)]
    member, now_s = members.by_id.get(task.client_id), run.clock.now_s
    if member is None:
        return members, told
    conduct = member.conduct
    for _ in range(MISSES_BEFORE_REST):  # what it delivered since would count against one
        conduct = conduct.with_miss(reason, now_s, LONGEST_REST_S, batches=total_batches(task.assignment))
    members = members.with_member(replace(member, conduct=conduct), now_s)
    rest_s = conduct.rest_s(now_s)
    if rest_s is not None:
        told.append(SentToRest(task.client_id, rest_s, conduct.last_miss))
    return members, told
