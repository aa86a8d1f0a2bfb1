"""The device on which torch computes: choosing it, its precision, and the failures that it reports."""

import contextlib
import gc
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch

from epochal.state.errors import InvalidInput, TrainerFailed
from epochal.state.model.computed_class import computed_class
from epochal.state.model.tensors import Float32Array
from epochal.trainers.torch.objective import TensorBatch
from epochal.trainers.torch.torch_options import TorchOptions

OUT_OF_MEMORY_SIGNS = (
    "out of memory",
    "can't allocate memory",
    "not enough memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
)
"""Phrases in the errors of torch's allocators, of which only CUDA's has its own class."""
DEVICE_FAILURE_SIGNS = (
    "CUDA error",
    "CUDA driver error",
    "CUBLAS_STATUS_",
    "CUDNN_STATUS_",
    "CUSPARSE_STATUS_",
    "MPS backend",
)
"""Phrases in the errors of a device or its driver that torch raises as plain `RuntimeError`."""
MAX_REASON_CHARS = 300
"""Maximum length of a device's own error message in ours; those of CUDA add a page of advice."""


@dataclass(frozen=True, slots=True)
class Placement:
    """A device and the type in which it computes.

    Attributes:
        device: where parameters, gradients and optimizer lie, in float32.
        autocast_type: the type of torch's autocast; None computes in float32.
    """

    device: torch.device
    autocast_type: torch.dtype | None

    @classmethod
    def of(cls, options: TorchOptions) -> Self:
        """Return the placement that the options name, and bound torch's memory on its device as they say.

        Raises:
            InvalidInput: torch finds no such device, or the device has no memory of its own, or less than the bound.
        """
        device = _device(options.device)
        if options.memory_bytes is not None:
            _bound_memory(device, options.memory_bytes)
        is_half = options.precision == "bf16" or (
            options.precision == "auto"
            and device.type == "cuda"
            and torch.cuda.is_bf16_supported(including_emulation=False)
        )
        return cls(device, torch.bfloat16 if is_half else None)

    @property
    def computed(self) -> str:
        """The class of what is computed so."""
        device = self.device
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
        return computed_class("float32" if self.autocast_type is None else "bf16", name)

    def computing(self) -> contextlib.AbstractContextManager[None]:
        """Return a context in which a model's loss is computed in the placement's type."""
        if self.autocast_type is None:
            return contextlib.nullcontext()
        found: contextlib.AbstractContextManager[None] = torch.autocast(self.device.type, dtype=self.autocast_type)
        return found

    def copied(self, batch: TensorBatch) -> TensorBatch:
        """Return the batch on the device. To CUDA it goes from pinned memory, for which the processor does not wait."""
        is_cuda = self.device.type == "cuda"
        tensors = {
            key: (values.pin_memory() if is_cuda else values).to(self.device, non_blocking=is_cuda)
            for key, values in batch.tensors.items()
        }
        return TensorBatch(tensors, batch.token_count)

    def free(self) -> None:
        """Give memory that torch holds without using it back to the device."""
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        elif self.device.type == "mps":
            torch.mps.empty_cache()

    @contextlib.contextmanager
    def reporting(self) -> Iterator[None]:
        """Turn errors of the device within the block into `TrainerFailed`."""
        try:
            yield
        except (RuntimeError, MemoryError) as error:
            if is_out_of_memory(error):
                raise TrainerFailed(f"out of memory on {self.device}: {reason_of(error)}") from error
            raise TrainerFailed(f"torch failed on {self.device}: {reason_of(error)}") from error


class DeviceNumber:
    """A number on a device, for which only `float` waits. Raises `TrainerFailed` if the device has failed."""

    def __init__(self, number: torch.Tensor, placement: Placement) -> None:
        self._number = number
        self._placement = placement

    def __float__(self) -> float:
        with self._placement.reporting():
            return float(self._number)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether the error is one of insufficient memory, on any device."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in OUT_OF_MEMORY_SIGNS)


def is_device_failure(error: BaseException) -> bool:
    """Return whether a device failed, rather than the code that used it."""
    if isinstance(error, getattr(torch, "AcceleratorError", ())):  # since torch 2.8
        return True
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in DEVICE_FAILURE_SIGNS)


def reason_of(error: BaseException) -> str:
    """Return the first line of a library's error, shortened."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0][:MAX_REASON_CHARS]


def copy_in(to: torch.Tensor, values: Float32Array) -> None:
    """Copy an array, which may be read-only, into a tensor of its shape on any device."""
    if to.device.type == "cpu":
        np.copyto(to.detach().numpy(), values)
        return
    host = torch.empty(to.shape, dtype=torch.float32)
    np.copyto(host.numpy(), values)
    with torch.no_grad():
        to.copy_(host)


def copied_out(tensor: torch.Tensor) -> Float32Array:
    """Return a tensor's values as a float32 array; of a float32 tensor on the CPU a view, otherwise a copy."""
    found: Float32Array = tensor.detach().to("cpu", torch.float32).numpy()
    return found


def free_all() -> None:
    """Give memory that torch holds without using it back to all devices."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    elif torch.backends.mps.is_available():
        torch.mps.empty_cache()


def _bound_memory(device: torch.device, most_bytes: int) -> None:
    """Let torch allocate so many bytes of a device in this process; beyond them it is out of memory."""
    if device.type == "cuda":
        total_bytes = torch.cuda.get_device_properties(device).total_memory
    elif device.type == "mps":
        total_bytes = torch.mps.recommended_max_memory()
    else:
        raise InvalidInput(f"--gpu-memory: torch computes on {device} here; allowed with --device cuda, cuda:N or mps")
    if most_bytes > total_bytes:
        name = f"--gpu-memory: {most_bytes / 1024**3:.4g}gb of {device}"
        raise InvalidInput(f"{name}, which has {total_bytes / 1024**3:.4g}gb; allowed: up to that")
    if device.type == "cuda":
        torch.cuda.set_per_process_memory_fraction(most_bytes / total_bytes, device)
    else:
        torch.mps.set_per_process_memory_fraction(most_bytes / total_bytes)


def _device(name: str) -> torch.device:
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda", torch.cuda.current_device())
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    device = torch.device(name)
    count = {
        "cpu": 1,
        "mps": int(torch.backends.mps.is_available()),
        "cuda": torch.cuda.device_count() if torch.cuda.is_available() else 0,
    }[device.type]
    if (device.index or 0) >= count:
        there_are = ", ".join(
            ["cpu"]
            + ["mps"] * torch.backends.mps.is_available()
            + [f"cuda:{number}" for number in range(torch.cuda.device_count() if torch.cuda.is_available() else 0)]
        )
        message = f"--device {name}: torch finds no such device on this machine; allowed: auto, {there_are}"
        raise InvalidInput(message, device=name)
    return torch.device("cuda", device.index or 0) if device.type == "cuda" else device


@contextlib.contextmanager
def without_parameters() -> Iterator[None]:
    """Let modules that are made within the block have parameters without memory; their buffers are as always."""
    register = torch.nn.Module.register_parameter

    def register_empty(module: torch.nn.Module, name: str, one: torch.nn.Parameter | None) -> None:
        register(module, name, one)
        if one is not None and not one.is_meta:
            module._parameters[name] = torch.nn.Parameter(one.detach().to("meta"), requires_grad=one.requires_grad)

    torch.nn.Module.register_parameter = register_empty
    try:
        yield
    finally:
        torch.nn.Module.register_parameter = register
