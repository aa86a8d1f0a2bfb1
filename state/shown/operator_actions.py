"""The actions of a run's operators, as the journal records them (`GET …/actions`)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, TypeAlias

from pydantic import Field

from epochal.state.documents import Count
from epochal.state.wire_document import WireDocument

MAX_ARGUMENT_CHARS = 240
"""Maximum length of an argument; longer ones are cut."""

ActionArgument: TypeAlias = Annotated[str, Field(max_length=MAX_ARGUMENT_CHARS)] | int | float | None


@dataclass(frozen=True, slots=True)
class OperatorAction(WireDocument):
    """A command of an operator that changed the run.

    Attributes:
        number: counts the run's actions, from 0.
        name: what was done, such as `pause`.
        arguments: what it was done with. A secret is never among them.
        at_s: when, in seconds since 1970 on the coordinator's clock.
        version: of the run document that was the published one after it.
    """

    number: Count
    name: str
    arguments: Mapping[str, ActionArgument]
    at_s: float
    version: Count


@dataclass(frozen=True, slots=True)
class ActionsPage(WireDocument):
    """The last actions of a run's operators, the latest last.

    Attributes:
        next: number of the next action.
        actions: the last ones, the latest last; earlier ones are in the journal.
    """

    run_id: str
    lineage: str
    next: Count
    actions: tuple[OperatorAction, ...]
