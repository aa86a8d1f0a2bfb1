"""Messages about going back to a kept checkpoint (`POST …/rewind`)."""

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from epochal.state.documents import Count, RewindMark
from epochal.state.wire_document import WireDocument


@dataclass(frozen=True, slots=True)
class RewindRequest(WireDocument):
    """An operator's command to go back.

    Attributes:
        to_step: of a kept checkpoint.
        skip: whether the batches are passed over that were applied since, or are under way.
    """

    to_step: Annotated[int, Field(ge=0)]
    skip: bool = False


@dataclass(frozen=True, slots=True)
class RewindChoice(WireDocument):
    """A step to which the run can go back, and what that takes back.

    Attributes:
        step: of a kept checkpoint.
        rounds: number of applied rounds since.
        batches, tokens: number of batches that these applied, and of tokens in them.
        batches_under_way: number of batches of the round under way.
    """

    step: Count
    rounds: Count
    batches: Count
    tokens: Count
    batches_under_way: Count


@dataclass(frozen=True, slots=True)
class RewindChoices(WireDocument):
    """The steps to which the run can go back (`GET …/rewind`).

    Attributes:
        step: the last step that is applied.
        choices: the kept checkpoints, the oldest first.
        rewound: the last time that the run went back; None if it never did.
    """

    step: Count
    choices: tuple[RewindChoice, ...]
    rewound: RewindMark | None = None
