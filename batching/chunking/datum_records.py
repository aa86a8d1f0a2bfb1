"""Samples of text and images: JSON records that become `Datum`s, and batches of them.

A record is `{"chunks": […], "loss_fn_inputs": {name: [numbers]}}`; each chunk is one of

* `{"type": "text", "text": …}`, whose UTF-8 bytes are its tokens;
* `{"type": "encoded_text", "tokens": […]}`;
* `{"type": "image", "format": "png" or "jpeg", "data": base64 of the file}`;
* `{"type": "image_asset_pointer", "format": …, "location": …}`; images of both kinds may have `expected_tokens`.

The rules kept here: a record comes from a stranger, and everything in it has a limit (`state/reader_limits.py`); what
is wrong is named by its place in the record, with what is allowed. A location is only read as text: nothing is fetched.
"""

import base64
import binascii
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass
from typing import Any, Self

import numpy as np

from epochal.batching.chunking.datums import (
    Datum,
    EncodedTextChunk,
    ImageAssetPointerChunk,
    ImageChunk,
    ImageFormat,
    ModelInput,
    ModelInputChunk,
    TensorData,
)
from epochal.batching.chunking.policies import BYTES
from epochal.data_providers.protocol import CorruptData, TokenBatch
from epochal.state.config.mistakes import show
from epochal.state.reader_limits import (
    MAX_IMAGE_BYTES,
    MAX_LOCATION_CHARS,
    MAX_LOSS_INPUTS,
    MAX_SAMPLE_CHUNKS,
    MAX_SAMPLE_IMAGES,
)

CHUNKS, LOSS_INPUTS = "chunks", "loss_fn_inputs"
FIRST_BYTES: dict[ImageFormat, bytes] = {"png": b"\x89PNG\r\n\x1a\n", "jpeg": b"\xff\xd8\xff"}
"""The formats of images, and the bytes with which their files begin."""
SCHEMES = ("https", "s3", "gs", "az", "hf")
"""Schemes of locations that are no relative paths."""
_FIELDS = {
    "text": ("text",),
    "encoded_text": ("tokens",),
    "image": ("data", "format", "expected_tokens"),
    "image_asset_pointer": ("location", "format", "expected_tokens"),
}
_LARGEST = 2**32 - 1
_LARGEST_FLOAT = float(np.finfo(np.float32).max)
_SHOWN_CHARS = 60


@dataclass(frozen=True, slots=True, eq=False)
class DatumBatch(TokenBatch):
    """A batch whose samples are datums; its tokens are those of their texts.

    Attributes:
        datums: one for each sample.
    """

    datums: tuple[Datum, ...] = ()

    @classmethod
    def of(cls, datums: Sequence[Datum]) -> Self:
        """Return these datums as a batch; its tokens are uint32."""
        texts = [[chunk.tokens for chunk in _texts(datum)] for datum in datums]
        flat = [np.zeros(0, "<u4"), *(np.asarray(tokens, "<u4") for tokens in itertools.chain.from_iterable(texts))]
        lengths = [sum(map(len, tokens)) for tokens in texts]
        offsets = np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))
        return cls(np.concatenate(flat), offsets, check=False, datums=tuple(datums))


@dataclass(frozen=True, slots=True)
class DatumCounts:
    """The content of some datums.

    Attributes:
        samples, images, pointers: numbers of them.
        image_bytes: of the images' files.
        text_tokens: of the texts.
        size: as requests of training count it (`BYTES`).
    """

    samples: int = 0
    images: int = 0
    image_bytes: int = 0
    pointers: int = 0
    text_tokens: int = 0
    size: int = 0

    @classmethod
    def of(cls, datums: Sequence[Datum]) -> Self:
        """Return the counts of these datums."""
        chunks = [chunk for datum in datums for chunk in datum.model_input.chunks]
        images = [len(chunk.data) for chunk in chunks if isinstance(chunk, ImageChunk)]
        return cls(
            len(datums),
            len(images),
            sum(images),
            sum(isinstance(chunk, ImageAssetPointerChunk) for chunk in chunks),
            sum(len(chunk.tokens) for chunk in chunks if isinstance(chunk, EncodedTextChunk)),
            sum(map(BYTES.estimate, datums)),
        )

    def __add__(self, other: "DatumCounts") -> "DatumCounts":
        return DatumCounts(*map(sum, zip(astuple(self), astuple(other), strict=True)))


def is_datum(record: Any) -> bool:
    """Return whether a JSON record has chunks, as those of text and images do, be they right or wrong."""
    return isinstance(record, dict) and CHUNKS in record


def datum_of(record: Any, index: int, longest: int, vocabulary: int | None) -> Datum:
    """Return the datum of a JSON record. A field that is null counts as absent, as rows of parquet files have them.

    Args:
        record: as JSON has it.
        index: its data index, for messages.
        longest: maximum number of tokens, those that images are expected to take among them.
        vocabulary: tokens are below it; None for any.

    Raises:
        CorruptData: something in it is wrong; the context's `data_index` is `index`. The fault of the data's owner.
    """
    try:
        return _datum(record, longest, min(vocabulary or _LARGEST, _LARGEST))
    except _Wrong as error:
        raise CorruptData(f"data index {index}: {error}", data_index=index) from error


class _Wrong(Exception):
    """A value is wrong: its field, the value, and what is allowed there."""

    def __init__(self, field: str, value: Any, allowed: str) -> None:
        match value:
            case str():
                shown = show(value[:_SHOWN_CHARS])
            case dict() | list():
                shown = f"{'an object' if isinstance(value, dict) else 'a list'} of {len(value)}"
            case None:
                shown = "missing"
            case _:
                shown = show(value)
        super().__init__(f"{field} is {shown}; allowed: {allowed}")


def _datum(record: Any, longest: int, limit: int) -> Datum:
    fields = _fields(record, "the record", (CHUNKS, LOSS_INPUTS))
    listed, named = fields.get(CHUNKS), fields.get(LOSS_INPUTS, {})
    if not isinstance(listed, list) or not 1 <= len(listed) <= MAX_SAMPLE_CHUNKS:
        raise _Wrong(CHUNKS, listed, f"a list of 1 to {MAX_SAMPLE_CHUNKS} chunks")
    if not isinstance(named, dict) or len(named) > MAX_LOSS_INPUTS:
        raise _Wrong(LOSS_INPUTS, named, f"an object of at most {MAX_LOSS_INPUTS} lists of numbers")
    chunks = tuple(_chunk(one, f"{CHUNKS}[{number}]", limit) for number, one in enumerate(listed))
    images = [chunk for chunk in chunks if not isinstance(chunk, EncodedTextChunk)]
    if len(images) > MAX_SAMPLE_IMAGES:
        raise _Wrong(f"the number of images in {CHUNKS}", len(images), f"at most {MAX_SAMPLE_IMAGES}")
    datum = Datum(
        ModelInput(chunks),
        {name: _tensor(values, f"{LOSS_INPUTS}.{name[:_SHOWN_CHARS]!a}") for name, values in named.items()},
    )
    length = sum(len(chunk.tokens) for chunk in _texts(datum)) + sum(image.expected_tokens or 0 for image in images)
    if length > longest:
        raise _Wrong(f"the number of tokens in {CHUNKS}", length, f"at most {longest}, the run's max_seq_len")
    return datum


def _chunk(value: Any, field: str, limit: int) -> ModelInputChunk:
    if not isinstance(value, dict):
        raise _Wrong(field, value, f"an object whose type is one of {', '.join(_FIELDS)}")
    kind = value.get("type")
    if not isinstance(kind, str) or kind not in _FIELDS:
        raise _Wrong(f"{field}.type", kind, ", ".join(_FIELDS))
    fields = _fields(value, field, ("type", *_FIELDS[kind]))
    if kind == "text":
        text = fields.get("text")
        if not isinstance(text, str):
            raise _Wrong(f"{field}.text", text, "text")
        return EncodedTextChunk(np.frombuffer(text.encode(errors="surrogatepass"), np.uint8).astype("<u4"))
    if kind == "encoded_text":
        tokens = fields.get("tokens")
        if not isinstance(tokens, list) or not all(type(token) is int and 0 <= token < limit for token in tokens):
            raise _Wrong(f"{field}.tokens", tokens, f"a list of integers from 0 to {limit - 1}")
        return EncodedTextChunk(np.array(tokens, "<u4"))
    form, expected = fields.get("format"), fields.get("expected_tokens")
    if not isinstance(form, str) or form not in FIRST_BYTES:
        raise _Wrong(f"{field}.format", form, " or ".join(FIRST_BYTES))
    if expected is not None and not (type(expected) is int and 0 <= expected <= _LARGEST):
        raise _Wrong(f"{field}.expected_tokens", expected, "an integer from 0, or no such field")
    if kind == "image":
        return ImageChunk(_image(fields.get("data"), f"{field}.data", form), form, expected)
    return ImageAssetPointerChunk(_location(fields.get("location"), f"{field}.location"), form, expected)


def _image(value: Any, field: str, form: ImageFormat) -> bytes:
    try:
        data = base64.b64decode(value, validate=True) if isinstance(value, str) else b""
    except (binascii.Error, ValueError) as error:
        raise _Wrong(field, value, f"base64 ({error})") from error
    if not data.startswith(FIRST_BYTES[form]):
        raise _Wrong(field, value, f"base64 of a file that begins as {form} does")
    if len(data) > MAX_IMAGE_BYTES:
        raise _Wrong(f"the size of {field}", len(data), f"at most {MAX_IMAGE_BYTES} bytes")
    return data


def _location(value: Any, field: str) -> str:
    is_text = isinstance(value, str) and 1 <= len(value) <= MAX_LOCATION_CHARS and value.isprintable()
    scheme, mark, rest = value.partition("://") if is_text else ("", "", "")
    is_path = is_text and not value.startswith("/") and not {"\\", ":"} & set(value) and ".." not in value.split("/")
    if not (scheme in SCHEMES and rest if mark else is_path):
        places = f"a relative path without '..', or {'://, '.join(SCHEMES)}://"
        raise _Wrong(field, value, f"{places}, of at most {MAX_LOCATION_CHARS} characters")
    found: str = value
    return found


def _tensor(values: Any, field: str) -> TensorData:
    if isinstance(values, list):
        if all(type(value) is int and abs(value) < 2**63 for value in values):
            return TensorData(np.array(values, np.int64))
        if all(type(value) in (int, float) and abs(value) <= _LARGEST_FLOAT for value in values):  # not NaN
            return TensorData(np.array(values, np.float32))
    raise _Wrong(field, values, "a list of finite numbers")


def _fields(value: Any, field: str, known: Iterable[str]) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _Wrong(field, value, f"an object of {', '.join(known)}")
    fields = {name: one for name, one in value.items() if one is not None}
    for name in fields:
        if name not in known:
            raise _Wrong(f"a field of {field}", name, ", ".join(known))
    return fields


def _texts(datum: Datum) -> list[EncodedTextChunk]:
    return [chunk for chunk in datum.model_input.chunks if isinstance(chunk, EncodedTextChunk)]
