"""The inner optimizers of torch models: torch's fused AdamW, and Muon, and their moments by name."""

import weakref
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

import torch

from epochal.state.config.model_table import InnerOptimizer, Muon
from epochal.state.errors import TrainerFailed
from epochal.state.model.tensors import Float32Array
from epochal.trainers.learner import InnerState
from epochal.trainers.muon import muon_step
from epochal.trainers.torch.devices import copied_out, copy_in

FIRST, SECOND = "first/", "second/"
"""Prefixes of a parameter's name: its first moment, and its second. Muon's parameters have the first alone."""
_KEYS = {FIRST: "exp_avg", SECOND: "exp_avg_sq"}
_NORM_EPSILON = 1e-6
"""As in `torch.nn.utils.clip_grad_norm_`."""


Norm = Callable[[Sequence[torch.Tensor]], torch.Tensor]


def norm_of(gradients: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the common L2 norm of gradients on one device."""
    found: torch.Tensor = torch.nn.utils.get_total_norm(gradients)
    return found


def apart_from_hidden(module: torch.nn.Module) -> list[torch.Tensor]:
    """Return a module's embeddings, and the output layer of one of transformers: with Muon they are AdamW's."""
    found = [one.weight for one in module.modules() if isinstance(one, torch.nn.Embedding)]
    output = getattr(module, "get_output_embeddings", lambda: None)()
    return found if output is None else [*found, output.weight]


class TorchOptimizer:
    """AdamW, or Muon for hidden matrices and AdamW for the other tensors, as the settings of each step say.

    Weight decay is decoupled and acts on matrices only; gradients are clipped by their common norm.

    Args:
        parameters: the module's, by name; those that need no gradient are left alone.
        norm: returns the common L2 norm of gradients; where each tensor is a part of a whole, that of the whole.
        apart: the matrices among them that are not hidden ones.
    """

    def __init__(
        self, parameters: Mapping[str, torch.Tensor], norm: Norm = norm_of, apart: Collection[torch.Tensor] = ()
    ) -> None:
        self._norm = norm
        excluded = {id(one) for one in apart}
        self._parameters = {name: one for name, one in parameters.items() if one.requires_grad}
        matrices = [one for one in self._parameters.values() if one.ndim > 1]
        others = [one for one in self._parameters.values() if one.ndim <= 1]
        self._optimizer = torch.optim.AdamW([{"params": matrices}, {"params": others}], lr=0.0, fused=True)
        self._hidden = {
            name: one for name, one in self._parameters.items() if one.ndim == 2 and id(one) not in excluded
        }
        self._momentum: dict[str, torch.Tensor] = {}
        self._step_count = 0
        self._shown: weakref.ref[Moments] | None = None

    @property
    def state(self) -> InnerState:
        """The optimizer's state as it is now; its tensors stay on the device until somebody asks for them."""
        moments = Moments(self.moments)
        self._shown = weakref.ref(moments)
        return InnerState(self._step_count, moments)

    @property
    def step_count(self) -> int:
        """Number of steps taken."""
        return self._step_count

    @property
    def moments(self) -> dict[str, torch.Tensor]:
        """The moments by name, as the optimizer holds them; empty before the first step."""
        found = {
            prefix + name: self._optimizer.state[one][key]
            for prefix, key in _KEYS.items()
            for name, one in self._parameters.items()
            if self._optimizer.state.get(one)
        }
        return found | {FIRST + name: one for name, one in self._momentum.items()}

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of all moments by name, those before the first step too."""
        return {prefix + name: tuple(one.shape) for prefix in _KEYS for name, one in self._parameters.items()}

    def load(self, state: InnerState) -> None:
        """Go on from a state. The state that was shown last keeps its values, in host memory.

        Raises:
            TrainerFailed: the state does not belong to this model.
        """
        shown, self._shown = None if self._shown is None else self._shown(), None
        if shown is not None:
            shown.settle()
        if shown is not None and shown is state.tensors:
            self._step_count = state.step_count
            return  # the device still holds its values
        shapes = self.shapes
        for key, values in state.tensors.items():
            if shapes.get(key) != values.shape:
                raise TrainerFailed(f"{key!a} is not a moment of this model's optimizer")
        self._clear()
        moments: dict[str, torch.Tensor] = {}
        for prefix in _KEYS:
            for name, one in self._parameters.items():
                if prefix + name in state.tensors:
                    moments[prefix + name] = torch.empty_like(one, requires_grad=False)
                    copy_in(moments[prefix + name], state.tensors[prefix + name])
        self.restore(state.step_count, moments)

    def restore(self, step_count: int, moments: Mapping[str, torch.Tensor]) -> None:
        """Go on from moments on the parameters' devices, of their shapes; they become the optimizer's own."""
        self._step_count = step_count
        self._clear()
        for name, one in self._parameters.items():
            if FIRST + name in moments and SECOND + name in moments:
                step = torch.full((), float(step_count), dtype=torch.float32, device=one.device)
                own = {key: moments[prefix + name] for prefix, key in _KEYS.items()}
                self._optimizer.state[one] = {"step": step} | own
            elif FIRST + name in moments:
                self._momentum[name] = moments[FIRST + name]

    def _clear(self) -> None:
        self._optimizer.state.clear()
        self._momentum.clear()

    def step(self, settings: InnerOptimizer, learning_rate: float, divisor: float) -> torch.Tensor:
        """Take one step on the parameters' gradients divided by `divisor`, which are changed.

        Returns:
            The L2 norm of the divided gradient before clipping, on the device.
        """
        for one in self._parameters.values():
            if one.grad is None:  # such as an expert that no token reached: its moments decay like any other's
                one.grad = torch.zeros_like(one)
        gradients = [one.grad for one in self._parameters.values()]
        norm = self._norm(gradients) / divisor
        if settings.clip_grad_norm is None:
            torch._foreach_div_(gradients, float(divisor))
        else:
            scale = torch.clamp(settings.clip_grad_norm / (norm + _NORM_EPSILON), max=1.0) / divisor
            torch._foreach_mul_(gradients, scale)
        if isinstance(settings, Muon):
            for name, one in self._hidden.items():
                momentum = self._momentum.setdefault(name, torch.zeros_like(one))
                precision = torch.float32 if one.device.type == "cpu" else torch.bfloat16
                muon_step(one, one.grad, momentum, settings, learning_rate, precision)
                one.grad = None  # so that AdamW leaves it alone
            learning_rate *= settings.adamw_lr_ratio
        for group, decay in zip(self._optimizer.param_groups, (settings.weight_decay, 0.0), strict=True):
            group.update(lr=learning_rate, betas=settings.betas, eps=settings.eps, weight_decay=decay)
        self._optimizer.step()
        self._step_count += 1
        return norm


class Moments(Mapping[str, Float32Array]):
    """An optimizer's moments by name. Each is copied from its device when it is asked for, until they are settled.

    Args:
        tensors: the moments as the optimizer holds them, which its next step changes.
    """

    def __init__(self, tensors: dict[str, torch.Tensor]) -> None:
        self._tensors: dict[str, torch.Tensor] | None = tensors
        self._arrays: dict[str, Float32Array] = {}
        self._names = sorted(tensors)

    def __getitem__(self, name: str) -> Float32Array:
        return self._arrays[name] if self._tensors is None else copied_out(self._tensors[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def settle(self) -> None:
        """Copy the values to host memory: from now on they stay as they are."""
        if self._tensors is not None:
            self._arrays = {name: copied_out(tensor).copy() for name, tensor in self._tensors.items()}
            self._tensors = None
