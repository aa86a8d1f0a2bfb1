"""Classes of computation, made of any device's name."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochal.state.model.computed_class import UNKNOWN_CLASS, computed_class, is_computed_class


@pytest.mark.parametrize(
    ("device", "found"),
    [
        ("cpu", "float32/cpu"),
        ("NVIDIA H100 80GB HBM3", "float32/nvidia-h100-80gb-hbm3"),
        ("NVIDIA GeForce RTX 4090 (Laptop GPU)", "float32/nvidia-geforce-rtx-4090-laptop-g"),
        ("…", "float32/unknown"),
    ],
)
def test_class_of_a_device(device: str, found: str) -> None:
    assert computed_class("float32", device) == found


@given(st.text())
def test_every_device_has_a_class(device: str) -> None:
    assert is_computed_class(computed_class("bf16", device))
    assert is_computed_class(UNKNOWN_CLASS)
