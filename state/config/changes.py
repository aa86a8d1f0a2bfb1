"""Compares two state files of one run (a state.toml that was edited between two starts).

The coordinator's settings may change; settings on which the replicas' bytes, the data's order or the ledger depend may
not. `run_state` and `[progress]` are the coordinator's own lines, kept in its journal, and are not compared.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from epochal.state.config.mistakes import show_at
from epochal.state.config.model_table import P2P, P2PGcs
from epochal.state.config.state_file import StateFile
from epochal.state.wire_document import WireDocument

CHANGEABLE = (
    "config.warmup_time",
    "config.cooldown_time",
    "config.epoch_time",
    "config.max_round_train_time",
    "config.round_witness_time",
    "config.waiting_for_members_extra_time",
    "config.min_clients",
    "config.init_min_clients",
    "config.witness_nodes",
    "config.total_steps",
    "config.client_timeout_s",
    "config.on_bad_data",
    "config.data_fingerprint",
    "config.checkpoint_every",
    "config.max_share",
    "merge.norm_limit",
    "model.LLM.tokenizer",
    "access",
    "client",
    "blobs",
    "run",
    "notify",
    "verify",
    "config.verification_percent",
)
"""The fields, and whole tables, that may change between two starts; everything else is refused."""

CHECKPOINT = ("model.LLM.checkpoint",)
"""Changes only to `P2P` or `P2PGcs`, the run's own checkpoint, and only once there is one."""

COORDINATORS_OWN = ("run_state", "progress")
"""Lines that the coordinator rewrites; an edit there is neither applied nor refused."""
PLANNED = "changes"
"""The run keeps its own, which `epochal change` announces; a file that has another one is refused."""


@dataclass(frozen=True, slots=True)
class Change(WireDocument):
    """One difference: the dotted path, and the value before and after as a file spells it; None for a missing line.

    Webhooks' addresses are left out.
    """

    path: str
    before: str | None
    after: str | None

    def __str__(self) -> str:
        return f"{self.path}: {self.before or '(absent)'} → {self.after or '(absent)'}"


def runtime_changes(
    old: StateFile, new: StateFile, *, has_checkpoint: bool = True
) -> tuple[tuple[Change, ...], tuple[Change, ...]]:
    """Return the differences that are applied, and those that are refused, both in the file's order.

    A difference in an enum's variant is one change of the whole field.

    Args:
        old: the run's.
        new: the edited one.
        has_checkpoint: whether the run has a checkpoint of its own, from which it continues whatever the file names.
    """
    goes_on = has_checkpoint and goes_on_from_its_own(new) and old.model.LLM.spec == new.model.LLM.spec
    changeable = (*CHANGEABLE, *CHECKPOINT) if goes_on else CHANGEABLE
    known = _planned(old)
    own: tuple[str, ...] = COORDINATORS_OWN
    if all(one in known for one in _planned(new)):
        own = (*own, PLANNED)
    changes = [change for change in differences(old, new) if not _is_under(change, own)]
    applied = tuple(change for change in changes if _is_under(change, changeable))
    refused = tuple(change for change in changes if not _is_under(change, changeable))
    return applied, refused


def differences(old: StateFile, new: StateFile) -> tuple[Change, ...]:
    """Return every difference between two state files, in the file's order."""
    return tuple(_differences("", old.to_plain(), new.to_plain()))


def _planned(state: StateFile) -> list[tuple[int, Any, Any]]:
    """Return the file's changes without the lines that are the coordinator's."""
    return [(change.at_step, change.values, change.mix) for change in state.changes]


def goes_on_from_its_own(state: StateFile) -> bool:
    """Return whether the file's `checkpoint` means the run's own checkpoint, once it has one."""
    return isinstance(state.model.LLM.checkpoint, P2P | P2PGcs)


def names_the_checkpoint(change: Change) -> bool:
    """Return whether a difference is in the file's `checkpoint`."""
    return _is_under(change, CHECKPOINT)


def _differences(path: str, old: Any, new: Any) -> Iterator[Change]:
    if isinstance(old, Mapping) and isinstance(new, Mapping) and old.keys() == new.keys():
        for key in old:
            yield from _differences(f"{path}.{key}" if path else key, old[key], new[key])
    elif old != new:
        place = tuple(path.split("."))
        yield Change(path, *(None if value is None else show_at(place, value) for value in (old, new)))


def _is_under(change: Change, paths: tuple[str, ...]) -> bool:
    return any(change.path == path or change.path.startswith(f"{path}.") for path in paths)
