"""Checks that this machine has what a client's torch options need, before the client joins a run."""

import torch

from epochal.state.errors import InvalidInput
from epochal.trainers.torch.devices import Placement
from epochal.trainers.torch.torch_options import TorchOptions


def check_available(options: TorchOptions) -> None:
    """Raise `InvalidInput` unless this machine can compute as the options say; the message names the option."""
    device = Placement.of(options).device
    if options.precision == "bf16" and not torch.amp.autocast_mode.is_autocast_available(device.type):
        raise InvalidInput(f"--precision bf16: torch has no autocast on {device}; allowed there: auto, float32")
    if options.compiles:
        _check_compiles(device)


def _check_compiles(device: torch.device) -> None:
    """Compile the smallest of modules, which takes some seconds. Raise `InvalidInput` if that fails."""
    try:
        torch.compile(torch.nn.Linear(1, 1, device=device))(torch.zeros(1, 1, device=device))
    except Exception as error:  # whatever a compiler that is absent or too old makes of it
        reason = str(error).partition("\n")[0]
        raise InvalidInput(f"--compile: torch compiles nothing for {device} on this machine: {reason}") from error
