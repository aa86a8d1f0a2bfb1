"""The learner of torch models: devices, micro-batches, precision, gradients and optimizer, for any objective."""

import contextlib
import inspect
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, SupportsFloat

import torch

from epochal.batching.micro_batches import Example
from epochal.state.config.model_table import InnerOptimizer
from epochal.state.errors import TrainerFailed
from epochal.state.model.tensors import Float32Array
from epochal.trainers.learner import NO_INNER_STATE, InnerState, Loss, Proceed, go_on
from epochal.trainers.torch.devices import DeviceNumber, Placement, copied_out, copy_in, is_out_of_memory
from epochal.trainers.torch.micro_batch_sizes import MicroBatchSize, grouped
from epochal.trainers.torch.objective import Objective, TensorBatch
from epochal.trainers.torch.optimizer import TorchOptimizer, apart_from_hidden
from epochal.trainers.torch.torch_options import TorchOptions

log = logging.getLogger(__name__)


class TorchContinuation:
    """A `Continuation` of a causal language model, which keeps keys and values of tokens before or reads them again.

    Args:
        module: on the placement's device.
        placement: where and in which type it computes.
    """

    def __init__(self, module: torch.nn.Module, placement: Placement) -> None:
        self._module = module
        self._placement = placement
        self._tokens: list[int] = []
        self._cache: Any = None
        self._takes = inspect.signature(module.forward).parameters

    @property
    def context(self) -> int | None:
        config: Any = self._module.config
        longest = getattr(config.get_text_config(), "max_position_embeddings", None)
        return longest if isinstance(longest, int) else None

    def logits(self, tokens: Sequence[int]) -> Float32Array:
        with self._placement.reporting(), torch.no_grad():
            self._module.eval()
            self._tokens += tokens
            new = self._tokens if self._cache is None else list(tokens)
            with self._placement.computing():
                found = self._module(**self._arguments(new))
            self._cache = getattr(found, "past_key_values", None)
            return copied_out(found.logits[0, -1])

    def _arguments(self, new: list[int]) -> dict[str, Any]:
        device = self._placement.device
        found = {
            "input_ids": torch.tensor([new], device=device),
            "attention_mask": torch.ones((1, len(self._tokens)), dtype=torch.int64, device=device),
        }
        if "past_key_values" in self._takes:
            found |= {"past_key_values": self._cache, "use_cache": True}
        if "logits_to_keep" in self._takes:
            found["logits_to_keep"] = 1
        return found


@dataclass(frozen=True, slots=True, eq=False)
class _Opened:
    """The module on its device, its parameters in name order, and their optimizer."""

    module: torch.nn.Module
    parameters: dict[str, torch.Tensor]
    optimizer: TorchOptimizer


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """The examples of one call, and their sizes."""

    examples: Sequence[Example]
    proceed: Proceed
    sizes: Sequence[int]


def all_parameters(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return a module's parameters by name."""
    return dict(module.named_parameters())


class TorchLearner:
    """A torch model while it is trained.

    The module is made at the first `load`, and again after its device has failed. Losses and norms stay on the device:
    nothing here waits for it, except where arrays are asked for.

    Args:
        build: returns the module on a device, with parameters in float32.
        objective: what is minimised.
        options: where and how torch computes.
        parameters_of: returns what is trained and shared of the module, by name; the others stay as they are built.

    Raises:
        InvalidInput: this machine has no such device; the user's fault.
    """

    def __init__(
        self,
        build: Callable[[torch.device], torch.nn.Module],
        objective: Objective,
        options: TorchOptions,
        parameters_of: Callable[[torch.nn.Module], Mapping[str, torch.Tensor]] = all_parameters,
    ) -> None:
        self._placement = Placement.of(options)
        self.computed = self._placement.computed
        self._build = build
        self._objective = objective
        self._parameters_of = parameters_of
        self._compiles = options.compiles
        self._size = MicroBatchSize(options.micro_batch, objective.places_at_a_time(self._placement.device.type))
        self._opened: _Opened | None = None
        self._accumulated: list[_Part] = []
        self._has_gradient = False

    @property
    def parameters(self) -> Mapping[str, Float32Array]:
        return _HostCopies(self._placement, self._tensors, lambda one: one)

    @property
    def inner_state(self) -> InnerState:
        return NO_INNER_STATE if self._opened is None else self._opened.optimizer.state

    @property
    def gradient(self) -> Mapping[str, Float32Array]:
        return _HostCopies(
            self._placement, self._tensors, lambda one: torch.zeros_like(one) if one.grad is None else one.grad
        )

    def load(self, parameters: Mapping[str, Float32Array], inner_state: InnerState = NO_INNER_STATE) -> None:
        with self._giving_back(), self._placement.reporting():
            opened = self._opened = self._opened or self._open()
            for name, one in opened.parameters.items():
                copy_in(one, parameters[name])
            opened.optimizer.load(inner_state)
        self.discard()

    def accumulate(self, examples: Sequence[Example], proceed: Proceed = go_on) -> Loss:
        part = _Part(examples, proceed, self._objective.sizes(examples))
        with self._placement.reporting():
            found = self._fitted(part, backward=True)
        if found.token_count:
            self._accumulated.append(part)
            self._has_gradient = True
        return found

    def evaluate(self, examples: Sequence[Example], proceed: Proceed = go_on) -> Loss:
        part = _Part(examples, proceed, self._objective.sizes(examples))
        with self._placement.reporting(), torch.no_grad():
            return self._fitted(part, backward=False)

    def continuation(self) -> TorchContinuation:
        """Return a sequence for the model to continue, if it is a causal language model of transformers."""
        assert self._opened is not None, "load first"
        return TorchContinuation(self._opened.module, self._placement)

    def replace_gradient(self, gradient: Mapping[str, Float32Array]) -> None:
        with self._placement.reporting():
            for name, one in self._tensors.items():
                if one.requires_grad:
                    one.grad = torch.empty_like(one, requires_grad=False)
                    copy_in(one.grad, gradient[name])
        self._accumulated, self._has_gradient = [], True

    def step(self, optimizer: InnerOptimizer, learning_rate: float, divisor: float) -> SupportsFloat | None:
        if not self._has_gradient or self._opened is None:
            return None
        with self._giving_back(), self._placement.reporting(), torch.no_grad():
            norm = self._opened.optimizer.step(optimizer, learning_rate, divisor)
        self.discard()
        return DeviceNumber(norm, self._placement)

    def discard(self) -> None:
        self._clear_gradient()
        self._accumulated, self._has_gradient = [], False

    @property
    def _tensors(self) -> dict[str, torch.Tensor]:
        return {} if self._opened is None else self._opened.parameters

    def _open(self) -> _Opened:
        module = self._build(self._placement.device)
        module.train()
        parameters = dict(sorted(self._parameters_of(module).items()))
        if self._compiles:
            module.compile()
        return _Opened(module, parameters, TorchOptimizer(parameters, apart=apart_from_hidden(module)))

    @contextlib.contextmanager
    def _giving_back(self) -> Iterator[None]:
        """Give the module back if the block fails: only some parameters may have changed, or the device is gone."""
        try:
            yield
        except TrainerFailed:
            self._give_back()
            raise

    def _give_back(self) -> None:
        self._opened = None
        self._accumulated, self._has_gradient = [], False
        with contextlib.suppress(RuntimeError):  # of a device that is gone
            self._placement.free()

    def _clear_gradient(self) -> None:
        for one in self._tensors.values():
            one.grad = None

    def _fitted(self, part: _Part, *, backward: bool) -> Loss:
        """Compute the loss in micro-batches that fit into memory: while they do not, repeat with half of their rows."""
        if not any(part.sizes):
            return Loss(0.0, 0)
        longest = max(part.sizes)
        rows = self._size.rows(part.sizes)
        is_repeated = False
        while True:
            try:
                if is_repeated and backward:  # a backward pass that failed has added a part of its gradient
                    self._clear_gradient()
                    for before in self._accumulated:
                        self._loss(before, rows * longest, backward=True)
                return self._loss(part, rows * longest, backward=backward)
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    self._give_back()
                    raise
                self._check_halving(rows, longest, error)
            # The error is gone here, and with its traceback the tensors of the micro-batch that did not fit.
            rows = self._size.halve(rows, longest)
            log.warning("micro_batch_halved", extra={"device": str(self._placement.device), "rows": rows})
            is_repeated = True
            self._placement.free()

    def _check_halving(self, rows: int, longest: int, error: BaseException) -> None:
        """Raise `TrainerFailed` unless a smaller micro-batch can help and the gradient can be computed again."""
        device = self._placement.device
        if rows == 1:
            raise TrainerFailed(
                f"out of memory on {device} with a micro-batch of one row of {longest} places; use shorter samples "
                "(max_seq_len), a smaller model, --precision bf16, or a device with more memory"
            ) from error
        if self._has_gradient and not self._accumulated:
            raise TrainerFailed(
                f"out of memory on {device} with a micro-batch of {rows} rows, after a gradient was given that cannot "
                f"be computed again; choose a --micro-batch below {rows}"
            ) from error

    def _loss(self, part: _Part, places: int, *, backward: bool) -> Loss:
        """Return the loss, computed in micro-batches of at most `places` places, and add its gradient if `backward`."""
        assert self._opened is not None, "load first"
        module = self._opened.module
        if module.training != backward:
            module.train(backward)
        nats: torch.Tensor | float = 0.0
        token_count = 0
        for batch in self._batches(part, places):
            with self._placement.computing():
                found = self._objective.loss(module, batch)
            if backward:
                found.nats.backward()
            nats = nats + found.nats.detach()
            token_count += found.token_count
        return Loss(nats if isinstance(nats, float) else DeviceNumber(nats, self._placement), token_count)

    def _batches(self, part: _Part, places: int) -> Iterator[TensorBatch]:
        """Yield micro-batches on the device."""
        for positions in grouped(part.sizes, places):
            part.proceed()
            yield self._placement.copied(self._objective.batch([part.examples[position] for position in positions]))


class _HostCopies(Mapping[str, Float32Array]):
    """Arrays of parameters, or of something of theirs, each copied from its device when it is asked for."""

    def __init__(
        self, placement: Placement, parameters: Mapping[str, torch.Tensor], part: Callable[[torch.Tensor], torch.Tensor]
    ) -> None:
        self._placement = placement
        self._parameters = parameters
        self._part = part

    def __getitem__(self, name: str) -> Float32Array:
        with self._placement.reporting():
            return copied_out(self._part(self._parameters[name]))

    def __iter__(self) -> Iterator[str]:
        return iter(self._parameters)

    def __len__(self) -> int:
        return len(self._parameters)
