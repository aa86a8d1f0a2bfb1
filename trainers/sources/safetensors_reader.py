"""Reading a model's parameters out of safetensors files, one at a time, as float32.

Theory of operation. `locate` finds the stored tensors of every parameter before any number is read: by the parameter's
name; by the name under which the file's metadata say that a tied tensor was kept; or as repositories of some kinds of
models keep it. What is left over must be a second copy of a parameter, or a constant that older programs stored.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from epochal.state.errors import InvalidInput, TrainerFailed
from epochal.state.model.layout_difference import MAX_DIFFERENCES_SHOWN
from epochal.state.model.tensors import Float32Array
from epochal.state.model.value_checks import check_values
from epochal.trainers.learner import Shapes
from epochal.trainers.sources.experts import stored_forms
from epochal.trainers.sources.float_types import FloatType, float_type_of, to_float32
from epochal.trainers.sources.model_source import ModelFile
from epochal.trainers.sources.weights_file import StoredTensor, WeightsFile, read_bytes

CHUNK_BYTES = 8 * 1024 * 1024
"""Bytes of a file that are read at a time."""
_DECAYS = tuple(f".self_attn.{name}" for name in ("slope_rate", "query_decay", "key_decay", "diagonal_decay"))
COMPUTED_CONSTANTS = (".rotary_emb.inv_freq", ".masked_bias", *_DECAYS)
"""Ends of the names of tensors that follow from the config, and that older versions of transformers stored."""
CAUSAL_MASKS = (".attn.bias", ".attention.bias")
"""Ends of the names of masks, (1, 1, n, n), that older versions stored."""
ROUTING_BIASES = ("e_score_correction_bias", "expert_bias")
"""Last parts of the names of values that help to choose experts, and that no step trains; zero where not stored."""


@dataclass(frozen=True, slots=True)
class StoredPart:
    """A stored tensor, by its name and its file."""

    name: str
    file: ModelFile
    tensor: StoredTensor


Located = dict[str, list[StoredPart]]
"""The stored tensors of each parameter, whose numbers follow one another in it."""


def read_tensors(files: Sequence[WeightsFile], shapes: Shapes, place: str) -> Iterator[tuple[str, Float32Array]]:
    """Return the parameters in these files as `ModelSource.tensors` does.

    Args:
        files: all files of the source.
        shapes: shape of every parameter, by name.
        place: the source's place.
    """
    located = locate(files, shapes, place)
    return ((name, _read(name, shape, located[name])) for name, shape in shapes.items())


def locate(files: Sequence[WeightsFile], shapes: Shapes, place: str) -> Located:
    """Return where each parameter is stored.

    Raises:
        InvalidInput: one is missing, doubled, or has another shape or type; or there is a tensor that is no parameter.
    """
    stored = _stored_by_name(files)
    other_names = {name: kept for file in files for name, kept in file.metadata.items()}
    located: Located = {}
    wrong: list[str] = []
    for name, shape in shapes.items():
        parts, mistakes = _parts_of(name, tuple(shape), stored, other_names)
        located[name] = parts
        wrong += mistakes
    used = {part.name for parts in located.values() for part in parts}
    left = [part for name, part in stored.items() if name not in used and not _is_constant(part)]
    wrong += [
        f"{part.file.place} has a tensor {part.name!a} that the model lacks"
        for part in left
        if not _is_second_copy(part, stored, used)
    ]
    if wrong:
        shown, more = wrong[:MAX_DIFFERENCES_SHOWN], len(wrong) - MAX_DIFFERENCES_SHOWN
        text = "; ".join(shown) + (f"; and {more} more differences" if more > 0 else "")
        raise InvalidInput(f"{place} does not hold the weights of the run's model: {text}", place=place)
    return located


def _stored_by_name(files: Sequence[WeightsFile]) -> dict[str, StoredPart]:
    stored: dict[str, StoredPart] = {}
    for file in files:
        for name, tensor in file.tensors.items():
            if name in stored:
                raise InvalidInput(f"{file.place}: {name!a} is in {stored[name].file.place} too", place=file.place)
            stored[name] = StoredPart(name, file.file, tensor)
    return stored


def _parts_of(
    name: str, shape: tuple[int, ...], stored: Mapping[str, StoredPart], other_names: Mapping[str, str]
) -> tuple[list[StoredPart], list[str]]:
    """Return the stored tensors of a parameter, and what is wrong with them."""
    wanted = [(name, shape)]
    if name not in stored:
        forms = [[(other_names[name], shape)]] if name in other_names else []
        forms += stored_forms(name, shape)
        wanted = next((form for form in forms if any(part in stored for part, _ in form)), wanted)
        if wanted == [(name, shape)] and name.rpartition(".")[2] in ROUTING_BIASES:
            return [], []
    parts = [stored[part] for part, _ in wanted if part in stored]
    wrong = [f"no file has {part!a} of shape {needed}" for part, needed in wanted if part not in stored]
    for part, needed in wanted:
        if part not in stored:
            continue
        found = stored[part]
        if found.tensor.shape != needed:
            text = f"{part!a} has shape {found.tensor.shape} instead of {needed}"
            wrong.append(f"{text} in {found.file.place}")
        elif float_type_of(found.tensor.code) is None:
            allowed = ", ".join(kind.code for kind in FloatType)
            wrong.append(f"{part!a} has type {found.tensor.code[:32]!a} in {found.file.place}; allowed: {allowed}")
    return parts, wrong


def _is_second_copy(part: StoredPart, stored: Mapping[str, StoredPart], used: set[str]) -> bool:
    """Return whether a matrix has the same bytes as one that is a parameter: weights that are tied, stored twice."""
    if len(part.tensor.shape) < 2:
        return False
    alike = (stored[name] for name in used)
    kind = (part.tensor.code, part.tensor.shape)
    return any((other.tensor.code, other.tensor.shape) == kind and _are_equal(part, other) for other in alike)


def _is_constant(part: StoredPart) -> bool:
    """Return whether a tensor follows from the config, so that nobody needs it."""
    shape = part.tensor.shape
    is_mask = part.name.endswith(CAUSAL_MASKS) and shape[:2] == (1, 1) and len(shape) == 4
    return is_mask or part.name.endswith(COMPUTED_CONSTANTS)


def _are_equal(one: StoredPart, other: StoredPart) -> bool:
    size_bytes = one.tensor.stop - one.tensor.start
    for start in range(0, size_bytes, CHUNK_BYTES):
        stop = min(start + CHUNK_BYTES, size_bytes)
        pieces = [read_bytes(part.file, part.tensor.start + start, part.tensor.start + stop) for part in (one, other)]
        if pieces[0] != pieces[1]:
            return False
    return True


def _read(name: str, shape: Sequence[int], parts: Sequence[StoredPart]) -> Float32Array:
    try:
        values = (np.empty if parts else np.zeros)(math.prod(shape), np.float32)
    except MemoryError as error:
        raise TrainerFailed(f"parameter {name!a} of shape {tuple(shape)} does not fit into memory") from error
    offset = 0
    for part in parts:
        count = math.prod(part.tensor.shape)
        _fill(values[offset : offset + count], part)
        offset += count
    return values.reshape(tuple(shape))


def _fill(values: Float32Array, part: StoredPart) -> None:
    """Fill a flat array with the numbers of a stored tensor. Raise `InvalidInput` if one of them is not finite."""
    kind = float_type_of(part.tensor.code)
    assert kind is not None, "`locate` has refused other types"
    step = CHUNK_BYTES // kind.size_bytes
    raw = np.empty(min(values.size, step) * kind.size_bytes, np.uint8)
    for start in range(0, values.size, step):
        chunk = values[start : start + step]
        into = raw[: chunk.size * kind.size_bytes]
        part.file.read_into(part.tensor.start + start * kind.size_bytes, into.data)
        to_float32(into, kind, chunk)
        if check_values(chunk, math.inf) is not None:
            place = part.file.place
            raise InvalidInput(f"{place}: {part.name!a} has values that are not finite", place=place)
