"""The inner optimizers of the embedded model: AdamW (Loshchilov & Hutter, https://arxiv.org/abs/1711.05101), and Muon.

No other client repeats the steps of one, so their results need not be bit-identical on two machines.
"""

import math
from dataclasses import dataclass, field

import numpy as np

from epochal.state.config.model_table import InnerOptimizer, Muon
from epochal.state.model.tensors import Tensors
from epochal.trainers.muon import muon_step
from epochal.trainers.ngram.model import HIDDEN_WEIGHT

FIRST, SECOND = "first/", "second/"
_NORM_EPSILON = 1e-6
"""As in `torch.nn.utils.clip_grad_norm_`."""


@dataclass(slots=True)
class AdamWState:
    """Steps taken, and both moments (float32) by `FIRST` or `SECOND` and the parameter's name; empty at first."""

    step_count: int = 0
    moments: Tensors = field(default_factory=dict)


def adamw_step(
    parameters: Tensors, gradient: Tensors, state: AdamWState, settings: InnerOptimizer, learning_rate: float
) -> float:
    """Take one step: change `parameters`, `state` and `gradient` (clipped) in place; all float32.

    With settings of Muon the hidden matrix takes its step.

    Weight decay is decoupled and, as is usual, acts on matrices only.

    Returns:
        The gradient's L2 norm over all tensors, before clipping.
    """
    norm = math.sqrt(sum(float(np.vdot(array, array)) for array in gradient.values()))
    if settings.clip_grad_norm is not None and norm > settings.clip_grad_norm:
        for array in gradient.values():
            array *= np.float32(settings.clip_grad_norm / (norm + _NORM_EPSILON))
    state.step_count += 1
    hidden_rate = learning_rate
    learning_rate *= settings.adamw_lr_ratio if isinstance(settings, Muon) else 1.0
    keep_first, keep_second = settings.betas
    step_size = learning_rate / (1 - keep_first**state.step_count)
    correction = math.sqrt(1 - keep_second**state.step_count)
    for name, array in parameters.items():
        if isinstance(settings, Muon) and name == HIDDEN_WEIGHT:
            momentum = state.moments.setdefault(FIRST + name, np.zeros_like(array))
            muon_step(array, gradient[name], momentum, settings, hidden_rate)
            continue
        for key in (FIRST + name, SECOND + name):
            if key not in state.moments:
                state.moments[key] = np.zeros_like(array)
        slope, first, second = gradient[name], state.moments[FIRST + name], state.moments[SECOND + name]
        first *= np.float32(keep_first)
        first += np.float32(1 - keep_first) * slope
        second *= np.float32(keep_second)
        second += np.float32(1 - keep_second) * np.square(slope)
        if array.ndim > 1 and settings.weight_decay:
            array *= np.float32(1 - learning_rate * settings.weight_decay)
        array -= np.float32(step_size) * first / (np.sqrt(second) / np.float32(correction) + np.float32(settings.eps))
    return norm
