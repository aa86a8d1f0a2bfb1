"""A checkpoint as a folder in the layout of a Hugging Face repository, which has its name only when it is complete.

```
OUT.partial/                        while it is written
├── incomplete-export               its mark, which is removed last; locked by the process that writes
OUT/
├── config.json                     the model's config, with the type of the stored numbers
├── model.safetensors               or model-00001-of-00002.safetensors and so on, with
├── model.safetensors.index.json    the file of each tensor
├── tokenizer.json and the like     where the run's model has a tokenizer
└── epochal.json                    the run and the step it comes from
```
"""

import contextlib
import fcntl
import json
import math
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np

from epochal.runtime.files.durable_files import make_folder, sync_folder
from epochal.runtime.os_errors import Obstacle, obstacle_of, reason_of
from epochal.state.config.model_table import ModelSpec
from epochal.state.documents import CheckpointRef
from epochal.state.errors import InvalidDocument, InvalidInput, ModelUnavailable
from epochal.state.model.tensors import LENGTH_BYTES, TensorLayout
from epochal.state.model.value_checks import check_values
from epochal.state.wire import parse_document
from epochal.trainers.architectures import naming_broken_libraries
from epochal.trainers.sources.experts import NAMINGS, NamedShape
from epochal.trainers.sources.float_types import FloatType, from_float32
from epochal.trainers.sources.folder_source import CONFIG_FILE, INDEX_FILE, WEIGHTS_FILE
from epochal.trainers.sources.origin import CODE_KEY, COMMIT_KEY, origin_of

MAX_SHARD_BYTES = 5 * 1000**3
"""Maximum size of the tensors of one file, unless one of them is larger."""
_ALIGNMENT_BYTES = 8
PARTIAL_SUFFIX = ".partial"
MARK_FILE = "incomplete-export"
NOTE_FILE = "epochal.json"
ADAPTER_WEIGHTS_FILE, ADAPTER_CONFIG_FILE = "adapter_model.safetensors", "adapter_config.json"
EXPORT_FORMAT = 1
MAX_NOTE_BYTES = 64 * 1024
CHUNK_NUMBERS = 1 << 20
"""Numbers that are converted and written at a time (4 MiB of a checkpoint)."""
CLASSES = {
    "deepseek_v2": "DeepseekV2ForCausalLM",
    "deepseek_v3": "DeepseekV3ForCausalLM",
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
"""The class that `transformers` loads, by `model_type`, for programs that read it from the config."""


_OF_OTHER_WEIGHTS = ("dtype", "quantization_config", COMMIT_KEY, CODE_KEY)
"""Keys of a config that speak of the weights from which the run started."""


@dataclass(frozen=True, slots=True)
class WeightsShard:
    """One file of weights.

    Attributes:
        name: of the file.
        parameters: names and shapes of the run's parameters in it, in their order.
        stored: names and shapes under which their numbers are stored, in the same order of numbers.
        header: the file's bytes before the numbers.
    """

    name: str
    parameters: tuple[NamedShape, ...]
    stored: tuple[NamedShape, ...]
    header: bytes


@dataclass(frozen=True, slots=True)
class ExportPlan:
    """The files of a checkpoint's weights, all of one type.

    Attributes:
        index: content of the index; None for a single file, which needs none.
    """

    kind: FloatType
    shards: tuple[WeightsShard, ...]
    index: bytes | None


def plan_export(
    layout: TensorLayout, kind: FloatType, model_type: str | None, max_shard_bytes: int | None = None
) -> ExportPlan:
    """Return the files for parameters of this layout.

    Tensors stay in the run's order, name order, so that a checkpoint is written in one pass, as it is read. Weights
    that are tied are there once, as `save_pretrained` writes them.

    Args:
        layout: of the checkpoint's parameters.
        kind: the type in which they are stored.
        model_type: of the Hugging Face config; None for a model without one.
        max_shard_bytes: maximum size of a file's tensors; None for `MAX_SHARD_BYTES`.
    """
    groups = _groups(layout, kind, max_shard_bytes or MAX_SHARD_BYTES)
    shards = []
    for number, group in enumerate(groups, start=1):
        name = WEIGHTS_FILE if len(groups) == 1 else f"model-{number:05d}-of-{len(groups):05d}.safetensors"
        stored = tuple(part for parameter in group for part in _stored(parameter, model_type))
        shards.append(WeightsShard(name, group, stored, _header(stored, kind)))
    return ExportPlan(kind, tuple(shards), None if len(shards) == 1 else _index(shards, kind))


def count_of(shapes: Sequence[NamedShape]) -> int:
    """Return the number of numbers in these tensors."""
    return sum(math.prod(shape) for _, shape in shapes)


def _groups(layout: TensorLayout, kind: FloatType, max_shard_bytes: int) -> list[tuple[NamedShape, ...]]:
    groups: list[list[NamedShape]] = [[]]
    size_bytes = 0
    for parameter in layout.entries:
        added_bytes = count_of([parameter]) * kind.size_bytes
        if groups[-1] and size_bytes + added_bytes > max_shard_bytes:
            groups.append([])
            size_bytes = 0
        groups[-1].append(parameter)
        size_bytes += added_bytes
    return [tuple(group) for group in groups]


def _stored(parameter: NamedShape, model_type: str | None) -> list[NamedShape]:
    naming = NAMINGS.get(model_type or "")
    return [parameter] if naming is None else naming.stored(*parameter)


def _header(stored: Sequence[NamedShape], kind: FloatType) -> bytes:
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}  # without it, transformers refuses the file
    offset = 0
    for name, shape in stored:
        end = offset + math.prod(shape) * kind.size_bytes
        header[name] = {"dtype": kind.code, "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT_BYTES)
    return len(text).to_bytes(LENGTH_BYTES, "little") + text


def _index(shards: Sequence[WeightsShard], kind: FloatType) -> bytes:
    count = sum(count_of(shard.stored) for shard in shards)
    weight_map = {name: shard.name for shard in shards for name, _ in shard.stored}
    found = {
        "metadata": {"total_size": count * kind.size_bytes, "total_parameters": count},
        "weight_map": dict(sorted(weight_map.items())),
    }
    return (json.dumps(found, indent=2) + "\n").encode()


class ParameterStream(Protocol):
    """Parameters that come in name order, as those of a `CheckpointStream` do."""

    async def parameters(self) -> TensorLayout:
        """Return names and shapes of the parameters; call it first."""
        ...

    async def read(self, size_bytes: int) -> bytes:
        """Return the next bytes of the parameters, as many."""
        ...

    async def check_end(self) -> None:
        """Raise `InvalidDocument` unless all was read, and is what it should be."""
        ...


@dataclass(frozen=True, slots=True)
class ExportNote:
    """The origin of an exported folder.

    Attributes:
        dtype: the type of the stored numbers, by PyTorch's name.
        checkpoint_sha256: SHA-256 of the checkpoint's bytes.
    """

    format: int
    run_id: str
    step: int
    dtype: str
    architecture: str
    replica_digest: str
    checkpoint_sha256: str


@dataclass(frozen=True, slots=True)
class ExportedModel:
    """The content of an export beside the weights.

    Attributes:
        run_id: the run.
        spec: its model, complete.
        kind: the type of the stored numbers.
        tokenizer: the tokenizer's files by name.
        base: of an adapter whose base is in no repository: its folder, as the state file names it.
    """

    run_id: str
    spec: ModelSpec
    kind: FloatType
    tokenizer: Mapping[str, bytes]
    base: str = ""

    def note(self, reference: CheckpointRef) -> ExportNote:
        """Return the note of a checkpoint's folder."""
        return ExportNote(
            EXPORT_FORMAT,
            self.run_id,
            reference.step,
            self.kind.value,
            self.spec.architecture.value,
            reference.replica_digest,
            reference.blob_sha256,
        )


async def write_export(folder: Path, model: ExportedModel, reference: CheckpointRef, stream: ParameterStream) -> None:
    """Write a checkpoint's folder, one piece of a tensor at a time; of an adapter, the folder that `peft` loads.

    Raises:
        InvalidDocument: the bytes are not the checkpoint's; nothing is left.
        InvalidInput: a number is too large for the type.
        ModelUnavailable: the folder cannot be written.
    """
    layout = await stream.parameters()
    hf = model.spec.hf
    adapts = model.spec.adapter is not None
    plan = plan_export(layout, model.kind, None if hf is None or adapts else hf["model_type"])
    for shard in plan.shards:
        with _written(folder / (ADAPTER_WEIGHTS_FILE if adapts else shard.name)) as file:
            await _write_shard(file, shard, model.kind, stream)
    await stream.check_end()
    config = {ADAPTER_CONFIG_FILE: _adapter_config_of(model)} if adapts else {CONFIG_FILE: config_of(model)}
    files = {**model.tokenizer, NOTE_FILE: _json(asdict(model.note(reference)))}
    files |= {name: _json(content) for name, content in config.items()}
    if plan.index is not None:
        files[INDEX_FILE] = plan.index
    for name, data in files.items():
        with _written(folder / name) as file:
            file.write(data)


async def _write_shard(file: BinaryIO, shard: WeightsShard, kind: FloatType, stream: ParameterStream) -> None:
    file.write(shard.header)
    for name, shape in shard.parameters:
        left = math.prod(shape)
        while left:
            count = min(left, CHUNK_NUMBERS)
            values = np.frombuffer(await stream.read(count * 4), "<f4").astype(np.float32, copy=False)
            rule = check_values(values, kind.largest)
            if rule == "finite":
                raise InvalidDocument(f"parameter {name!a} has values that are not finite")
            if rule is not None:
                raise InvalidInput(
                    f"parameter {name!a} has values above {kind.largest:g}, the largest of {kind}; allowed: "
                    "--dtype bfloat16 or float32"
                )
            file.write(from_float32(values, kind))
            left -= count


def _adapter_config_of(model: ExportedModel) -> dict[str, Any]:
    with naming_broken_libraries():
        from epochal.trainers.torch.adapters import adapter_config
    origin = origin_of(model.spec.hf)
    if origin is None:
        return adapter_config(model.spec, model.base, None)
    return adapter_config(model.spec, origin.repo_id, origin.commit)


def config_of(model: ExportedModel) -> dict[str, Any]:
    """Return the content of `config.json`: the model's Hugging Face config, or a description where it has none."""
    if model.spec.hf is None or model.spec.dummy:  # a dummy has none of the config's parameters
        architecture = model.spec.architecture.value
        return {
            "model_type": f"epochal-{architecture.lower()}",
            "about": f"Weights of Epochal's architecture {architecture} under their names in the run. transformers has "
            "no class for it: read them with safetensors, or let a run start from this folder.",
            "dtype": model.kind.value,
            "spec": model.spec.model_dump(mode="json", exclude_none=True),
        }
    config = {key: value for key, value in model.spec.hf.items() if key not in _OF_OTHER_WEIGHTS}
    config["torch_dtype"] = model.kind.value  # every version of transformers reads it
    if "architectures" not in config and config["model_type"] in CLASSES:
        config["architectures"] = [CLASSES[config["model_type"]]]
    return config


def read_note(folder: Path) -> ExportNote | None:
    """Return the note of an exported folder; None if the folder is another one, or not complete."""
    try:
        data = (folder / NOTE_FILE).read_bytes()[:MAX_NOTE_BYTES]
        return None if (folder / MARK_FILE).exists() else parse_document(ExportNote, data)
    except (OSError, InvalidDocument):
        return None


@contextlib.contextmanager
def making(to: Path) -> Iterator[Path]:
    """Yield a new folder to write into, which gets its name when the context is left, and vanishes on an error.

    Raises:
        InvalidInput: the folder exists and is not empty, or its place is another's.
        ModelUnavailable: it cannot be written.
    """
    to = to.absolute()
    partial = to.with_name(to.name + PARTIAL_SUFFIX)
    with reported(to), contextlib.ExitStack() as opened:
        opened.enter_context(_begun(partial, to))
        try:
            yield partial
            sync_folder(partial)
            (partial / MARK_FILE).unlink()
            partial.rename(to)
            sync_folder(to.parent)
        finally:
            shutil.rmtree(partial, ignore_errors=True)


def _begun(partial: Path, to: Path) -> BinaryIO:
    """Make the empty folder and return its mark, locked. A folder that a killed process left is removed."""
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise InvalidInput(f"{to} exists; allowed: a new folder")
    mark = partial / MARK_FILE
    if partial.exists() and not mark.exists():
        raise InvalidInput(f"{partial} exists, and no export wrote it; move it away")
    make_folder(partial)
    file = mark.open("ab")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for path in partial.iterdir():
            if path != mark:
                path.unlink()
    except BlockingIOError:
        file.close()
        raise InvalidInput(f"{partial} is being written by another process") from None
    except OSError:
        file.close()
        raise
    return file


@contextlib.contextmanager
def reported(to: Path) -> Iterator[None]:
    """Raise an `OSError` of the disk as `ModelUnavailable` or `InvalidInput`."""
    try:
        yield
    except OSError as error:
        text = f"{to} cannot be written: {reason_of(error)}"
        if obstacle_of(error) is Obstacle.BROKEN:
            raise InvalidInput(text) from error
        raise ModelUnavailable(text, is_full=obstacle_of(error) is Obstacle.FULL) from error


@contextlib.contextmanager
def _written(path: Path) -> Iterator[BinaryIO]:
    """Yield a new file to write; it is durable when the context is left."""
    with path.open("wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


def _json(content: Mapping[str, Any]) -> bytes:
    return (json.dumps(content, indent=2) + "\n").encode()
