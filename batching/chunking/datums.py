"""Examples as objects: the samples of runs on text and images, and those of `chunk_data` in your own programs.

A `Datum` is one model input (text as tokens, and images, in chunks) with the arrays that its loss needs. Its token
*length* and its *size* differ: an image's size is always known (`batching/chunking/policies.py`), its length only if
`expected_tokens` is given.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from epochal.state.errors import InvalidInput

ImageFormat = Literal["png", "jpeg"]


@dataclass(frozen=True, slots=True, eq=False)
class EncodedTextChunk:
    """Text as tokens, one-dimensional."""

    tokens: Sequence[int] | NDArray[np.integer[Any]]

    @property
    def length(self) -> int:
        """Number of tokens."""
        return len(self.tokens)


@dataclass(frozen=True, slots=True)
class ImageChunk:
    """An image.

    Attributes:
        data: the encoded file's own bytes, not base64.
        format: of the file.
        expected_tokens: number of tokens that the image takes, None if unknown.
    """

    data: bytes
    format: ImageFormat = "png"
    expected_tokens: int | None = None

    @property
    def length(self) -> int:
        """Number of tokens. Raises `InvalidInput` if `expected_tokens` is None."""
        return _expected(self.expected_tokens, "an image")


@dataclass(frozen=True, slots=True)
class ImageAssetPointerChunk:
    """An image that the service has or can fetch, named by its location."""

    location: str
    format: ImageFormat = "png"
    expected_tokens: int | None = None

    @property
    def length(self) -> int:
        """Number of tokens. Raises `InvalidInput` if `expected_tokens` is None."""
        return _expected(self.expected_tokens, f"the image at {self.location}")


ModelInputChunk = EncodedTextChunk | ImageChunk | ImageAssetPointerChunk


@dataclass(frozen=True, slots=True)
class ModelInput:
    """The input of a model: chunks of text and images, in order."""

    chunks: Sequence[ModelInputChunk]

    @classmethod
    def from_ints(cls, tokens: Sequence[int] | NDArray[np.integer[Any]]) -> Self:
        """Return a model input of one chunk of text."""
        return cls((EncodedTextChunk(tokens),))

    @property
    def length(self) -> int:
        """Number of tokens. Raises `InvalidInput` if an image's is unknown."""
        return sum(chunk.length for chunk in self.chunks)


@dataclass(frozen=True, slots=True, eq=False)
class TensorData:
    """An array that a loss needs, of float32 or int64."""

    data: Sequence[float] | NDArray[Any]


@dataclass(frozen=True, slots=True)
class Datum:
    """One training example.

    Attributes:
        model_input: tokens and images that the model reads.
        loss_fn_inputs: arrays that the loss needs, by name: `target_tokens`, `weights`.
    """

    model_input: ModelInput
    loss_fn_inputs: Mapping[str, TensorData] = field(default_factory=dict)


def _expected(tokens: int | None, what: str) -> int:
    if tokens is None:
        raise InvalidInput(f"the number of tokens of {what} is not known; give its expected_tokens")
    return tokens
