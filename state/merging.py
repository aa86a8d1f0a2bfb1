"""The outer step: applies the update of a step to a replica, with the same bits everywhere.

`docs/merging.md` writes it out; `state/updates.py` makes the update. The rule kept here: every value is computed by
elementwise float32 `+ − ×`, each rounded once as IEEE 754 prescribes, with `np.float32` scalars, in a fixed order. No
reduction (NumPy does not fix its order), no fused or compiled operation, no wider intermediate. So the result depends
neither on the processor, nor on how arrays lie in memory or are cut into chunks. It does depend on denormals being
kept: see `verify_arithmetic`.

Source: DiLoCo, https://arxiv.org/abs/2311.08105, with the Nesterov form of `torch.optim.SGD(nesterov=True)`.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from epochal.state.codecs.codec import EncodedTensor
from epochal.state.codecs.codecs_by_name import codec_named
from epochal.state.codecs.compiled import compiled
from epochal.state.codecs.record_codec import RecordCodec
from epochal.state.config.state_file import MergeConfig
from epochal.state.errors import EpochalError, InternalError
from epochal.state.model.replica import Replica
from epochal.state.model.tensors import Float32Array, TensorLayout, Tensors, frozen_tensors
from epochal.state.model.value_checks import check_values
from epochal.state.results import Difference

OWN_PART = 0.75
"""How much of its own result a client that trains before its round takes for the mean (`docs/merging.md`)."""
CHUNK_ELEMENTS = 1 << 16
"""Values that are merged at a time: two buffers of 256 KiB, whatever the model's size."""
PIECE_ELEMENTS = 1 << 20
"""Values that one thread merges before another may take over: a call of some milliseconds."""


class UnsoundArithmetic(EpochalError):
    """This thread does not compute IEEE float32 (usually it flushes denormals to zero) and must not merge.

    The fault of the machine or of a loaded library (`-ffast-math`); do not retry in the same thread.
    """


class Diverged(EpochalError):
    """An outcome makes parameters or momentum infinite or NaN. The same on every replica; the run cannot continue."""


@dataclass(frozen=True, slots=True)
class OuterStep:
    """The outer optimizer: `learning_rate` η and `momentum` μ, each rounded to float32 before use.

    Attributes:
        part: by which the update is multiplied first.
    """

    learning_rate: float
    momentum: float
    part: float = 1.0

    @classmethod
    def of(cls, merge: MergeConfig) -> Self:
        """Return the outer step of a run."""
        return cls(merge.outer_lr, merge.outer_momentum)

    def of_own(self) -> "OuterStep":
        """Return the one by which a client that does not wait for the mean takes its own result (`merge.delay`)."""
        return replace(self, part=OWN_PART)


@dataclass(frozen=True, eq=False, slots=True)
class MergeOutput:
    """The arrays to which a merge writes the new values, with the names and shapes of the replica's."""

    parameters: Tensors
    momentum: Tensors


@dataclass(frozen=True, slots=True)
class Stretch:
    """The flat values `start` to `stop` of one parameter; `start` is a multiple of `CHUNK_ELEMENTS`."""

    name: str
    start: int
    stop: int

    @property
    def size(self) -> int:
        """Number of values."""
        return self.stop - self.start


def pieces_of(layout: TensorLayout) -> Iterator[tuple[Stretch, ...]]:
    """Yield the values of a model's parameters in pieces of `PIECE_ELEMENTS` at most, in name order: one is merged at a
    time, or several side by side, because elements are independent."""
    piece: list[Stretch] = []
    room = PIECE_ELEMENTS
    for name, count in layout.counts():
        for start in range(0, count, PIECE_ELEMENTS):
            stretch = Stretch(name, start, min(start + PIECE_ELEMENTS, count))
            if stretch.size > room:
                yield tuple(piece)
                piece, room = [], PIECE_ELEMENTS
            piece.append(stretch)
            room -= stretch.size
    yield tuple(piece)


class Merge:
    """The outer step from one replica to the next, of which any stretch is computed at a time.

    Takes the memory of the new replica, unless there is an `output` for it, and a constant (`CHUNK_ELEMENTS`).

    Args:
        replica: the round's start.
        update: the mean of the round's results, as the update holds it: encoded tensors are decoded part by part, no
            sooner than their stretch is computed.
        outer: the outer optimizer.
        output: where to write the new replica, which consists of these arrays then; None for new memory.

    Raises:
        InternalError: other names, shapes or types than the replica's, or a replica without outer momentum in a run
            that has it; the caller's bug: updates are checked when they are decoded.
    """

    def __init__(
        self, replica: Replica, update: Difference, outer: OuterStep, output: MergeOutput | None = None
    ) -> None:
        self._update = _checked(replica, update)
        if outer.momentum and not replica.has_momentum:
            raise InternalError(f"a replica without outer momentum, in a run whose momentum is {outer.momentum:g}")
        self._replica = replica
        self._outer = outer
        self._output = output or _in_memory(replica)

    def compute(self, stretch: Stretch) -> None:
        """Write θ′ and v′ of a stretch.

        Raises:
            Diverged: the new values are not finite. The same on every replica; do not retry.
        """
        start, momentum = self._replica.parameters[stretch.name], self._replica.momentum
        values = momentum[stretch.name].reshape(-1) if self._replica.has_momentum else None
        step = _TensorStep(start.reshape(-1), values, self._update[stretch.name])
        with np.errstate(all="ignore"):  # overflow is found; underflow to a denormal is intended
            is_finite = _merge_stretch(step, self._outer, stretch, self._output)
        if not is_finite:
            step_number = self._replica.step + 1
            raise Diverged(f"the update of step {step_number} makes {stretch.name!a} infinite", step=step_number)

    def merged(self) -> Replica:
        """Return the new replica, once all of it is computed."""
        return Replica(self._replica.step + 1, self._output.parameters, self._output.momentum)


def merge(replica: Replica, update: Difference, outer: OuterStep) -> Replica:
    """Return the replica after the update of its step.

    Raises:
        InternalError, Diverged: as `Merge`.
    """
    step = Merge(replica, update, outer)
    for piece in pieces_of(replica.layout):
        for stretch in piece:
            step.compute(stretch)
    return step.merged()


def _in_memory(replica: Replica) -> MergeOutput:
    parameters, momentum = (
        {name: np.empty(values.shape, np.float32) for name, values in tensors.items()}
        for tensors in (replica.parameters, replica.momentum)
    )
    return MergeOutput(parameters, momentum)


@dataclass(frozen=True, eq=False, slots=True)
class _TensorStep:
    """One tensor's inputs: flat parameters θ, flat momentum v if there is any, and the update's mean Δ."""

    parameters: Float32Array
    momentum: Float32Array | None
    mean: Float32Array | EncodedTensor

    def read_mean(self, start: int, out: Float32Array) -> None:
        """Write a part of the mean to `out`."""
        if isinstance(self.mean, EncodedTensor):
            values = self.mean.read(start, out)
            if values is not out:
                np.copyto(out, values)
        else:
            np.copyto(out, self.mean.reshape(-1)[start : start + out.size])


def _merge_stretch(step: _TensorStep, outer: OuterStep, stretch: Stretch, output: MergeOutput) -> bool:
    """Write θ′ and v′, chunk by chunk; one NumPy call is one rounding. Return whether all of them are finite."""
    parameters_out = output.parameters[stretch.name].reshape(-1)
    momentum_out = None if step.momentum is None else output.momentum[stretch.name].reshape(-1)
    rate, decay = np.float32(outer.learning_rate), np.float32(outer.momentum)
    size = min(CHUNK_ELEMENTS, stretch.size)
    mean_buffer, product_buffer = np.empty(size, np.float32), np.empty(size, np.float32)
    for start in range(stretch.start, stretch.stop, CHUNK_ELEMENTS):
        part = slice(start, min(start + CHUNK_ELEMENTS, stretch.stop))
        new_parameters = parameters_out[part]
        mean, product = mean_buffer[: new_parameters.size], product_buffer[: new_parameters.size]
        step.read_mean(start, mean)
        if outer.part != 1:
            np.multiply(mean, np.float32(outer.part), out=mean)
        loops = compiled()
        if loops is not None and step.momentum is not None and momentum_out is not None:
            inputs = mean, step.momentum[part], step.parameters[part], rate, decay
            if not loops.outer_step(*inputs, momentum_out[part], new_parameters):
                return False
            continue
        if step.momentum is not None and momentum_out is not None:
            new_momentum = momentum_out[part]
            np.multiply(step.momentum[part], decay, out=product)
            np.add(product, mean, out=new_momentum)  # v′ = μ·v + Δ
            np.multiply(new_momentum, decay, out=product)
            np.add(mean, product, out=mean)  # Δ + μ·v′
            if check_values(new_momentum, math.inf) is not None:
                return False
        np.multiply(mean, rate, out=product)
        np.subtract(step.parameters[part], product, out=new_parameters)  # θ′ = θ − η·(Δ + μ·v′)
        if check_values(new_parameters, math.inf) is not None:
            return False
    return True


def _checked(replica: Replica, update: Difference) -> Difference:
    arrays = {name: values for name, values in update.items() if not isinstance(values, EncodedTensor)}
    update = {**update, **frozen_tensors(arrays)}
    if _shapes(update) != replica.layout.entries:
        raise InternalError("an update's names or shapes are not the replica's")
    return update


def _shapes(difference: Difference) -> tuple[tuple[str, tuple[int, ...]], ...]:
    return tuple((name, difference[name].shape) for name in sorted(difference))


_PROBE_ELEMENTS = 67
"""Enough for NumPy's vector loops and, being odd, for the scalar loops at their ends."""
_TINY_BITS = 5
"""5 · 2⁻¹⁴⁹, a denormal. Half of it is a tie: 2 units to nearest even, 3 upwards, 0 where denormals are flushed."""
_TIE_BITS = 0x4B800002
"""2²⁴ + 4, to which 2²⁴ + 3 rounds to nearest even; 2²⁴ + 2 downwards."""


_PROBES = (
    np.full(_PROBE_ELEMENTS, _TINY_BITS, np.uint32).view(np.float32),
    np.full(_PROBE_ELEMENTS, 2.0**24, np.float32),
    np.full(_PROBE_ELEMENTS, 2**24 + 3, np.int64),
)
_EXPECTED_BYTES = {bits: np.full(_PROBE_ELEMENTS, bits, np.uint32).tobytes() for bits in (2, 2 * _TINY_BITS, _TIE_BITS)}


def verify_arithmetic() -> None:
    """Raise `UnsoundArithmetic` unless this thread keeps denormals and rounds to nearest, even.

    Call it in the thread that merges.
    """
    tiny, large, odd = _PROBES
    with np.errstate(all="ignore"):
        probes: list[tuple[str, Float32Array, int]] = [
            ("a denormal result", np.multiply(tiny, np.float32(0.5)), 2),
            ("a denormal operand", np.add(tiny, tiny), 2 * _TINY_BITS),
            ("a tie", np.add(large, np.float32(3.0)), _TIE_BITS),
            ("a denormal quotient", np.divide(tiny, np.float32(2.0)), 2),
            ("an integer", odd.astype(np.float32), _TIE_BITS),
        ]
        loops = compiled()
        if loops is not None:
            moved, zeros = np.empty_like(tiny), np.zeros_like(tiny)
            loops.outer_step(zeros, tiny, zeros, np.float32(0.5), np.float32(0.5), moved, np.empty_like(tiny))
            probes.append(("a denormal in a compiled loop", moved, 2))
    for name, found, expected in probes:
        bits = found.view(np.uint32)
        if bits.tobytes() != _EXPECTED_BYTES[expected]:
            raise UnsoundArithmetic(
                f"{name} is not computed as IEEE 754 prescribes: this thread flushes denormals to zero, or rounds "
                "differently (libraries built with -ffast-math set that), so its replica would differ from the others",
                found=hex(int(bits[0])),
                expected=hex(expected),
            )


def probe_bits() -> bytes:
    """Return the bits of a merge of numbers of every kind, as `state/codecs/compiled.py` compares them."""
    bits = np.arange(2 * _PROBED_VALUES, dtype=np.uint32) * np.uint32(2654435761)  # spread over all exponents
    values = np.where((bits >> 23) % 256 < 200, bits, bits & 0x807FFFFF).astype(np.uint32).view(np.float32)
    theta, velocity = values[:_PROBED_VALUES], values[_PROBED_VALUES:]
    replica, found = Replica(0, {"w": theta}, {"w": velocity}), b""
    for codec in (codec_named("int4"), codec_named("int8"), codec_named("int2")):
        assert isinstance(codec, RecordCodec)
        block = codec.encode(theta[::-1] * np.float32(0.75))
        after = merge(replica, {"w": EncodedTensor(codec, theta.shape, block)}, OuterStep(0.7, 0.9))
        sums = velocity.copy()
        codec.add(block, theta.size, 0, sums, np.float32(0.7), np.empty_like(sums))
        arrays = (block, after.parameters["w"], after.momentum["w"], sums)
        found += b"".join(array.tobytes() for array in arrays)
    return found


_PROBED_VALUES = 256 * 64 + 101
