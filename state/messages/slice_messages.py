"""Messages about slices of an update, which workers make by lease (`docs/rest-api.md` says who sends which)."""

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from epochal.state.documents import Count, HexSha256
from epochal.state.messages.blob_messages import MAX_URL_CHARS, Lease
from epochal.state.messages.requests import MAX_NAME_CHARS
from epochal.state.wire_document import WireDocument

MAX_RESULTS = 16
"""Maximum number of results in one answer: their URLs are read before they expire."""


@dataclass(frozen=True, slots=True)
class SliceResult(WireDocument):
    """A result that is to be added to a slice's sum.

    Attributes:
        batch_count, factor: its weight (`state/updates.py`).
        url: where its bytes can be read, in ranges.
    """

    sha256: HexSha256
    size_bytes: Count
    batch_count: Count
    factor: float
    url: Annotated[str, Field(max_length=MAX_URL_CHARS)]


@dataclass(frozen=True, slots=True)
class LeasedSlice(WireDocument):
    """A slice of an update that is leased to a worker, and the results that it is to add next.

    Attributes:
        lease: names the lease.
        expires_in_s: seconds after which the slice goes to somebody else unless the lease is renewed.
        step: that the update takes.
        first, stop: the slice's tensors, in name order.
        result_codec, update_codec: names of codecs.
        mean: as in `UpdateRule`.
        results: those that follow the results that the worker says it has added, in their order.
        is_whole: whether no result follows these, so that the slice can be delivered.
    """

    lease: Lease
    expires_in_s: float
    step: Count
    first: Count
    stop: Count
    result_codec: Annotated[str, Field(max_length=MAX_NAME_CHARS)]
    update_codec: Annotated[str, Field(max_length=MAX_NAME_CHARS)]
    mean: Literal["all", "senders"]
    results: Annotated[tuple[SliceResult, ...], Field(max_length=MAX_RESULTS)]
    is_whole: bool
