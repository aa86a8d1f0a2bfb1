"""Which stimuli are an operator's doing, in words for people: name and arguments, without secrets."""

from collections.abc import Mapping

from epochal.coordinator.machine import stimuli
from epochal.coordinator.machine.instructions import OperatorActed
from epochal.coordinator.machine.operator_stimuli import (
    AuditReported,
    FinishRequested,
    InvitationMade,
    InvitationRevoked,
    KeyAdmitted,
    KeyRemoved,
)
from epochal.state.config.changes import runtime_changes
from epochal.state.config.state_file import StateFile
from epochal.state.intervals import BatchId
from epochal.state.shown.operator_actions import MAX_ARGUMENT_CHARS, ActionArgument

_SHOWN_BATCHES = 8
_SHOWN_CHANGES = 8
_Action = tuple[str, Mapping[str, ActionArgument]]


def operator_acted(stimulus: stimuli.Stimulus, before: StateFile, at_s: float) -> tuple[OperatorActed, ...]:
    """Return what an operator did with a stimulus that changed the run; nothing for another's stimulus.

    Args:
        stimulus: that changed the run.
        before: the state file before it.
        at_s: when, on the coordinator's clock.
    """
    found = _access_action(stimulus) or _run_action(stimulus) or _origin_action(stimulus, before)
    if found is None:
        return ()
    name, arguments = found
    cut = {key: value[:MAX_ARGUMENT_CHARS] if isinstance(value, str) else value for key, value in arguments.items()}
    return (OperatorActed(name, cut, at_s),)


def _access_action(stimulus: stimuli.Stimulus) -> _Action | None:
    match stimulus:
        case stimuli.ClientEjected(client_id=client_id):
            return "eject", {"client_id": client_id}
        case InvitationMade(sha256=sha256, uses=uses, expires_s=expires_s):
            return "invite", {"invitation": sha256, "uses": uses, "expires_s": expires_s}
        case InvitationRevoked(sha256=sha256):
            return "revoke invitation", {"invitation": sha256}
        case KeyAdmitted(public_key=key):
            return "access add", {"public_key": key}
        case KeyRemoved(public_key=key):
            return "access remove", {"public_key": key}
    return None


def _run_action(stimulus: stimuli.Stimulus) -> _Action | None:
    match stimulus:
        case stimuli.PauseRequested():
            return "pause", {}
        case stimuli.ResumeRequested():
            return "resume", {}
        case FinishRequested(after_step=step):
            return "finish", {"after_step": step}
        case stimuli.BatchesReleased(intervals=intervals):
            return "release", {"batches": "all" if intervals is None else _shown(intervals)}
        case AuditReported(report=audit):
            verdict = "passed" if audit.passed else f"{len(audit.problems)} problems"
            return "audit", {"verdict": verdict, "rounds": audit.rounds}
    return None


def _origin_action(stimulus: stimuli.Stimulus, before: StateFile) -> _Action | None:
    match stimulus:
        case stimuli.GenesisProvided(checkpoint=checkpoint):
            return "genesis", {"step": checkpoint.step, "replica_digest": checkpoint.replica_digest}
        case stimuli.DataFingerprintSet(data_fingerprint=fingerprint):
            return "pin data", {"data_fingerprint": fingerprint}
        case stimuli.DataAppended(request=request):
            return "append data", {"fingerprint": None if request is None else request.grown_to.fingerprint}
        case stimuli.ConfigChanged(state_file=after):
            return "edit state file", _edits(before, after)
        case stimuli.RunRestored():
            return "restored", {}
        case stimuli.CoordinatorKeyReplaced(coordinator_key=key):
            return "new coordinator key", {"coordinator_key": key}
    return None


def _edits(before: StateFile, after: StateFile) -> dict[str, ActionArgument]:
    """Return the changed fields: with their values in `[config]`, and without elsewhere, where some are secret."""
    changes, _ = runtime_changes(before, after)
    told = {change.path: f"{change.before} → {change.after}" for change in changes if change.path.startswith("config.")}
    others = sorted({".".join(change.path.split(".")[:2]) for change in changes if change.path not in told})
    shown: dict[str, ActionArgument] = dict(list(told.items())[:_SHOWN_CHANGES])
    return shown | ({"others": ", ".join(others)} if others else {})


def _shown(intervals: tuple[BatchId, ...]) -> str:
    shown = ", ".join(str(interval) for interval in intervals[:_SHOWN_BATCHES])
    return shown + (f" and {len(intervals) - _SHOWN_BATCHES} more" if len(intervals) > _SHOWN_BATCHES else "")
