"""The protocols of a model's source: its config and its parameters, one tensor at a time, wherever they are kept.

A source reads when it is asked, and blocks meanwhile; call it from a thread where an event loop runs. The rules kept
here: a source never holds more than one tensor and one chunk of bytes; every error names the file, and the tensor if
there is one.
"""

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from epochal.runtime.long_work import BYTES, long_work
from epochal.state.config.adapter_table import BaseFile
from epochal.state.model.tensors import Float32Array
from epochal.trainers.learner import Shapes
from epochal.trainers.sources.origin import Origin

HASHED_AT_A_TIME_BYTES = 8 * 1024 * 1024


class ModelSource(Protocol):
    """The source of a model. `epochal.trainers.sources.open_model.open_source` opens one.

    Every method raises `InvalidInput` if the source does not hold what it should, or refuses, and `ModelUnavailable`
    if it does not answer now or a disk is full.
    """

    @property
    def place(self) -> str:
        """The source's path or URL, for messages."""
        ...

    def config(self) -> dict[str, Any]:
        """Return the model's Hugging Face config."""
        ...

    def origin(self) -> Origin | None:
        """Return the commit from which `config` was read; None if it was not, or not from a repository."""
        ...

    def tensors(self, shapes: Shapes) -> Iterator[tuple[str, Float32Array]]:
        """Return the parameters in the order of `shapes`, each read when it is asked for, as a new float32 array.

        Names, shapes and types are checked before the first is read: exactly those of `shapes` must be there. A tensor
        that the source keeps under two names (tied weights) may be there once or twice. Values are finite.

        Args:
            shapes: shape of every parameter, by name.
        """
        ...

    def tokenizer_files(self) -> Iterator[tuple[str, bytes]]:
        """Return the files of the model's tokenizer, by name; none where there is no tokenizer."""
        ...


class ModelFile(Protocol):
    """One file of a source, read by byte ranges."""

    @property
    def place(self) -> str:
        """The file's path or URL, for messages."""
        ...

    @property
    def size_bytes(self) -> int: ...

    def read_into(self, start: int, into: memoryview) -> None:
        """Fill `into` (writable bytes) with the file's bytes from offset `start` on.

        Raises:
            InvalidInput: the file has become shorter, or changed, or is refused.
            ModelUnavailable: it cannot be read now.
        """
        ...


class ModelFolder(Protocol):
    """A folder in the layout of a Hugging Face repository."""

    @property
    def place(self) -> str:
        """The folder's path or URL, for messages."""
        ...

    def origin(self) -> Origin | None:
        """Return the commit of the files, once one was opened; None elsewhere than on the Hub."""
        ...

    def open(self, name: str) -> ModelFile | None:
        """Return the file of this name; None if the folder has none. Raises as `ModelFile.read_into`."""
        ...

    def names(self) -> Sequence[str]:
        """Return the names of the files; empty where they cannot be listed."""
        ...

    def identify(self, name: str) -> BaseFile | None:
        """Return size and digest of the file of this name; None if the folder has none. Raises as `open`."""
        ...


def hashed(file: ModelFile) -> BaseFile:
    """Return a file's size and digest, all of which is read. Raises as `ModelFile.read_into`."""
    found, buffer = hashlib.sha256(), bytearray(min(file.size_bytes, HASHED_AT_A_TIME_BYTES))
    with long_work(f"hashing {file.place}", file.size_bytes, BYTES) as work:
        for start in range(0, file.size_bytes, HASHED_AT_A_TIME_BYTES):
            part = memoryview(buffer)[: file.size_bytes - start]
            file.read_into(start, part)
            found.update(part)
            work.advance(len(part))
    return BaseFile(size_bytes=file.size_bytes, sha256=found.hexdigest())
