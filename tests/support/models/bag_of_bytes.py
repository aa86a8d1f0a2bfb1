"""A second model, with a learner unlike the embedded one's: what works with it knows no n-gram.

A byte is predicted from the bytes before it in its example, whatever their order: `p = softmax(bag · W)`, where `bag`
holds each byte's share of them. Values are kept in float64, and each is made float32 when it is asked for; a loss is an
array until somebody needs the number; the optimizer is plain momentum.
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from epochal.batching.micro_batches import Example
from epochal.data_providers.protocol import IGNORED_LABEL
from epochal.state.config.model_table import Architecture, InnerOptimizer
from epochal.state.model.tensors import Float32Array, Tensors
from epochal.trainers.architectures import ArchitectureEntry
from epochal.trainers.learner import NO_INNER_STATE, InnerState, Loss, Proceed, go_on

Values = npt.NDArray[np.float64]

ARCHITECTURE = Architecture.TORCHTITAN
"""One that this version does not train, so that nothing else can be meant."""
WEIGHT, VELOCITY = "bag.weight", "velocity"


class BagOfBytes:
    vocabulary = 256
    shapes: Mapping[str, tuple[int, ...]] = {WEIGHT: (256, 256)}

    def initial_parameters(self, seed: bytes) -> Tensors:
        generator = np.random.default_rng(list(seed))
        return {WEIGHT: generator.normal(0, 0.1, (256, 256)).astype(np.float32)}

    def learner(self) -> "BagLearner":
        return BagLearner()


class _OnDemand(Mapping[str, Float32Array]):
    """Tensors that become float32 arrays one at a time."""

    def __init__(self, values: Mapping[str, Values]) -> None:
        self._values = values

    def __getitem__(self, name: str) -> Float32Array:
        return self._values[name].astype(np.float32)

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


class BagLearner:
    computed = "float64/cpu"

    def __init__(self) -> None:
        self._weight = np.zeros((256, 256))
        self._velocity = np.zeros((256, 256))
        self._gradient: Values | None = None
        self._steps = 0

    @property
    def parameters(self) -> Mapping[str, Float32Array]:
        return _OnDemand({WEIGHT: self._weight})

    @property
    def inner_state(self) -> InnerState:
        return InnerState(self._steps, _OnDemand({VELOCITY: self._velocity}))

    @property
    def gradient(self) -> Mapping[str, Float32Array]:
        return _OnDemand({WEIGHT: np.zeros((256, 256)) if self._gradient is None else self._gradient})

    def load(self, parameters: Mapping[str, Float32Array], inner_state: InnerState = NO_INNER_STATE) -> None:
        self._weight = parameters[WEIGHT].astype(np.float64)
        kept = inner_state.tensors.get(VELOCITY)
        self._velocity = np.zeros((256, 256)) if kept is None else kept.astype(np.float64)
        self._steps = inner_state.step_count
        self.discard()

    def accumulate(self, examples: Sequence[Example], proceed: Proceed = go_on) -> Loss:
        gradient = np.zeros((256, 256)) if self._gradient is None else self._gradient
        learnt = self._loss(examples, proceed, gradient)
        self._gradient = gradient if learnt.token_count else self._gradient
        return learnt

    def evaluate(self, examples: Sequence[Example], proceed: Proceed = go_on) -> Loss:
        return self._loss(examples, proceed, None)

    def replace_gradient(self, gradient: Mapping[str, Float32Array]) -> None:
        self._gradient = gradient[WEIGHT].astype(np.float64)

    def step(self, optimizer: InnerOptimizer, learning_rate: float, divisor: float) -> Values | None:
        if self._gradient is None:
            return None
        mean = self._gradient / divisor
        self._velocity = optimizer.betas[0] * self._velocity + mean
        self._weight = self._weight - learning_rate * self._velocity
        self._steps += 1
        self.discard()
        return np.asarray(np.linalg.norm(mean))

    def discard(self) -> None:
        self._gradient = None

    def _loss(self, examples: Sequence[Example], proceed: Proceed, gradient: Values | None) -> Loss:
        loss = np.zeros(())
        for example in examples:
            labels = example.tokens if example.labels is None else example.labels
            proceed()
            places = np.flatnonzero(labels != IGNORED_LABEL)
            before = np.eye(256)[example.tokens].cumsum(axis=0)
            bags = np.vstack((np.zeros(256), before))[places] / np.maximum(places, 1)[:, None]
            logits = bags @ self._weight
            with np.errstate(over="ignore"):  # a loss that is not finite is left to whoever reads it
                logits -= np.log(np.exp(logits).sum(axis=1, keepdims=True))
            found = logits[np.arange(places.size), labels[places]]
            loss = loss - found.sum()
            if gradient is not None:
                wrong = np.exp(logits)
                wrong[np.arange(places.size), labels[places]] -= 1
                gradient += bags.T @ wrong
        return Loss(loss, sum(example.predicted for example in examples))


ENTRY = ArchitectureEntry(lambda spec, options: BagOfBytes())
