"""Whether the options of `--trainer torch` go with the trainer, and with this machine."""

import sys
from importlib.util import find_spec

from epochal.state.errors import ExtraMissing, InvalidInput
from epochal.trainers.architectures import ARCHITECTURES, TORCH, naming_broken_libraries
from epochal.trainers.registry import TRAINERS
from epochal.trainers.torch.torch_options import TorchOptions


def check_goes_with_torch(options: TorchOptions | None, trainer: str) -> None:
    """Raise `InvalidInput` if the trainer does not take these options, or this machine cannot compute as they say.

    Torch is imported only where it must be asked.

    Args:
        options: for torch; None if not one of them is given.
        trainer: its name.
    """
    if options is not None and trainer in TRAINERS and trainer != TORCH:
        names = "--device, --precision, --compile, --micro-batch, --gpu-memory, --base, --base-precision and --assets"
        raise InvalidInput(f"{names} go with --trainer torch or that of a package, not with {trainer}")
    if trainer == TORCH:
        _check_installed()
    if options is not None and not options.suits_any_machine:
        check_machine(options)


def check_machine(options: TorchOptions | None) -> None:
    """Raise `InvalidInput` if this machine's torch cannot compute as the options say; pass without options or torch."""
    if options is not None and find_spec("torch") is not None:
        with naming_broken_libraries():
            from epochal.trainers.torch.availability import check_available

        check_available(options)


def free_devices() -> None:
    """Give memory that torch holds without using it back to its devices, if this process has imported torch."""
    if "torch" in sys.modules:
        from epochal.trainers.torch.devices import free_all

        free_all()


def _check_installed() -> None:
    missing = {name for entry in ARCHITECTURES.values() if entry.trainer == TORCH for name in entry.missing_modules()}
    if missing:
        others = ", ".join(name for name in TRAINERS if name != TORCH)
        raise ExtraMissing(
            f"--trainer torch needs {' and '.join(sorted(missing))}: pip install 'epochal[torch]'; allowed without "
            f"it: {others}"
        )
