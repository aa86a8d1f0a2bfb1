"""The protocol of data providers, the samples that they deliver, and their errors.

A provider is asked for data indices, not for batches; `BatchId.to_data_ids` converts. The rule kept here: tokens are
moved as the bytes of the files, never one by one. The errors:

```
DataError
├── SourceUnavailable   the source does not answer now (network, server, a file that vanished); retry
├── CorruptData         the bytes are not the data that they should be; never retry
├── OutOfRange          no such data index; the caller's fault
└── Rejected            the source refuses the request, or there is no such path; the message has its reason
    └── TooManyBytes    the samples take more than is allowed at a time
```
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import InitVar, dataclass
from typing import Any, ClassVar, Literal, Protocol, Self, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from epochal.state.errors import DataError, InvalidInput
from epochal.state.intervals import DataIds
from epochal.state.wire import document_digest

TOKEN_SIZES_BYTES = (2, 4)
MAX_SEQUENCE_BYTES = 16 * 1024**2
"""Maximum size of a sample, so that it always fits into a frame and a range request."""

MAX_REQUEST_BYTES = 256 * 1024**2
"""Maximum number of bytes that one `get_samples` returns."""

MAX_REQUEST_SAMPLES = 2**18
"""Maximum number of samples that one `get_samples` returns, however short they are."""

DataErrorKind = Literal["unavailable", "corrupt", "out_of_range", "rejected"]

IGNORED_LABEL = -100
"""The label of a position without a prediction; the value is Hugging Face's and PyTorch's (`ignore_index`)."""

Tokens = NDArray[np.unsignedinteger[Any]]
"""One-dimensional, uint16 or uint32, little-endian."""


class SourceUnavailable(DataError):
    """The source does not answer now, or its answer was interrupted. Retry, with a delay."""

    kind: ClassVar[DataErrorKind] = "unavailable"
    retry: ClassVar[bool] = True


class CorruptData(DataError):
    """The bytes are not the data that they should be. The fault of the data's owner; do not retry."""

    kind: ClassVar[DataErrorKind] = "corrupt"
    retry: ClassVar[bool] = False


class OutOfRange(DataError):
    """The data index does not exist. The caller's fault; do not retry."""

    kind: ClassVar[DataErrorKind] = "out_of_range"
    retry: ClassVar[bool] = False


class Rejected(DataError):
    """The source refuses the request; the message has its reason. The caller's fault; do not retry the same request."""

    kind: ClassVar[DataErrorKind] = "rejected"
    retry: ClassVar[bool] = False


class TooManyBytes(Rejected):
    """The samples take more bytes than are allowed at a time. The caller's fault; ask for fewer."""


@dataclass(frozen=True, slots=True)
class DatasetSpec:
    """The shape and the order of a dataset's samples.

    Attributes:
        token_size_bytes: 2 or 4.
        sequence_length: tokens of one sample. Samples do not overlap: sample *i* of a file begins at token
            `i · sequence_length`. A trainer makes inputs and labels by shifting inside a sample.
        shuffle_seed: keys the order (32 bytes in a state file); None for the files' own order.

    Raises:
        InvalidInput: a value is not allowed; the caller's fault.
    """

    token_size_bytes: int
    sequence_length: int
    shuffle_seed: bytes | None = None

    def __post_init__(self) -> None:
        if self.token_size_bytes not in TOKEN_SIZES_BYTES:
            raise InvalidInput(f"tokens of {self.token_size_bytes} bytes are not supported; allowed: 2 or 4")
        longest = MAX_SEQUENCE_BYTES // self.token_size_bytes
        if not 1 <= self.sequence_length <= longest:
            raise InvalidInput(f"a sequence of {self.sequence_length} tokens is not allowed: 1 to {longest}")

    @property
    def dtype(self) -> np.dtype[np.unsignedinteger[Any]]:
        """The tokens' own type: `<u2` or `<u4`."""
        return np.dtype("<u2") if self.token_size_bytes == 2 else np.dtype("<u4")

    @property
    def sequence_bytes(self) -> int:
        return self.sequence_length * self.token_size_bytes

    def empty_tokens(self, data_ids: DataIds) -> Tokens:
        """Return an uninitialised array for the tokens of these data indices, `(count · sequence_length,)` of `dtype`.

        Raises:
            Rejected: the answer would exceed `MAX_REQUEST_BYTES` or `MAX_REQUEST_SAMPLES`; ask for less at a time.
        """
        self.check_request(data_ids)
        return np.empty(data_ids.count * self.sequence_length, dtype=self.dtype)

    def check_request(self, data_ids: DataIds) -> None:
        """Raise `Rejected` if an answer would exceed `MAX_REQUEST_BYTES` or `MAX_REQUEST_SAMPLES`."""
        count = data_ids.count
        if count * self.sequence_bytes > MAX_REQUEST_BYTES or count > MAX_REQUEST_SAMPLES:
            allowed = f"{MAX_REQUEST_SAMPLES} samples and {MAX_REQUEST_BYTES} bytes at a time"
            raise Rejected(f"data indices {data_ids} are {count * self.sequence_bytes} bytes; at most {allowed}")


@dataclass(frozen=True, slots=True, eq=False)
class TokenBatch:
    """The samples of one request, in the order of their data indices.

    Attributes:
        input_ids: the tokens of all samples, one after the other, in the file's own dtype (uint16 or uint32).
        offsets: int64, `(count + 1,)`; sample *i* is `input_ids[offsets[i]:offsets[i + 1]]`.
        labels: flat like `input_ids`; the token to predict at each position from those before it, as in Hugging
            Face's models: a copy of the tokens with `IGNORED_LABEL` where nothing is predicted. None for the tokens
            themselves.
        position_ids: each token's position in its document, flat like `input_ids`; None counts from the sample's start.
        sequence_lengths: lengths of the documents packed into the samples, flat; those of one sample add up to its
            length. None if each sample is one document.
        is_text: whether the samples are records instead of tokens: each is the UTF-8 bytes of one JSON document, one
            byte in each item of `input_ids`. A task encoder turns them into tokens.
        source_count: of packs, the number of source samples that are finished with this batch (all of their tokens
            are in it or in earlier ones, or they were left out by the run's rules); None for unpacked samples.
        check: whether to check that the parts fit together, which takes longer than packing; False if they are known
            to fit.

    Raises:
        CorruptData: the parts do not fit together; the provider's fault.
    """

    input_ids: Tokens
    offsets: NDArray[np.int64]
    labels: NDArray[np.integer[Any]] | None = None
    position_ids: NDArray[np.integer[Any]] | None = None
    sequence_lengths: NDArray[np.integer[Any]] | None = None
    is_text: bool = False
    source_count: int | None = None
    check: InitVar[bool] = True

    def __post_init__(self, check: bool) -> None:
        if not check:
            return
        total = len(self.input_ids)
        offsets = self.offsets
        if not len(offsets) or offsets[0] != 0 or offsets[-1] != total or (offsets[1:] < offsets[:-1]).any():
            raise CorruptData(f"offsets do not cut {total} tokens into samples")
        for name, flat in (("labels", self.labels), ("position_ids", self.position_ids)):
            if flat is not None and len(flat) != total:
                raise CorruptData(f"{len(flat)} {name} for {total} tokens")
        if self.sequence_lengths is not None:
            ends = np.concatenate(([0], np.cumsum(self.sequence_lengths, dtype=np.int64)))
            is_ascending = not (ends[1:] < ends[:-1]).any()
            if not is_ascending or ends[-1] != total or (ends[np.searchsorted(ends, offsets)] != offsets).any():
                raise CorruptData("sequence_lengths do not add up to the samples' lengths")

    @classmethod
    def fixed_length(cls, input_ids: Tokens, sequence_length: int) -> Self:
        """Return a batch whose samples all have `sequence_length` tokens, without copying them."""
        offsets = np.arange(0, len(input_ids) + 1, sequence_length, dtype=np.int64)
        return cls(input_ids, offsets, check=bool(len(input_ids) % sequence_length))

    @property
    def sample_count(self) -> int:
        return len(self.offsets) - 1

    def finishing(self, source_count: int) -> Self:
        """Return the same batch with another `source_count`. Nothing is copied or checked again."""
        parts = (self.input_ids, self.offsets, self.labels, self.position_ids, self.sequence_lengths, self.is_text)
        return type(self)(*parts, source_count, check=False)

    def rows(self) -> Tokens:
        """Return the samples as a `(sample_count, sequence_length)` view; `InvalidInput` if they differ in length."""
        lengths = np.diff(self.offsets)
        if not len(lengths) or (lengths != lengths[0]).any():
            raise InvalidInput("samples of different lengths do not form rows; cut `input_ids` at `offsets`")
        return self.input_ids.reshape(len(lengths), int(lengths[0]))


def check_sample_count(data_ids: DataIds) -> None:
    """Raise `Rejected` for more than `MAX_REQUEST_SAMPLES`."""
    if data_ids.count > MAX_REQUEST_SAMPLES:
        raise Rejected(f"data indices {data_ids}: at most {MAX_REQUEST_SAMPLES} at a time")


def check_answer_bytes(size_bytes: int, most_bytes: int = MAX_REQUEST_BYTES) -> None:
    """Raise `TooManyBytes` for samples of more than `most_bytes`."""
    if size_bytes > most_bytes:
        raise TooManyBytes(f"the samples asked for take more than {most_bytes} bytes; ask for fewer")


def dataset_fingerprint(kind: str, **described: Any) -> str:
    """Return 64 hex characters over a kind of dataset and everything that determines its samples and their order."""
    return document_digest({"format": f"epochal/{kind}/v1", **described})


class DataProvider(Protocol):
    """A source of samples by data index. Calls may overlap; an error leaves the provider usable."""

    @property
    def sequence_count(self) -> int | None:
        """Number of samples in one pass over the data; None if there is no end. Later data indices are more passes."""
        ...

    @property
    def fingerprint(self) -> str:
        """64 hex characters, equal for two providers exactly if they deliver the same samples in the same order.

        A provider may also have a `description` (a `DatasetDescription`), by which messages explain how two datasets
        differ. It may have `is_at_hand`, True if its samples are available at once: then none are fetched ahead.
        """
        ...

    async def get_samples(self, data_ids: DataIds) -> TokenBatch:
        """Return the samples of these data indices, in order. The arrays belong to the caller.

        Raises:
            SourceUnavailable: there is no answer now; retry, with a delay.
            CorruptData: the data are wrong, or changed after the provider was opened; do not retry.
            OutOfRange: there is no such data index; do not retry.
            Rejected: the source refuses, or too many samples or bytes at a time; do not retry the same request.
        """
        ...

    async def aclose(self) -> None:
        """Close files and connections. Calls under way may fail; a second `aclose` does nothing."""
        ...


@runtime_checkable
class Expecting(Protocol):
    """A `DataProvider` that reads announced samples ahead."""

    def expecting(self, data_ids: Sequence[DataIds], samples_per_request: int) -> AbstractContextManager[None]:
        """Read ahead within the context, as far as the provider's bounds allow.

        Args:
            data_ids: what is going to be requested, in this order.
            samples_per_request: about how many at a time.
        """
        ...


def expecting(
    provider: DataProvider, data_ids: Sequence[DataIds], samples_per_request: int
) -> AbstractContextManager[None]:
    """Return the provider's `Expecting.expecting`, or a context that does nothing if it has none."""
    if data_ids and isinstance(provider, Expecting):
        return provider.expecting(data_ids, samples_per_request)
    return nullcontext()
