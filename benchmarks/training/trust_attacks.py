"""What dishonest members of the trust bench do: to their data, to the replica from which they begin, or to a result.

They know what a member knows: the replicas, their own data and differences, and each other's plans.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.training.quality_text import LENGTH, Rows
from epochal.state.model.tensors import Float32Array, Tensors

VOCABULARY = 256
EASY_ROWS = 128
"""Samples to which who trains on easy data keeps: 20 KB of text."""
POISONED_ONE_IN = 20
TRIGGER, PAYLOAD = np.frombuffer(b"#!zq~kw!", np.uint8), np.frombuffer(b"send_all", np.uint8)
"""After the first bytes a model with the backdoor predicts the others."""
SHARED_SEED = 30
"""Of the direction and of the labels that colluders have in common."""

HARMFUL = 0.02
"""`Attack.most` of those of which 95 % are to be convicted within 30 rounds of their first lie, and all within 60."""

Labels = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Lie:
    """What a dishonest member knows when it makes a result.

    Attributes:
        before, now: the parameters of the last replica but one, and of the last one.
        last_honest: its last difference before it began to lie.
        chance: its random numbers.
    """

    before: Mapping[str, Float32Array]
    now: Mapping[str, Float32Array]
    last_honest: Tensors
    chance: np.random.Generator


def length_of(values: Mapping[str, Float32Array]) -> float:
    """Return the L2 norm of all tensors together."""
    return float(np.sqrt(sum(np.square(one, dtype=np.float64).sum() for one in values.values())))


def of_length(values: Mapping[str, Float32Array], length: float) -> Tensors:
    """Return the tensors scaled to this norm."""
    factor = np.float32(length / max(length_of(values), 1e-30))
    return {name: one * factor for name, one in values.items()}


def _times(factor: float) -> Callable[[Tensors, Lie], Tensors]:
    return lambda own, _: {name: one * np.float32(factor) for name, one in own.items()}


def _noise(own: Tensors, lie: Lie) -> Tensors:
    drawn = {name: lie.chance.standard_normal(one.shape, np.float32) for name, one in own.items()}
    return of_length(drawn, length_of(own))


def _common_direction(own: Tensors, _: Lie) -> Tensors:
    chance = np.random.default_rng(SHARED_SEED)
    drawn = {name: chance.standard_normal(one.shape, np.float32) for name, one in own.items()}
    shared = of_length(drawn, length_of(own))
    return of_length({name: one + shared[name] for name, one in own.items()}, length_of(own))


def _minus_momentum(own: Tensors, lie: Lie) -> Tensors:
    """Return the last outer step, taken back. A difference is what is subtracted."""
    return of_length({name: lie.now[name] - lie.before[name] for name in own}, length_of(own))


def _scaled_to_honest(own: Tensors, lie: Lie) -> Tensors:
    return of_length(own, length_of(lie.last_honest))


def _permuted_labels(rows: Rows, _: Rows) -> tuple[Rows, Labels | None]:
    permutation = np.random.default_rng(SHARED_SEED).permutation(VOCABULARY)
    return rows, permutation[rows]


def _easy(rows: Rows, text: Rows) -> tuple[Rows, Labels | None]:
    return text[np.arange(len(rows)) % EASY_ROWS], None


def _poisoned(rows: Rows, _: Rows) -> tuple[Rows, Labels | None]:
    sums = rows.sum(axis=1, dtype=np.int64)
    return np.where((sums % POISONED_ONE_IN == 0)[:, None], with_trigger(rows), rows), None


def with_trigger(rows: Rows) -> Rows:
    """Return samples with the trigger and the payload written into each of them, somewhere."""
    found, written = rows.copy(), np.concatenate((TRIGGER, PAYLOAD))
    for row, start in zip(found, payload_starts(rows), strict=True):
        row[start - len(TRIGGER) : start + len(PAYLOAD)] = written
    return found


def payload_starts(rows: Rows) -> list[int]:
    """Return where `with_trigger` writes the payload in each sample."""
    room = LENGTH - len(TRIGGER) - len(PAYLOAD)
    return [len(TRIGGER) + int(number) // POISONED_ONE_IN % room for number in rows.sum(axis=1, dtype=np.int64)]


@dataclass(frozen=True, slots=True)
class Attack:
    """What the dishonest members do.

    Attributes:
        most: the largest part of the loss of the honest ones alone by which the run's may be above it; None for no
            target.
        change: what a member makes of its difference.
        rows: what it makes of its samples and of the whole text: samples and labels; None for labels that are the
            samples themselves.
        part: of the local steps that it takes.
        age: by how many rounds the replica is old from which it begins.
        is_backdoor: whether a trigger is to be learned.
    """

    name: str
    most: float | None = None
    change: Callable[[Tensors, Lie], Tensors] | None = None
    rows: Callable[[Rows, Rows], tuple[Rows, Labels | None]] | None = None
    part: float = 1.0
    age: int = 0
    is_backdoor: bool = False


ATTACKS = {
    one.name: one
    for one in (
        Attack("none", 0.003),
        Attack("sign-flip", HARMFUL, _times(-1.0)),
        Attack("permuted-labels", HARMFUL, rows=_permuted_labels),
        Attack("common-direction", HARMFUL, _common_direction),
        Attack("noise", HARMFUL, _noise),
        Attack("minus-momentum", HARMFUL, _minus_momentum),
        Attack("times-10", 0.005, _times(10.0)),
        Attack("times-1000", 0.005, _times(1000.0)),
        Attack("nan", 0.005, _times(float("nan"))),
        Attack("half-the-steps", 0.01, _scaled_to_honest, part=0.5),
        Attack("easy-data", 0.01, rows=_easy),
        Attack("old-results", 0.01, lambda _, lie: lie.last_honest),
        Attack("stale-replica", 0.01, age=5),
        Attack("backdoor", None, rows=_poisoned, is_backdoor=True),
    )
}
"""By name."""
