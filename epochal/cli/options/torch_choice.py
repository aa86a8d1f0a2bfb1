"""The options of `--trainer torch`, of all commands that compute with torch. Nothing that computes is imported here."""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated

import typer

from epochal.cli.options.shared import local_path
from epochal.state.errors import InvalidInput
from epochal.trainers.torch.torch_options import (
    BASE_BYTES,
    PRECISIONS,
    TorchOptions,
    parse_gpu_memory,
    parse_micro_batch,
)


@dataclass(frozen=True, slots=True)
class TorchChoice:
    """How a model of torch is to compute; None for what is not given."""

    device: Annotated[
        str | None,
        typer.Option(
            metavar="DEVICE", help="Device of --trainer torch: auto, cpu, mps, cuda or cuda:N. Default: auto."
        ),
    ] = None
    precision: Annotated[
        str | None,
        typer.Option(
            help=f"Precision of --trainer torch: {', '.join(PRECISIONS)}. Default: auto, which is bf16 on CUDA devices"
            " that have it and float32 elsewhere. Parameters and optimizer are always float32."
        ),
    ] = None
    base: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            parser=local_path,
            help="Folder of the base of a run's adapter. Default: the run's repository on the Hub.",
        ),
    ] = None
    base_precision: Annotated[
        str | None,
        typer.Option(
            help=f"Type in which an adapter's base is held: {', '.join(BASE_BYTES)} (the last two on CUDA devices, with"
            " bitsandbytes). Default: auto, which is that of --precision."
        ),
    ] = None

    def options(self, gpu_memory: str | None = None) -> TorchOptions | None:
        """Return the options, or None if not one of them is given.

        Args:
            gpu_memory: `--gpu-memory`, of commands that have it.

        Raises:
            InvalidInput: one of them is wrong; the user's fault.
        """
        given = {field.name: value for field in fields(self) if (value := getattr(self, field.name)) != field.default}
        if gpu_memory is not None:
            given["memory_bytes"] = parse_gpu_memory(gpu_memory)
        if "micro_batch" in given:
            given["micro_batch"] = parse_micro_batch(given["micro_batch"])
        if "assets" in given and not given["assets"].is_dir():
            raise InvalidInput(f"--assets {given['assets']}: there is no such folder")
        return TorchOptions(**given) if given else None


@dataclass(frozen=True, slots=True)
class TorchDataChoice(TorchChoice):
    """The same, of a command that reads the run's samples."""

    assets: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            parser=local_path,
            help="Folder of the images that samples name by their paths. A package's trainer reads no other file for "
            "them.",
        ),
    ] = None


@dataclass(frozen=True, slots=True)
class TorchTrainerChoice(TorchDataChoice):
    """The same, of a command that trains."""

    compiles: Annotated[bool, typer.Option("--compile", help="Compile the model of --trainer torch.")] = False
    micro_batch: Annotated[
        str | None,
        typer.Option(
            metavar="auto|N",
            help="Rows that --trainer torch computes at a time, at most; halved when memory runs out. Default: auto.",
        ),
    ] = None
