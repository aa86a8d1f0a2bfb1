"""AdamW against the scalar rule."""

import math

import numpy as np
import pytest

from epochal.state.config.model_table import AdamW
from epochal.state.model.tensors import Tensors
from epochal.trainers.ngram.adamw import AdamWState, adamw_step


def test_adamw_agrees_with_the_scalar_rule() -> None:
    slopes = [0.3, -0.2, 0.25, 0.0]
    settings = AdamW(betas=(0.9, 0.99), weight_decay=0.1, eps=1e-6)
    parameters: Tensors = {"m": np.array([[2.0]], np.float32), "b": np.array([2.0], np.float32)}
    state = AdamWState()
    decayed = plain = 2.0
    first = second = 0.0
    for count, slope in enumerate(slopes, start=1):
        gradient: Tensors = {"m": np.array([[slope]], np.float32), "b": np.array([slope], np.float32)}
        adamw_step(parameters, gradient, state, settings, 0.05)
        first, second = 0.9 * first + 0.1 * slope, 0.99 * second + 0.01 * slope**2
        step = 0.05 * (first / (1 - 0.9**count)) / (math.sqrt(second / (1 - 0.99**count)) + 1e-6)
        decayed, plain = decayed * (1 - 0.05 * 0.1) - step, plain - step
    assert float(parameters["m"][0, 0]) == pytest.approx(decayed, rel=1e-5)
    assert float(parameters["b"][0]) == pytest.approx(plain, rel=1e-5)
    assert state.step_count == len(slopes)


def test_adamw_clips_the_gradient_s_norm_over_all_tensors() -> None:
    settings = AdamW(betas=(0.0, 0.0), weight_decay=0.0, eps=1.0, clip_grad_norm=1.0)
    parameters: Tensors = {"a": np.zeros(1, np.float32), "b": np.zeros(1, np.float32)}
    gradient: Tensors = {"a": np.array([30.0], np.float32), "b": np.array([-40.0], np.float32)}
    adamw_step(parameters, gradient, AdamWState(), settings, 1.0)
    assert float(parameters["a"][0]) == pytest.approx(-0.6 / 1.6, rel=1e-5)
    assert float(parameters["b"][0]) == pytest.approx(0.8 / 1.8, rel=1e-5)
