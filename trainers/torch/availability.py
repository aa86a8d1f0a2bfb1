"""Checks that this machine has what a client's torch options need, before the client joins a run."""

from importlib.util import find_spec

import torch

from epochal.state.errors import InvalidInput
from epochal.trainers.torch.devices import Placement
from epochal.trainers.torch.torch_options import ATTENTIONS, TorchOptions

FLASH_ATTENTION = "flash_attention_2"
FLASH_PACKAGE = "flash_attn"


def check_available(options: TorchOptions) -> None:
    """Raise `InvalidInput` unless this machine can compute as the options say; the message names the option."""
    placement = Placement.of(options)
    device = placement.device
    if options.precision == "bf16" and not torch.amp.autocast_mode.is_autocast_available(device.type):
        raise InvalidInput(f"--precision bf16: torch has no autocast on {device}; allowed there: auto, float32")
    missing = flash_needs(placement) if options.attention == FLASH_ATTENTION else []
    if missing:
        allowed = ", ".join(name for name in ATTENTIONS if name != FLASH_ATTENTION)
        raise InvalidInput(f"--attention {FLASH_ATTENTION} needs {' and '.join(missing)}; allowed here: {allowed}")
    if options.compiles:
        _check_compiles(device)


def _check_compiles(device: torch.device) -> None:
    """Compile the smallest of modules, which takes some seconds. Raise `InvalidInput` if that fails."""
    try:
        torch.compile(torch.nn.Linear(1, 1, device=device))(torch.zeros(1, 1, device=device))
    except Exception as error:  # whatever a compiler that is absent or too old makes of it
        reason = str(error).partition("\n")[0]
        raise InvalidInput(f"--compile: torch compiles nothing for {device} on this machine: {reason}") from error


def flash_needs(placement: Placement) -> list[str]:
    """Return what flash attention lacks at a placement and on this machine, for a message."""
    missing = []
    if placement.device.type != "cuda":
        missing.append(f"a CUDA device, and the device is {placement.device}")
    elif placement.autocast_type is None:
        missing.append("--precision bf16, and the device would compute in float32")
    if find_spec(FLASH_PACKAGE) is None:
        missing.append("the package flash-attn, which is not installed")
    return missing
