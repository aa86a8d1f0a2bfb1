"""Checks that this machine has what a client's torch options need, before the client joins a run."""

from importlib.util import find_spec

import torch

from epochal.state.errors import InvalidInput
from epochal.trainers.torch.devices import Placement
from epochal.trainers.torch.torch_options import BF16, FLOAT32, INT8, NF4, TorchOptions


def check_available(options: TorchOptions) -> None:
    """Raise `InvalidInput` unless this machine can compute as the options say; the message names the option."""
    device = Placement.of(options).device
    if options.precision == "bf16" and not torch.amp.autocast_mode.is_autocast_available(device.type):
        raise InvalidInput(f"--precision bf16: torch has no autocast on {device}; allowed there: auto, float32")
    if options.base_precision in (INT8, NF4) and (device.type != "cuda" or find_spec("bitsandbytes") is None):
        lacking = "bitsandbytes, which is not installed (pip install bitsandbytes)" if device.type == "cuda" else "CUDA"
        allowed = f"allowed without it: auto, {FLOAT32}, {BF16}"
        raise InvalidInput(f"--base-precision {options.base_precision} on {device} needs {lacking}; {allowed}")
    if options.compiles:
        _check_compiles(device)


def _check_compiles(device: torch.device) -> None:
    """Compile the smallest of modules, which takes some seconds. Raise `InvalidInput` if that fails."""
    try:
        torch.compile(torch.nn.Linear(1, 1, device=device))(torch.zeros(1, 1, device=device))
    except Exception as error:  # whatever a compiler that is absent or too old makes of it
        reason = str(error).partition("\n")[0]
        raise InvalidInput(f"--compile: torch compiles nothing for {device} on this machine: {reason}") from error
