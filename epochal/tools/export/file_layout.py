"""The files into which a checkpoint's parameters go: which tensors each has, its header, and the index of all.

The rule kept here: tensors stay in the run's order, name order, so that a checkpoint is written in one pass, as it is
read. Weights that are tied are there once, as `save_pretrained` writes them.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass

from epochal.state.model.tensors import LENGTH_BYTES, TensorLayout
from epochal.trainers.sources.experts import NAMINGS, NamedShape
from epochal.trainers.sources.float_types import FloatType
from epochal.trainers.sources.folder_source import WEIGHTS_FILE

MAX_SHARD_BYTES = 5 * 1000**3
"""Maximum size of the tensors of one file, unless one of them is larger."""
_ALIGNMENT_BYTES = 8


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
