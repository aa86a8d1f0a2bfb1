"""The log lines of what happens in a run."""

import logging

from epochal.coordinator.insight.actions import action_of
from epochal.coordinator.machine.instructions import (
    BatchesQuarantined,
    CheckpointRefused,
    Convicted,
    Flagged,
    MembershipChanged,
    OperatorActed,
    OutcomeDecided,
    PhaseChanged,
    QuarantineEnded,
    Recorded,
    ReplayJudged,
    ReplaysDrawn,
    ReplaysDropped,
    Rewound,
    RunHeld,
    Scored,
    SegmentEnded,
    SentToRest,
    StateWithheld,
    VerifierTested,
)
from epochal.coordinator.machine.run import Run
from epochal.coordinator.machine.stimuli import EvaluationReported
from epochal.coordinator.run.service_events import ServiceEvent
from epochal.state.client_names import shown_client
from epochal.state.documents import tries_before
from epochal.state.phase_names import RunState
from epochal.state.wire import ClientId

log = logging.getLogger(__name__)


def log_event(instruction: ServiceEvent, run: Run) -> None:
    """Log what happened, if it is worth a line.

    Args:
        instruction: of the machine, or another event of the service.
        run: after it, which knows its members' names.
    """
    match instruction:
        case PhaseChanged(before=before, after=after, reason=reason):
            log.info("phase_changed", extra={"before": before.value, "after": after.value, "reason": reason})
            if after is RunState.FINISHED:
                serving = "goes on, for clients that come late, until it is stopped"
                log.info("run_finished", extra={"serving": serving})
        case OutcomeDecided(step=step, attempt=attempt, outcome=outcome, reason=reason):
            applied = 0 if outcome is None else len(outcome.entries)
            fields = {"step": step, "attempt": tries_before(attempt), "applied_results": applied, "reason": reason}
            log.info("outcome_decided", extra=fields)
        case BatchesQuarantined(batch_id=batch_id, against=against, message=message):
            failed_on = [shown_client(one, _name_of(run, one).get("client_name", "")) for one in against]
            told = {"batch_id": str(batch_id), "failed_on": failed_on, "reason": message}
            log.warning("batches_quarantined", extra=told)
        case Rewound(mark=mark, rounds=rounds, batches_again=again, batches_skipped=skipped):
            taken = {"step": mark.step, "branch": mark.branch, "rounds_taken_back": rounds}
            log.warning("run_rewound", extra={**taken, "batches_again": again, "batches_skipped": skipped})
        case RunHeld(reason=reason):
            log.warning("run_held", extra={"reason": reason})
        case QuarantineEnded(batches=batches):
            log.info("batches_released", extra={"batches": [str(batch) for batch in batches]})
        case MembershipChanged(client_id=client_id, change=change, member=member):
            name = {"client_name": member.name} if member is not None and member.name else {}
            log.info("membership_changed", extra={"client_id": client_id, **name, "change": change})
        case CheckpointRefused(client_id=client_id, step=step, rule=rule):
            refused = {"client_id": client_id, **_name_of(run, client_id), "step": step, "rule": rule}
            log.warning("checkpoint_refused", extra=refused)
        case SentToRest(client_id=client_id, rest_s=rest_s, reason=reason):
            why = {"rest_s": rest_s, "reason": reason}
            log.warning("client_rests", extra={"client_id": client_id, **_name_of(run, client_id), **why})
        case ReplaysDrawn(step=step, replays=replays):
            log.info("replays_drawn", extra={"step": step, "count": len(replays)})
        case ReplaysDropped(replays=replays, reason=reason):
            steps = sorted({one.step for one in replays})
            log.warning("replays_dropped", extra={"count": len(replays), "steps": steps, "reason": reason})
        case ReplayJudged(verifier=verifier, report=found, tolerance=tolerance, verdict=verdict):
            of = {"client_id": found.client_id, **_name_of(run, found.client_id), "step": found.step}
            distance = {"excess": found.excess, "tolerance": tolerance, "replay_class": found.replay_class}
            log.info("replayed", extra={"verifier": verifier, **of, **distance, "verdict": verdict})
        case Scored(verifier=verifier, report=score):
            of = {"client_id": score.client_id, **_name_of(run, score.client_id), "step": score.step}
            log.info("scored", extra={"verifier": verifier, **of, "gain": score.gain, "samples": score.samples})
        case Flagged(client_id=client_id, step=step, reason=reason):
            of = {"client_id": client_id, **_name_of(run, client_id), "step": step}
            log.warning("client_flagged", extra={**of, "reason": reason})
        case StateWithheld(client_id=client_id, step=step):
            log.warning(
                "inner_state_withheld", extra={"client_id": client_id, **_name_of(run, client_id), "step": step}
            )
        case Convicted(client_id=client_id, step=step, figures=figures):
            log.warning("client_convicted", extra={"client_id": client_id, "step": step, "reason": figures})
        case VerifierTested(verifier=verifier, found=excess, expected=expected, is_refused=is_refused):
            answer = {"excess": excess, "expected": expected, "is_refused": is_refused}
            log.warning("verifier_tested", extra={"verifier": verifier, **answer})
        case Recorded(stimulus=EvaluationReported(report=found)):
            evaluated = {"evaluation": found.name, "step": found.step, found.metric: found.value}
            log.info("evaluation_recorded", extra=evaluated)
        case OperatorActed():
            action, arguments = action_of(instruction)
            log.info("operator_acted", extra={"action": action, "with": dict(arguments)})
        case SegmentEnded(epoch=epoch):
            log.debug("segment_ended", extra={"epoch": epoch})


def _name_of(run: Run, client_id: ClientId) -> dict[str, str]:
    """Return the field with a member's name, if it has one."""
    member = run.members.by_id.get(client_id)
    return {"client_name": member.name} if member is not None and member.name else {}
