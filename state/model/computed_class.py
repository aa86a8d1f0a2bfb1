"""Classes of computation: precision and kind of device, such as `float32/cpu` or `bf16/nvidia-h100-80gb-hbm3`.

Two honest computations of the same work differ by an amount that depends on both classes. A result names its own.
"""

import re

COMPUTED_PATTERN = r"^[a-z0-9_.-]{1,16}/[a-z0-9_.-]{1,32}$"
MAX_DEVICE_CHARS = 32
UNKNOWN_CLASS = "unknown/unknown"
"""Of a result whose trainer does not say, and of what is expected of a result, which may be of any class."""
FLOAT32_CPU = "float32/cpu"
_OTHERS = re.compile(r"[^a-z0-9_.-]+")


def computed_class(precision: str, device: str) -> str:
    """Return the class of a precision (`float32`, `bf16`) and a device's name, as its driver gives it."""
    return f"{precision}/{_OTHERS.sub('-', device.lower()).strip('-')[:MAX_DEVICE_CHARS] or 'unknown'}"


def is_computed_class(text: str) -> bool:
    """Return whether this is a class of computation."""
    return re.fullmatch(COMPUTED_PATTERN, text) is not None
