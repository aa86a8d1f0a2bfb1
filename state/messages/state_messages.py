"""The inner states to which a client commits with its result, and which it reveals when it is challenged.

`docs/verification.md` says what follows. Their files are those of `state/replays/inner_states.py`.
"""

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from epochal.state.documents import HexSha256
from epochal.state.wire_document import WireDocument


@dataclass(frozen=True, slots=True)
class StateBlob(WireDocument):
    """The file of an inner state, by digest and size."""

    sha256: HexSha256
    size_bytes: Annotated[int, Field(ge=1)]


@dataclass(frozen=True, slots=True)
class InnerStates(WireDocument):
    """The inner states of a client's round.

    Attributes:
        begin: with which it began: that of the client's last result that counted; None for a fresh one.
        end: with which it ended.
    """

    begin: StateBlob | None
    end: StateBlob

    def files(self) -> tuple[StateBlob, ...]:
        """Return the files of both, each once."""
        return (self.end,) if self.begin is None or self.begin == self.end else (self.begin, self.end)
