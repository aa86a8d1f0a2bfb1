"""A model in the layout of a Hugging Face repository: `config.json`, `model.safetensors` or shards with an index."""

import json
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

from epochal.state.config.adapter_table import BaseFile
from epochal.state.config.model_table import MAX_HF_CONFIG_BYTES
from epochal.state.errors import InvalidInput
from epochal.state.model.tensors import Float32Array
from epochal.state.wire import check_json_values, unique_keys
from epochal.trainers.learner import Shapes
from epochal.trainers.sources.model_source import ModelFile, ModelFolder
from epochal.trainers.sources.origin import Origin
from epochal.trainers.sources.safetensors_reader import read_tensors
from epochal.trainers.sources.weights_file import WeightsFile, open_weights, read_bytes

CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
WEIGHTS_SUFFIX = ".safetensors"
MAX_INDEX_BYTES = 64 * 1024 * 1024
MAX_SHARDS = 10_000
MAX_TOKENIZER_FILE_BYTES = 256 * 1024 * 1024
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "tokenizer.model",
    "spiece.model",
    "chat_template.jinja",
    "chat_template.json",
)
"""The names under which tokenizers are kept."""
OTHER_FORMATS = (".bin", ".bin.index.json", ".pt", ".pth", ".ckpt", ".h5", ".msgpack", ".gguf", ".onnx", ".npz")
"""Ends of the names of weights in formats that are not read."""
ONLY_SAFETENSORS = (
    "only safetensors are read, because other formats may run code or need their own program; "
    "load the model with transformers and save it with save_pretrained()"
)


class FolderSource:
    """A `ModelSource` over a folder in the layout of a Hugging Face repository."""

    def __init__(self, folder: ModelFolder) -> None:
        self._folder = folder

    @property
    def place(self) -> str:
        return self._folder.place

    def config(self) -> dict[str, Any]:
        file = self._folder.open(CONFIG_FILE)
        if file is None:
            raise InvalidInput(f"{self.place} holds no {CONFIG_FILE}", place=self.place)
        return _json_object(file, MAX_HF_CONFIG_BYTES)

    def origin(self) -> Origin | None:
        return self._folder.origin()

    def tensors(self, shapes: Shapes) -> Iterator[tuple[str, Float32Array]]:
        return read_tensors(self._weights(), shapes, self.place)

    def tokenizer_files(self) -> Iterator[tuple[str, bytes]]:
        for name in TOKENIZER_FILES:
            file = self._folder.open(name)
            if file is not None:
                _check_size(file, MAX_TOKENIZER_FILE_BYTES)
                yield name, read_bytes(file, 0, file.size_bytes)

    def weight_files(self) -> dict[str, BaseFile]:
        """Return the files of the weights by name: one, or shards and their index. Raises as `ModelSource.tensors`."""
        names = [WEIGHTS_FILE]
        held = self._folder.names()
        if WEIGHTS_FILE not in held and (held or self._folder.open(WEIGHTS_FILE) is None):
            index = self._folder.open(INDEX_FILE)
            if index is None:
                self._refuse_other_formats()
            names = [INDEX_FILE, *sorted(set(_shards_by_tensor(index).values()))]
        found = {name: self._folder.identify(name) for name in names}
        lacking = [name for name, file in found.items() if file is None]
        if lacking:
            raise InvalidInput(f"{self.place} lacks {', '.join(lacking)}", place=self.place)
        return {name: file for name, file in found.items() if file is not None}

    def _weights(self) -> list[WeightsFile]:
        single = self._folder.open(WEIGHTS_FILE)
        if single is not None:
            return [open_weights(single)]
        index = self._folder.open(INDEX_FILE)
        if index is None:
            self._refuse_other_formats()
        shard_of = _shards_by_tensor(index)
        shards = {name: self._shard(name, index) for name in sorted(set(shard_of.values()))}
        _check_index(index, shard_of, shards)
        return list(shards.values())

    def _shard(self, name: str, index: ModelFile) -> WeightsFile:
        file = self._folder.open(name)
        if file is None:
            raise InvalidInput(f"{index.place} names {name}, which is not in {self.place}", place=self.place)
        return open_weights(file)

    def _refuse_other_formats(self) -> NoReturn:
        held = sorted(self._folder.names())
        found = next((name for name in held if name.lower().endswith(OTHER_FORMATS)), None)
        if found is not None:
            raise InvalidInput(f"{self.place} holds {found}, and no {WEIGHTS_FILE}: {ONLY_SAFETENSORS}")
        raise InvalidInput(f"{self.place} holds neither {WEIGHTS_FILE} nor {INDEX_FILE}", place=self.place)


def _shards_by_tensor(index: ModelFile) -> dict[str, str]:
    """Return the name of each tensor's file, as an index gives them."""
    found = _json_object(index, MAX_INDEX_BYTES).get("weight_map")
    if not isinstance(found, dict) or not found or not all(isinstance(name, str) for name in found.values()):
        raise InvalidInput(f"{index.place}: not an index: `weight_map` is not an object of file names")
    for name in sorted(set(found.values())):
        if "/" in name or "\\" in name or name.startswith(".") or not name.endswith(WEIGHTS_SUFFIX):
            allowed = "safetensors files of the same folder that are not hidden"
            raise InvalidInput(f"{index.place} names {name[:80]!a}; allowed: {allowed}")
    if len(set(found.values())) > MAX_SHARDS:
        raise InvalidInput(f"{index.place} names {len(set(found.values()))} files; allowed: at most {MAX_SHARDS}")
    return found


def _check_index(index: ModelFile, shard_of: Mapping[str, str], shards: Mapping[str, WeightsFile]) -> None:
    """Raise `InvalidInput` unless every tensor is in the file that the index names, and in no other."""
    for name, shard in shard_of.items():
        if name not in shards[shard].tensors:
            raise InvalidInput(f"{index.place} says that {name!a} is in {shards[shard].place}, which lacks it")
    for shard, weights in shards.items():
        for name in weights.tensors:
            if shard_of.get(name) != shard:
                raise InvalidInput(f"{weights.place} has {name!a}, which {index.place} does not say")


def _json_object(file: ModelFile, max_bytes: int) -> dict[str, Any]:
    _check_size(file, max_bytes)
    try:
        text = read_bytes(file, 0, file.size_bytes)
        check_json_values(text)
        found = json.loads(text.decode("utf-8"), object_pairs_hook=unique_keys)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"{file.place} is not JSON: {error}", place=file.place) from error
    if not isinstance(found, dict):
        raise InvalidInput(f"{file.place} is not a JSON object", place=file.place)
    return found


def _check_size(file: ModelFile, max_bytes: int) -> None:
    if file.size_bytes > max_bytes:
        raise InvalidInput(f"{file.place} has {file.size_bytes} bytes; allowed: at most {max_bytes}", place=file.place)
