"""A model on this machine's disk: a folder in the layout of a Hugging Face repository, or one safetensors file."""

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from epochal.state.config.adapter_table import BaseFile
from epochal.state.errors import InvalidInput
from epochal.state.model.replica import CHECKPOINT_FORMAT, MOMENTUM_PREFIX, PARAMETERS_PREFIX
from epochal.state.model.tensors import Float32Array
from epochal.trainers.learner import Shapes
from epochal.trainers.sources.folder_source import ONLY_SAFETENSORS, OTHER_FORMATS, FolderSource
from epochal.trainers.sources.model_source import ModelSource, hashed
from epochal.trainers.sources.safetensors_reader import read_tensors
from epochal.trainers.sources.weights_file import WeightsFile, open_weights


class LocalFile:
    """A `ModelFile` on this machine's disk. It is open only while it is read.

    Raises:
        InvalidInput: there is no such file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.place = str(path)
        try:
            self.size_bytes = path.stat().st_size
        except OSError as error:
            raise _unreadable(path, error) from error

    def identify(self) -> BaseFile:
        """Return size and digest; a file that has not changed since an earlier call is not read again."""
        found = self._path.stat()
        return _hashed(self._path, found.st_size, found.st_mtime_ns, found.st_ino)

    def read_into(self, start: int, into: memoryview) -> None:
        try:
            with self._path.open("rb") as file:
                file.seek(start)
                count = file.readinto(into)
        except OSError as error:
            raise _unreadable(self._path, error) from error
        if count != len(into):
            raise InvalidInput(f"{self.place} ends at byte {start + count}; it became shorter", place=self.place)


class LocalFolder:
    """A `ModelFolder` on this machine's disk."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.place = str(path)

    def origin(self) -> None:
        return None

    def open(self, name: str) -> LocalFile | None:
        path = self._path / name
        return LocalFile(path) if path.is_file() else None

    def names(self) -> Sequence[str]:
        try:
            return [path.name for path in self._path.iterdir()]
        except OSError:
            return []

    def identify(self, name: str) -> BaseFile | None:
        file = self.open(name)
        return None if file is None else file.identify()


class FileSource:
    """A `ModelSource` over one safetensors file: parameters by their names, or a run's checkpoint. It has no config."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.place = str(path)

    def config(self) -> dict[str, Any]:
        raise InvalidInput(
            f"{self.place} is one file and has no config.json; allowed: a folder that holds both, or the config in "
            "the state file's [model.LLM.hf]",
            place=self.place,
        )

    def origin(self) -> None:
        return None

    def tensors(self, shapes: Shapes) -> Iterator[tuple[str, Float32Array]]:
        if self._path.name.lower().endswith(OTHER_FORMATS):
            raise InvalidInput(f"{self.place} is not a safetensors file: {ONLY_SAFETENSORS}", place=self.place)
        return read_tensors([_without_momentum(open_weights(LocalFile(self._path)))], shapes, self.place)

    def tokenizer_files(self) -> Iterator[tuple[str, bytes]]:
        return iter(())


def local_source(path: Path) -> ModelSource:
    """Return the source at a path. Raise `InvalidInput` if there is nothing."""
    try:
        is_folder = path.is_dir()
        if not is_folder:
            path.stat()
    except OSError as error:
        raise _unreadable(path, error) from error
    return FolderSource(LocalFolder(path)) if is_folder else FileSource(path)


@lru_cache
def _hashed(path: Path, *state: int) -> BaseFile:
    del state  # of the file, so that one that has changed is read again
    return hashed(LocalFile(path))


def _unreadable(path: Path, error: OSError) -> InvalidInput:
    return InvalidInput(f"{path}: {error.strerror or error}", path=str(path))


def _without_momentum(weights: WeightsFile) -> WeightsFile:
    """Return a run's checkpoint as the file of its parameters; another file as it is."""
    if weights.metadata.get("format") != CHECKPOINT_FORMAT:
        return weights
    tensors: Mapping[str, Any] = {
        name.removeprefix(PARAMETERS_PREFIX): tensor
        for name, tensor in weights.tensors.items()
        if not name.startswith(MOMENTUM_PREFIX)
    }
    return WeightsFile(weights.file, weights.metadata, tensors)
