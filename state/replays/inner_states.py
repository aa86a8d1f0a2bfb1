"""Inner states as files: moments, to whose digest a client commits, and which it reveals when it is challenged.

The file is a tensor file of float32 (`state/model/tensors.py`) with the moments by name. The rule kept here: the same
moments have the same bytes on every machine, and two states that are compared have the same names and steps, or are as
far apart as can be.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from epochal.state.config.model_table import Muon, Optimizer
from epochal.state.model.tensors import (
    CHECK_CHUNK_ELEMENTS,
    Buffer,
    Float32Array,
    InvalidTensorFile,
    TensorLayout,
    TensorStream,
    file_size_bound,
    frozen_tensors,
    layout_of,
    parse_tensor_file,
    tensor_stream,
)
from epochal.state.replays.replay_distance import MAX_DISTANCE

INNER_STATE_FORMAT = "epochal/inner-state/v1"
MOMENTS_OF_A_PARAMETER = 2
"""Maximum number of moments of each parameter."""
METADATA_BOUND_BYTES = 128
_NOT_HIDDEN = ("embed", "head", "output", "wte", "wpe")
"""Parts of the names of matrices for which Muon leaves the step to AdamW, so that they have two moments too."""
_PREFIX = "moment-{number}/"
_MAX_STEP_DIGITS = 18


@dataclass(frozen=True, slots=True, eq=False)
class InnerState:
    """The state that an optimizer keeps from step to step.

    Attributes:
        step_count: optimizer steps taken.
        tensors: its moments, float32, by names of the learner's choice, those of a kind with the same beginning, up to
            a slash; empty before the first step.
    """

    step_count: int = 0
    tensors: Mapping[str, Float32Array] = field(default_factory=dict)


NO_INNER_STATE = InnerState()


def inner_state_stream(state: InnerState) -> TensorStream:
    """Return the file of a state, the same for the same content. A tensor is read whenever its part is."""
    tensors = state.tensors
    layout = TensorLayout(tuple((name, tuple(tensors[name].shape)) for name in sorted(tensors)))
    metadata = {"format": INNER_STATE_FORMAT, "step_count": str(state.step_count)}
    return tensor_stream(
        layout, metadata, lambda: (frozen_tensors({name: tensors[name]})[name] for name, _ in layout.entries)
    )


def parse_inner_state(data: Buffer) -> InnerState:
    """Return the state in a file. Its arrays are views of `data`. Raise `InvalidTensorFile` if it is none."""
    file = parse_tensor_file(data)
    steps = file.metadata.get("step_count", "")
    is_natural = steps.isascii() and steps.isdigit() and len(steps) <= _MAX_STEP_DIGITS
    if set(file.metadata) != {"format", "step_count"} or not is_natural:
        raise InvalidTensorFile("header", "an inner state whose metadata are others than format and step_count")
    if file.metadata["format"] != INNER_STATE_FORMAT:
        raise InvalidTensorFile("format", f"not an inner state of format {INNER_STATE_FORMAT}")
    return InnerState(int(steps), file.tensors())


def moments_bytes(layout: TensorLayout, optimizer: Optimizer) -> int:
    """Return the size of an optimizer's moments in float32: two of each parameter; Muon has one of a hidden matrix."""
    found = MOMENTS_OF_A_PARAMETER * layout.size_bytes
    if isinstance(optimizer, Muon):
        hidden = [shape for name, shape in layout.entries if not any(part in name for part in _NOT_HIDDEN)]
        found -= np.dtype(np.float32).itemsize * sum(math.prod(shape) for shape in hidden if len(shape) == 2)
    return found


def inner_state_size_bound(layout: TensorLayout) -> int:
    """Return the maximum size in bytes of the file of a state, for a model of this layout."""
    names = [
        (_PREFIX.format(number=number) + name, shape)
        for number in range(MOMENTS_OF_A_PARAMETER)
        for name, shape in layout.entries
    ]
    return file_size_bound(TensorLayout(tuple(sorted(names))), METADATA_BOUND_BYTES)


def state_distance(found: InnerState, replay: InnerState) -> float:
    """Return how far a state is from its replay: ‖m − m′‖ ÷ ‖m′‖ of that kind of moment of which it is the most.

    Moments of a kind are those whose names begin alike, up to the first slash: a second moment is a square, and much
    smaller than a first one.

    Args:
        found: the state that a client revealed.
        replay: the state after the same work here.

    Returns:
        From 0 to `MAX_DISTANCE`, which is also that of states with other names, shapes or steps, and of one with a
        value that is not finite.
    """
    if found.step_count != replay.step_count or layout_of(found.tensors) != layout_of(replay.tensors):
        return MAX_DISTANCE
    apart, length = dict[str, float](), dict[str, float]()
    for name in sorted(replay.tensors):
        kind = name.partition("/")[0]
        one, other = found.tensors[name].reshape(-1), replay.tensors[name].reshape(-1)
        for start in range(0, other.size, CHECK_CHUNK_ELEMENTS):
            part = slice(start, start + CHECK_CHUNK_ELEMENTS)
            wanted = other[part].astype(np.float64)
            apart[kind] = apart.get(kind, 0.0) + float(np.square(one[part] - wanted).sum())
            length[kind] = length.get(kind, 0.0) + float(np.square(wanted).sum())
    return max((_ratio(apart[kind], length[kind]) for kind in apart), default=0.0)


def _ratio(apart: float, length: float) -> float:
    if not math.isfinite(apart):
        return MAX_DISTANCE
    if not length:
        return MAX_DISTANCE if apart else 0.0
    return min(math.sqrt(apart / length), MAX_DISTANCE)
