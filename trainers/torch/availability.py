"""What this machine needs for a client's options of torch, checked before the client joins a run."""

from importlib.util import find_spec

import torch

from state.errors import InvalidInput
from trainers.torch.devices import Placement
from trainers.torch.options import ATTENTIONS, TorchOptions

FLASH_ATTENTION = "flash_attention_2"
FLASH_PACKAGE = "flash_attn"


def check_available(options: TorchOptions) -> None:
    """Raise `InvalidInput` unless this machine can compute as the options say; the message names the option."""
    device = Placement.of(options).device
    if options.precision == "bf16" and not torch.amp.autocast_mode.is_autocast_available(device.type):
        raise InvalidInput(f"--precision bf16: torch has no autocast on {device}; allowed there: auto, float32")
    if options.attention != FLASH_ATTENTION:
        return
    missing = [f"a CUDA device, and the device is {device}"] if device.type != "cuda" else []
    if find_spec(FLASH_PACKAGE) is None:
        missing.append("the package flash-attn, which is not installed")
    if missing:
        allowed = ", ".join(name for name in ATTENTIONS if name != FLASH_ATTENTION)
        raise InvalidInput(f"--attention {FLASH_ATTENTION} needs {' and '.join(missing)}; allowed here: {allowed}")
