"""The options of torch. This module imports no torch, so that commands can check options without it."""

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from epochal.state.errors import InvalidInput

PRECISIONS = ("auto", "bf16", "float32")
FLOAT32, BF16, INT8, NF4 = "float32", "bf16", "int8", "nf4"
BASE_BYTES = {FLOAT32: 4.0, BF16: 2.0, INT8: 1.0, NF4: 0.5625}
"""Bytes of a number of a base's matrices, by the base's precision."""
_DEVICE = re.compile(r"auto|cpu|mps|cuda(:[0-9]{1,3})?")
MIN_GPU_MEMORY_BYTES = 256 * 1024**2
_MEMORY = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,6})?)([mg]b)")
_ROWS = re.compile(r"[0-9]{1,6}")


@dataclass(frozen=True, slots=True)
class TorchOptions:
    """Device, precision and batching of torch. Clients of one run may choose differently.

    Attributes:
        device: `auto` (CUDA, else MPS, else CPU), `cpu`, `mps`, `cuda` or `cuda:N`.
        precision: one of `PRECISIONS`. `bf16` computes under autocast, with parameters, gradients and optimizer in
            float32; `auto` is `bf16` on CUDA devices that have it, and `float32` elsewhere.
        compiles: whether the model is compiled by `torch.compile`, which takes minutes at first.
        micro_batch: the most rows of the longest sample's length that are computed at a time; None for as many as fit.
        memory_bytes: of the GPU that torch may allocate in each process; None for all that is free.
        base: the folder of an adapter's base; None for the run's repository.
        base_precision: `auto`, or one of `BASE_BYTES`: the type in which a base is held, which no step changes.
        lends_token: whether the Hub is shown this machine's token where a base is read from there.
        assets: the folder of the images that samples name by their paths.

    Raises:
        InvalidInput: a value is not allowed; the user's fault.
    """

    device: str = "auto"
    precision: str = "auto"
    compiles: bool = False
    micro_batch: int | None = None
    memory_bytes: int | None = None
    base: Path | None = None
    base_precision: str = "auto"
    lends_token: bool = False
    assets: Path | None = None

    def __post_init__(self) -> None:
        if not _DEVICE.fullmatch(self.device):
            raise InvalidInput(f"--device {self.device}; allowed: auto, cpu, mps, cuda or cuda:N")
        if self.precision not in PRECISIONS:
            raise InvalidInput(f"--precision {self.precision}; allowed: {', '.join(PRECISIONS)}")
        if self.base_precision not in ("auto", *BASE_BYTES):
            raise InvalidInput(f"--base-precision {self.base_precision}; allowed: auto, {', '.join(BASE_BYTES)}")
        if self.micro_batch is not None and self.micro_batch < 1:
            raise InvalidInput(f"--micro-batch {self.micro_batch}; allowed: auto, or a number of rows from 1")

    def computing_in(self, computed: str) -> Self:
        """Return options that compute in a class (`state/model/computed_class.py`), of which this is the first part.

        Raises:
            InvalidInput: torch has none of that name.
        """
        precision, _, base_precision = computed.partition("-")
        return replace(self, precision=precision, base_precision=base_precision or "auto")

    @property
    def suits_any_machine(self) -> bool:
        """Whether every machine can compute so. Other options need torch to say whether this one can."""
        is_plain = (
            self.precision in ("auto", "float32") and not self.compiles and self.base_precision not in (INT8, NF4)
        )
        return self.device in ("auto", "cpu") and is_plain and self.memory_bytes is None


DEFAULT_TORCH_OPTIONS = TorchOptions()


def parse_micro_batch(text: str) -> int | None:
    """Return the number of rows that `--micro-batch` names, None for `auto`.

    Raises:
        InvalidInput: it is neither; the user's fault.
    """
    if text == "auto":
        return None
    if not _ROWS.fullmatch(text) or not int(text):
        raise InvalidInput(f"--micro-batch {text}; allowed: auto, or a number of rows from 1")
    return int(text)


def parse_gpu_memory(text: str) -> int:
    """Return the bytes that `--gpu-memory` names, as `8gb`, of 1024³ bytes each.

    Raises:
        InvalidInput: it is not a size that is allowed; the user's fault.
    """
    found = _MEMORY.fullmatch(text)
    size_bytes = 0 if found is None else int(float(found[1]) * {"mb": 1024**2, "gb": 1024**3}[found[2]])
    if size_bytes < MIN_GPU_MEMORY_BYTES:
        raise InvalidInput(f"--gpu-memory {text[:40]!r}: allowed: a number and mb or gb, such as 8gb, from 256mb")
    return size_bytes
