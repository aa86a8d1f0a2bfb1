"""The options of `--trainer torch`, shared by the commands that compute with torch."""

import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from epochal.cli.options.shared import local_path
from epochal.state.errors import ExtraMissing, InvalidInput
from epochal.trainers.architectures import ARCHITECTURES, TORCH, naming_broken_libraries
from epochal.trainers.registry import TRAINERS
from epochal.trainers.torch.torch_options import (
    BASE_BYTES,
    PRECISIONS,
    TorchOptions,
    parse_gpu_memory,
    parse_micro_batch,
)

DeviceOption = Annotated[
    str | None,
    typer.Option(metavar="DEVICE", help="Device of --trainer torch: auto, cpu, mps, cuda or cuda:N. Default: auto."),
]
PrecisionOption = Annotated[
    str | None,
    typer.Option(
        help=f"Precision of --trainer torch: {', '.join(PRECISIONS)}. Default: auto, which is bf16 on CUDA devices that"
        " have it and float32 elsewhere. Parameters and optimizer are always float32."
    ),
]
CompileOption = Annotated[bool, typer.Option("--compile", help="Compile the model of --trainer torch.")]
MicroBatchOption = Annotated[
    str | None,
    typer.Option(
        metavar="auto|N",
        help="Rows that --trainer torch computes at a time, at most; halved when memory runs out. Default: auto.",
    ),
]
BaseOption = Annotated[
    Path | None,
    typer.Option(
        "--base",
        metavar="DIR",
        parser=local_path,
        help="Folder of the base of a run's adapter. Default: the run's repository on the Hub.",
    ),
]
BasePrecisionOption = Annotated[
    str | None,
    typer.Option(
        "--base-precision",
        help=f"Type in which an adapter's base is held: {', '.join(BASE_BYTES)} (the last two on CUDA devices, with "
        "bitsandbytes). Default: auto, which is that of --precision.",
    ),
]

AssetsOption = Annotated[
    Path | None,
    typer.Option(
        "--assets",
        metavar="DIR",
        parser=local_path,
        help="Folder of the images that samples name by their paths. A package's trainer reads no other file for them.",
    ),
]


def torch_options(
    device: str | None,
    precision: str | None,
    micro_batch: str | None = None,
    assets: Path | None = None,
    *,
    compiles: bool = False,
    gpu_memory: str | None = None,
    base: tuple[Path | None, str | None] = (None, None),
) -> TorchOptions | None:
    """Return the options, or None if not one of them is given. `base` is `--base` and `--base-precision`.

    Raises:
        InvalidInput: one of them is wrong; the user's fault.
    """
    given = (device, precision, micro_batch, gpu_memory, *base, assets)
    if not compiles and all(one is None for one in given):
        return None
    if assets is not None and not assets.is_dir():
        raise InvalidInput(f"--assets {assets}: there is no such folder")
    rows = parse_micro_batch(micro_batch or "auto")
    memory_bytes = None if gpu_memory is None else parse_gpu_memory(gpu_memory)
    plain = TorchOptions(device or "auto", precision or "auto", compiles, rows, memory_bytes)
    return replace(plain, base=base[0], base_precision=base[1] or "auto", assets=assets)


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
