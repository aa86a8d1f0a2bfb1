"""Messages of an operator on settings that change from a step on."""

from dataclasses import dataclass, field

from epochal.state.config.changes import Change, differences
from epochal.state.config.mistakes import show
from epochal.state.config.planned_changes import ChangedValues, MixWeights
from epochal.state.config.schema import Positive
from epochal.state.config.state_file import StateFile
from epochal.state.documents import Count
from epochal.state.wire_document import WireDocument


@dataclass(frozen=True, slots=True)
class ChangeRequest(WireDocument):
    """A change to announce (`POST …/changes`).

    Attributes:
        at_step: the first step with the new settings.
        values: the new value of each field, by its dotted path in the state file.
        mix: the weights of the mix's sources, by name; None leaves them as they are.
    """

    at_step: Positive
    values: ChangedValues = field(default_factory=dict)
    mix: MixWeights = None


@dataclass(frozen=True, slots=True)
class AnnouncedChange(WireDocument):
    """The settings that change at a step.

    Attributes:
        is_in_force: whether the step's first round has begun.
        fields: that differ from the step before.
    """

    at_step: Count
    is_in_force: bool
    fields: tuple[Change, ...]


@dataclass(frozen=True, slots=True)
class ChangeList(WireDocument):
    """A run's changes (`GET …/changes`).

    Attributes:
        first_step: the first step whose settings can still change.
        changes: in the order of their steps.
    """

    first_step: Count
    changes: tuple[AnnouncedChange, ...]


def announced_changes(state: StateFile, applied_count: int) -> tuple[AnnouncedChange, ...]:
    """Return the changes of a run's state file, of which the first so many are in force."""
    found, before, mix = [], state.model_copy(update={"changes": ()}).at(0), "as its file says"
    for number, change in enumerate(state.changes):
        after = state.at(change.at_step)
        fields = list(differences(before, after))
        if change.mix is not None:
            fields.append(Change("mix", mix, show(change.mix)))
            mix = show(change.mix)
        found.append(AnnouncedChange(change.at_step, number < applied_count, tuple(fields)))
        before = after
    return tuple(found)
