"""The members of a run, as they are shown."""

from dataclasses import dataclass

from state.data_metrics import DataWaitView
from state.documents import Count, HexId
from state.wire_document import WireDocument


@dataclass(frozen=True, slots=True)
class MemberView(WireDocument):
    """One member as an operator sees it.

    Attributes:
        name, software: that it chose, and the version of its program; "" if it says neither.
        share: its share of the work, in batches: the part of its claim that it has earned.
        claim: the batches that it claims to take in a round.
        missed: missed rounds that it has not made up for.
        rest_s: seconds for which it still gets no work, because it missed too many rounds; None if it gets work.
        last_miss: why it missed a round last; "" if it has missed none.
        data_wait: how long its trainer waited for data; None before its first result, or if it does not know.
    """

    client_id: HexId
    ready: bool
    in_roster: bool
    share: float
    claim: Count
    trainer: str
    silent_s: float
    last_loss: float | None
    missed: Count
    rest_s: float | None
    last_miss: str
    data_wait: DataWaitView | None = None
    name: str = ""
    software: str = ""
