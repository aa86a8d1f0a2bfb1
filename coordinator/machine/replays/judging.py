"""What verifiers report, and what follows: results pass, or their clients are convicted; verifiers are tested.

A client whose result has passed is flagged if it claims other tokens than its samples have, or if nobody has calibrated
its class and it was farther off than what is calibrated allows.

The rules kept here: nobody is convicted by fewer than three replays, the median of which is above its tolerance, nor,
where verifiers contradict each other, by one verifier alone. Two verifiers that differ by more than a tolerance are
doubted: each gets a result of which the answer is known from several replays, and loses its role if its answer is
another, or if it has none in several rounds. A proven member, or one of the run's first, is convicted only after one of
its accusers has computed the last result again that passed, and found the same; so is a new key, by one verifier alone.
And no verifier is an accuser of more proven members than remain whose results have passed: those of another version, or
with other data, eject nobody or few, also where all are alike. Nothing waits for any of this.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Literal

from epochal.coordinator.machine import membership
from epochal.coordinator.machine.instructions import (
    Convicted,
    Flagged,
    Instruction,
    ReplayJudged,
    ReplaysDropped,
    VerifierTested,
)
from epochal.coordinator.machine.parts.persistent_map import added
from epochal.coordinator.machine.parts.run_members import RunMembers
from epochal.coordinator.machine.parts.verification import (
    MAX_FAILURES,
    MAX_KNOWN,
    MAX_REMEMBERED,
    MAX_VERIFIERS,
    REPORTS_TO_CONVICT,
    UNTRUSTED,
    Distances,
    KnownVerifier,
    OpenReplay,
    Reported,
    Verification,
    replay_key,
)
from epochal.coordinator.machine.replays.closing import closed
from epochal.coordinator.machine.replays.tolerances import (
    MAX_PAIRS,
    distances_key,
    is_beyond_calibrated,
    per_usual,
    tolerance_of,
    with_calibration,
    with_passed,
)
from epochal.coordinator.machine.run import Handled, Run
from epochal.coordinator.machine.stimuli import (
    CalibrationReported,
    ClientAbsolved,
    ReplayFailed,
    ReplayReported,
    ScoreReported,
    VerifierStimulus,
)
from epochal.state.errors import InternalError, Refused
from epochal.state.messages.replay_messages import CalibrationReport, ReplayReport
from epochal.state.refusals import Refusal
from epochal.state.wire import ClientId

BEYOND_CALIBRATED = (
    "it computes in a class that nobody has calibrated ({}), and its result was farther from its replay than every "
    "calibrated tolerance"
)


def take(run: Run, event: VerifierStimulus) -> Handled:
    """Return the run after a verifier's report.

    Raises:
        Refused: `forbidden` for a verifier that lost its role, `not-now` in a run whose results are not computed again,
            `overloaded` for one pair of classes too many, or if too many verifiers lost their role; of a result,
            `stale-round` or `not-found` if its replay is not open, `already-committed` if the verifier has reported it,
            unless others dispute it and no other verifier is there that has not.
    """
    check_may_report(run, event)
    match event:
        case CalibrationReported():
            members = _calibrated(run.members, event.report)
            return run.with_parts(heard(members, run, event.verifier)), ()
        case ReplayFailed():
            return _take_failure(run, event)
        case ReplayReported():
            return _take_report(run, event)
        case ScoreReported():
            raise InternalError("scores are taken elsewhere")


def check_may_report(run: Run, event: VerifierStimulus) -> None:
    """Raise `Refused` if the run has no use for such a report, or none of this verifier's."""
    check_role(run, event.verifier)
    verify = run.state_file.verify
    assert verify is not None
    by = "scores" if isinstance(event, ScoreReported) else verify.by if isinstance(event, ReplayFailed) else "replays"
    if by != verify.by:
        raise Refused(Refusal.NOT_NOW, f'this run has verify.by = "{verify.by}"; reports of {by} are not taken')
    known = run.members.verification.verifiers
    if event.verifier not in known and len(known) >= MAX_VERIFIERS and all(one.is_refused for one in known.values()):
        raise Refused(Refusal.OVERLOADED, f"the run knows {MAX_VERIFIERS} verifiers that lost their role")


def check_role(run: Run, name: str) -> None:
    """Raise `Refused`: `not-now` where nothing is computed again, `forbidden` for a verifier that lost its role."""
    if run.state_file.verify is None:
        message = "results of this run are not computed again; its state file needs a table [verify] for that"
        raise Refused(Refusal.NOT_NOW, message)
    known = run.members.verification.verifiers.get(name)
    if known is not None and known.is_refused:
        raise Refused(Refusal.FORBIDDEN, f"verifier {name} lost its role: it failed at a task with a known answer")


def absolve(run: Run, event: ClientAbsolved) -> Run:
    """Return the run in which a convicted client may join again, as a new one, or in which one is flagged no more.

    Raises:
        Refused: `not-found` if it is neither convicted nor flagged.
    """
    client_id, members = event.client_id, run.members
    verification, trust = members.verification, members.trust_of(client_id)
    if client_id in verification.convicted:
        convicted = {one: figures for one, figures in verification.convicted.items() if one != client_id}
        kept = replace(members, ejected=members.ejected - {client_id})
        return run.with_parts(kept.verified_as(replace(verification, convicted=convicted)))
    if not trust.flagged:
        raise Refused(Refusal.NOT_FOUND, f"client {client_id} is neither convicted nor flagged")
    return run.with_parts(members.with_trust(client_id, replace(trust, flagged="", drift=())))


def heard(members: RunMembers, run: Run, name: str) -> RunMembers:
    """Return the members with a verifier that was heard now, in the place of that silent for longest if need be."""
    known = dict(members.verification.verifiers)
    before = known.get(name, KnownVerifier(run.progress.step))
    if name not in known and len(known) >= MAX_VERIFIERS:
        del known[min((one for one in known if not known[one].is_refused), key=lambda one: known[one].heard_step)]
    known[name] = replace(before, heard_step=run.progress.step, reports=before.reports + 1)
    return members.verified_as(replace(members.verification, verifiers=known))


def _calibrated(members: RunMembers, report: CalibrationReport) -> RunMembers:
    key = distances_key(report.result_class, report.replay_class, report.local_steps, of_states=report.of_states)
    verification = members.verification
    known = verification.distances.get(key)
    if known is None and len(verification.distances) >= MAX_PAIRS:  # members may have made them up
        others = [pair for pair, distances in verification.distances.items() if distances.calibrated is None]
        if not others:
            raise Refused(Refusal.OVERLOADED, f"the run knows {MAX_PAIRS} calibrated pairs of classes, all it may")
        kept = {pair: distances for pair, distances in verification.distances.items() if pair != others[-1]}
        verification = replace(verification, distances=kept)
    return members.verified_as(_with_distances(verification, key, with_calibration(known, report.distances)))


def _with_distances(verification: Verification, key: str, distances: Distances) -> Verification:
    return replace(verification, distances={**verification.distances, key: distances})


def _take_failure(run: Run, event: ReplayFailed) -> Handled:
    failure, members = event.failure, heard(run.members, run, event.verifier)
    verification = members.verification
    test = verification.test_of(event.verifier)
    if test is not None and test.key == replay_key(failure.step, failure.client_id):
        return _failed_test(run, members, event.verifier, test)
    control = _control_of(run, event.verifier)
    if control is not None and control.key == replay_key(failure.step, failure.client_id):
        return run.with_parts(members.verified_as(replace(verification, control=None))), ()
    task = open_replay(run, failure.step, failure.client_id)
    if not task.wants(event.verifier):  # it has failed often enough, or reported
        return run, ()
    failed = replace(task, failures=(*task.failures, event.verifier))
    if len(set(failed.failures)) < MAX_FAILURES:
        return run.with_parts(members.verified_as(_with_open(verification, failed))), ()
    counts = replace(verification.counts, dropped=verification.counts.dropped + 1)
    members = members.verified_as(replace(closed(verification, (task,)), counts=counts))
    reason = f"{MAX_FAILURES} verifiers failed, the last one by {failure.kind}: {failure.message}"
    return run.with_parts(members), (ReplaysDropped((failed,), reason),)


def _failed_test(run: Run, members: RunMembers, name: str, test: OpenReplay) -> Handled:
    """Return the run after a doubted verifier could not do its test; in several rounds, it loses its role."""
    verification, step = members.verification, run.progress.step
    known = verification.verifiers[name]
    failed = known.failed_tests if step in known.failed_tests else (*known.failed_tests, step)
    is_refused = len(failed) >= MAX_FAILURES
    after = replace(known, failed_tests=failed, is_refused=is_refused)
    verification = replace(verification, verifiers={**verification.verifiers, name: after})
    if is_refused:
        verification = _without_reports(verification, name)
    told = VerifierTested(name, None, test.answer, is_refused)
    return run.with_parts(members.verified_as(verification)), (told,)


def open_replay(run: Run, step: int, client_id: str) -> OpenReplay:
    """Return a result that is to be computed again, or scored. Raise `Refused` if it is not, or is no longer."""
    found = run.members.verification.open.get(replay_key(step, client_id))
    if found is not None:
        return found
    message = f"the result of client {client_id} of step {step} is not to be computed again, or is no longer"
    raise Refused(Refusal.STALE_ROUND if step < run.progress.step else Refusal.NOT_FOUND, message)


def _with_open(verification: Verification, replay: OpenReplay) -> Verification:
    return replace(verification, open=added(verification.open, replay.key, replay))


def _take_report(run: Run, event: ReplayReported) -> Handled:
    report, name = event.report, event.verifier
    verification, key = run.members.verification, replay_key(report.step, report.client_id)
    test = verification.test_of(name)
    if test is not None and key == test.key and report.result_sha256 == test.result_sha256:
        return _tested(run, event, test)
    if test is not None:
        raise Refused(Refusal.NOT_FOUND, f"verifier {name} is doubted: first it is to compute {test.key} again")
    control = _control_of(run, name)
    if control is not None and key == control.key and report.result_sha256 == control.result_sha256:
        return _controlled(run, event, control)
    task = open_replay(run, report.step, report.client_id)
    if report.result_sha256 != task.result_sha256:
        raise Refused(Refusal.NOT_FOUND, f"the result of client {report.client_id} is {task.result_sha256}")
    assert run.state_file.verify is not None
    has_others = verification.is_for_others(task, name, run.progress.step, run.state_file.verify.within)
    for one in task.reports:
        if one.verifier == name and one.report == report:
            return run, ()
        if one.verifier == name and (not task.wants(name) or has_others):
            message = f"verifier {name} has reported the result of step {report.step} of client {report.client_id}"
            raise Refused(Refusal.ALREADY_COMMITTED, message)
    if (task.states is None) != (report.state_excess is None):
        raise Refused(
            Refusal.INVALID_BODY, "`state_excess` is reported where clients keep inner states, and only there"
        )
    local_steps = run.identity.state_file.at(report.step).merge.local_steps
    found = _reported(verification, name, report, local_steps)
    members = heard(run.members, run, name)
    task = replace(task, reports=(*task.reports, found))
    members = members.verified_as(_doubting(_with_open(members.verification, task), task.reports))
    verdict = _verdict(task, has_others=has_others, is_new=_is_new(run, task))
    told: tuple[Instruction, ...] = (ReplayJudged(name, report, found.tolerance, verdict or "passed"),)
    run = run.with_parts(members)
    match verdict:
        case "passed":
            after = _passed(members, task, local_steps)
            return run.with_parts(after), (*told, *_newly_flagged(members, after, (task.client_id,), task.step))
        case "unclear":
            return run.with_parts(_settled(members, task, dropped=1)), told
        case "convicted":
            run, convicted = _convicted(run, task)
            return run, (*told, *convicted)
    return run, told


def _reported(verification: Verification, name: str, report: ReplayReport, local_steps: int) -> Reported:
    """Return a report with its tolerances."""
    result_pair, state_pair = (
        distances_key(report.result_class, report.replay_class, local_steps, of_states=of_states)
        for of_states in (False, True)
    )
    tolerance = tolerance_of(verification.distances.get(result_pair))
    if report.state_excess is None:
        return Reported(name, report, tolerance)
    return Reported(name, report, tolerance, tolerance_of(verification.distances.get(state_pair)))


def _is_new(run: Run, task: OpenReplay) -> bool:
    """Return whether a result's client is a new key: none of those of the run's beginning, and nothing has passed."""
    trust = run.members.trust_of(task.client_id)
    return trust.examined and not trust.passed


def _verdict(
    task: OpenReplay, *, has_others: bool, is_new: bool
) -> Literal["passed", "disputed", "unclear", "convicted"] | None:
    """Return what the reports on a result give: "disputed" or None while others are due.

    One that has passed waits for another verifier if it is to be compared and there is one.
    """
    above = [one for one in task.reports if one.ratio > 1]
    if not above:
        return None if task.is_compared and has_others and len(task.reports) == 1 else "passed"
    if len(task.reports) < REPORTS_TO_CONVICT:
        return "disputed"
    if task.answer_ratio <= 1:
        return "passed"
    if not task.accusers:
        return "unclear"
    return "convicted" if is_new and len(task.accusers) > 1 else "disputed"  # until an accuser has done its control


def _doubting(verification: Verification, reports: Sequence[Reported]) -> Verification:
    """Return it with verifiers doubted that differ from each other by more than their tolerances on the same result."""
    verifiers = dict(verification.verifiers)
    *earlier, last = reports
    for one in earlier:
        if one.verifier == last.verifier:
            continue
        low, high = sorted((one, last), key=lambda each: each.excess)
        if high.excess - low.excess > max(low.limit, high.limit):
            verifiers[low.verifier] = replace(verifiers[low.verifier], doubt="below")
            verifiers[high.verifier] = replace(verifiers[high.verifier], doubt="above")
    return replace(verification, verifiers=verifiers)


def _tested(run: Run, event: ReplayReported, test: OpenReplay) -> Handled:
    """Return the run after a doubted verifier computed a result again of which the answer is known."""
    members, report = heard(run.members, run, event.verifier), event.report
    verification = members.verification
    local_steps = run.identity.state_file.at(report.step).merge.local_steps
    found = _reported(verification, event.verifier, report, local_steps)
    is_wrong = abs(found.excess - test.answer) > found.limit
    after = replace(verification.verifiers[event.verifier], doubt="", failed_tests=(), is_refused=is_wrong)
    verification = replace(verification, verifiers={**verification.verifiers, event.verifier: after})
    if is_wrong:
        verification = _without_reports(verification, event.verifier)
    told = VerifierTested(event.verifier, found.excess, test.answer, is_wrong)
    return run.with_parts(members.verified_as(verification)), (told,)


def _control_of(run: Run, name: str) -> OpenReplay | None:
    assert run.state_file.verify is not None
    return run.members.verification.control_of(name, run.progress.step, run.state_file.verify.within)


def _controlled(run: Run, event: ReplayReported, control: OpenReplay) -> Handled:
    """Return the run after an accuser computed a result again that it, or another verifier, had passed.

    What it and others have found false convicts now. If the result is another this time, it loses its role if it had
    passed it itself; else both are doubted.
    """
    verify, name = run.state_file.verify, event.verifier
    assert verify is not None
    accused = run.members.verification.accused_by(name, run.progress.step, verify.within)
    run, told = (_tested if name == control.reports[0].verifier else _compared)(run, event, control)
    if run.members.verification.control is not control:
        return run, told
    proven = {client_id for client_id, one in run.members.by_id.items() if one.trust.passed > 0}
    for task in accused:
        if task.key in run.members.verification.open:  # else another of its client's results has convicted it
            proven.discard(task.client_id)
            run, convicted = _accused(run, task, len(proven))
            told = (*told, *convicted)
    return run, told


def _compared(run: Run, event: ReplayReported, control: OpenReplay) -> Handled:
    """Return the run after a verifier computed again what another had passed: without it if they differ."""
    members, report = heard(run.members, run, event.verifier), event.report
    verification = members.verification
    local_steps = run.identity.state_file.at(report.step).merge.local_steps
    found, (before,) = _reported(verification, event.verifier, report, local_steps), control.reports
    if abs(found.excess - before.excess) > max(found.limit, before.limit):
        verification = replace(_doubting(verification, (before, found)), control=None)
    return run.with_parts(members.verified_as(verification)), ()


def _accused(run: Run, task: OpenReplay, remain: int) -> Handled:
    """Return the run with a member convicted by its accusers, or their word dropped.

    Args:
        run: of the result.
        task: the result.
        remain: number of other members with results that have passed, below which they may convict such members.
    """
    if _is_new(run, task):
        return _convicted(run, task)
    verification, names = run.members.verification, sorted(task.accusers)
    by = {name: verification.verifiers[name] for name in names if name in verification.verifiers}
    most = max((one.accused for one in by.values()), default=0)
    if most >= remain:
        reason = (
            f"{' and '.join(names)} found it false, as those of {most} other members; {remain} remain. "
            "A verifier with a new token begins anew"
        )
        return run.with_parts(_settled(run.members, task, dropped=1)), (ReplaysDropped((task,), reason),)
    known = {**verification.verifiers} | {name: replace(one, accused=one.accused + 1) for name, one in by.items()}
    return _convicted(run.with_parts(run.members.verified_as(replace(verification, verifiers=known))), task)


def _without_reports(verification: Verification, name: str) -> Verification:
    """Return it without a verifier's reports on results that are still open, and without its control."""
    if verification.control is not None and verification.control.reports[0].verifier == name:
        verification = replace(verification, control=None)
    for one in list(verification.open.values()):
        kept = tuple(of for of in one.reports if of.verifier != name)
        if len(kept) < len(one.reports):
            verification = _with_open(verification, replace(one, reports=kept))
    return verification


def _settled(members: RunMembers, task: OpenReplay, *, passed: int = 0, dropped: int = 0) -> RunMembers:
    """Return the members with a replay closed, and counted."""
    verification = closed(members.verification, (task,))
    counts = verification.counts
    counts = replace(counts, passed=counts.passed + passed, dropped=counts.dropped + dropped)
    return members.verified_as(replace(verification, counts=counts))


def _passed(members: RunMembers, task: OpenReplay, local_steps: int) -> RunMembers:
    """Return the members after a result has passed."""
    members, trust = _settled(members, task, passed=1), members.trust_of(task.client_id)
    last = next(one for one in reversed(task.reports) if one.ratio <= 1)
    pair = distances_key(last.report.result_class, last.report.replay_class, local_steps)
    verification = _with_known(members.verification, task)
    verification = verification if task.is_disputed or len(task.reports) > 1 else replace(verification, control=task)
    before = verification.distances.get(pair)
    passed = {pair: last.report.excess}
    if last.report.state_excess is not None:
        classes = last.report.result_class, last.report.replay_class
        passed[distances_key(*classes, local_steps, of_states=True)] = last.report.state_excess
    for key, excess in passed.items():
        known = verification.distances.get(key)
        if known is not None or len(verification.distances) < MAX_PAIRS:
            verification = _with_distances(verification, key, with_passed(known, task.client_id, excess))
    trust = trust.with_passed(per_usual(before, task.client_id, last.report.excess))
    is_beyond = is_beyond_calibrated(verification.distances, pair, local_steps, last.report.excess)
    reason = task.miscount or (BEYOND_CALIBRATED.format(last.report.result_class) if is_beyond else "")
    trust = trust.with_flag(reason) if reason else trust
    return members.verified_as(verification).with_trust(task.client_id, trust)


def _with_known(verification: Verification, task: OpenReplay) -> Verification:
    """Return it with a result as one of those with a known answer, if replays of different verifiers agree on it.

    One verifier alone gives no answer, however often it repeats itself, nor do several of which each found something
    else, whichever is in the middle: others are tested by it.
    """
    is_clear = all(
        abs(one.excess - other.excess) <= max(one.limit, other.limit) for one, other in combinations(task.reports, 2)
    )
    agreeing = {one.verifier for one in task.reports if abs(one.excess - task.answer) <= one.limit}
    if not (len(agreeing) > 1 and (len(task.reports) >= REPORTS_TO_CONVICT or is_clear)):
        return verification
    is_above = task.answer_ratio > 1
    alike = [one for one in verification.known if (one.answer_ratio > 1) == is_above]
    others = [one for one in verification.known if (one.answer_ratio > 1) != is_above]
    return replace(verification, known=(*others, *[*alike, task][-MAX_KNOWN:]))


def _convicted(run: Run, task: OpenReplay) -> Handled:
    """Return the run without a convicted client, whose waiting results are void; those it came with are flagged."""
    client_id, members = task.client_id, run.members
    found = ", ".join(_figures(one) for one in task.reports)
    figures = f"its result of step {task.step} was farther from what verifiers computed than is allowed: {found}"
    invitation = members.admissions.admitted.get(client_id)
    run, left = membership.leave(run, (client_id,), "convicted")
    members = run.members
    verification = closed(
        members.verification, [one for one in members.verification.open.values() if one.client_id == client_id]
    )
    counts = replace(verification.counts, convicted=verification.counts.convicted + 1)
    convicted = dict(list({**verification.convicted, client_id: figures}.items())[-MAX_REMEMBERED:])
    verification = replace(verification, counts=counts, convicted=convicted).with_trust(client_id, UNTRUSTED)
    members = members.verified_as(_with_known(verification, task))
    if len(members.ejected) < membership.MAX_EJECTED:
        members = members.ejecting(client_id)
    reason = f"client {client_id}, which came by the same invitation, was convicted"
    alike = _invited_alike(members, client_id, invitation)
    before = members
    for other in alike:
        members = members.with_trust(other, members.trust_of(other).with_flag(reason))
    told = Convicted(client_id, task.step, figures, run.clock.now_s)
    return run.with_parts(members), (*left, told, *_newly_flagged(before, members, alike, task.step))


def _newly_flagged(
    before: RunMembers, members: RunMembers, clients: Iterable[ClientId], step: int
) -> Iterator[Instruction]:
    """Yield what is logged of those of these clients that are flagged now, and were not before for this reason."""
    for client_id in clients:
        reason = members.trust_of(client_id).flagged
        if reason and reason != before.trust_of(client_id).flagged:
            yield Flagged(client_id, step, reason)


def _figures(one: Reported) -> str:
    of_state = ""
    if one.state_tolerance is not None:
        of_state = f", its inner state {one.report.state_excess:.3g} (of {one.state_tolerance:.3g}),"
    return f"{one.report.excess:.3g} (of {one.tolerance:.3g}){of_state} by {one.verifier}"


def _invited_alike(members: RunMembers, client_id: ClientId, invitation: str | None) -> list[ClientId]:
    """Return the other clients that came by an invitation."""
    if invitation is None:
        return []
    admitted = members.admissions.admitted
    return [one for one, by in admitted.items() if by == invitation and one not in members.ejected and one != client_id]
