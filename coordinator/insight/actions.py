"""What an operator did, in words for people: name and arguments, without secrets."""

from collections.abc import Mapping

from epochal.coordinator.machine import stimuli
from epochal.coordinator.machine.instructions import OperatorActed
from epochal.coordinator.machine.stimuli import (
    AuditReported,
    FinishRequested,
    InvitationMade,
    InvitationRevoked,
    KeyAdmitted,
    KeyRemoved,
)
from epochal.state.config.changes import runtime_changes
from epochal.state.config.mistakes import show
from epochal.state.config.state_file import StateFile
from epochal.state.intervals import BatchId
from epochal.state.shown.operator_actions import MAX_ARGUMENT_CHARS, ActionArgument
from epochal.state.text.amounts import counted

_SHOWN_BATCHES = 8
_SHOWN_CHANGES = 8


def action_of(acted: OperatorActed) -> tuple[str, Mapping[str, ActionArgument]]:
    """Return what an operator did, and with which arguments."""
    name, arguments = _named(acted)
    cut = {key: value[:MAX_ARGUMENT_CHARS] if isinstance(value, str) else value for key, value in arguments.items()}
    return name, cut


def _named(acted: OperatorActed) -> tuple[str, Mapping[str, ActionArgument]]:
    match acted.stimulus:
        case stimuli.ClientEjected(client_id=client_id):
            return "eject", {"client_id": client_id}
        case stimuli.ClientAbsolved(client_id=client_id):
            return "absolve", {"client_id": client_id}
        case InvitationMade(sha256=sha256, uses=uses, expires_s=expires_s):
            return "invite", {"invitation": sha256, "uses": uses, "expires_s": expires_s}
        case InvitationRevoked(sha256=sha256):
            return "revoke invitation", {"invitation": sha256}
        case KeyAdmitted(public_key=key):
            return "access add", {"public_key": key}
        case KeyRemoved(public_key=key):
            return "access remove", {"public_key": key}
        case stimuli.PauseRequested():
            return "pause", {}
        case stimuli.ResumeRequested():
            return "resume", {}
        case FinishRequested(after_step=step):
            return "finish", {"after_step": step}
        case stimuli.BatchesReleased(intervals=intervals):
            return "release", {"batches": "all" if intervals is None else _shown(intervals)}
        case AuditReported(report=audit):
            verdict = "passed" if audit.passed else counted(len(audit.problems), "problem")
            return "audit", {"verdict": verdict, "rounds": audit.rounds}
        case stimuli.GenesisProvided(checkpoint=checkpoint):
            return "genesis", {"step": checkpoint.step, "replica_digest": checkpoint.replica_digest}
        case stimuli.DataFingerprintSet(data_fingerprint=fingerprint):
            return "pin data", {"data_fingerprint": fingerprint}
        case stimuli.ConfigChanged(state_file=after):
            return "edit state file", _edits(acted.before, after)
        case stimuli.RunRewound(to_step=step, skip=skip):
            return "rewind", {"to_step": step, "data": "skipped" if skip else "trained again"}
        case stimuli.ChangeAnnounced(at_step=step, values=values, mix=mix):
            told = {path: show(value) for path, value in {**values, **({"mix": mix} if mix else {})}.items()}
            rest = {"others": ", ".join(list(told)[_SHOWN_CHANGES:])} if len(told) > _SHOWN_CHANGES else {}
            return "change", {"at_step": step, **dict(list(told.items())[:_SHOWN_CHANGES]), **rest}
        case stimuli.ChangeWithdrawn(at_step=step):
            return "withdraw change", {"at_step": step}
        case stimuli.RunRestored():
            return "restored", {}
        case stimuli.CoordinatorKeyReplaced(coordinator_key=key):
            return "new coordinator key", {"coordinator_key": key}


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
