"""The options by which a machine's owner bounds when a client takes part, and what it uses."""

from dataclasses import dataclass
from typing import Annotated

import typer

from epochal.run_manager.terms.attendance import Terms
from epochal.run_manager.terms.hours import Hours
from epochal.runtime.connections.bandwidth import Bandwidth, RateLimit, parse_rate
from epochal.state.errors import InvalidInput

GpuMemoryOption = Annotated[
    str | None,
    typer.Option(metavar="SIZE", help="Memory of the GPU that --trainer torch may use, such as 8gb, in each process."),
]
NiceOption = Annotated[
    bool, typer.Option("--nice", help="Give way to all other programs, at the processor and, on Linux, at the disk.")
]


@dataclass(frozen=True, slots=True)
class OwnerTerms:
    """The terms, as options give them; each is checked by a property."""

    upload: Annotated[
        str | None,
        typer.Option(metavar="RATE", help="Send at most so much over all connections together, such as 10mbit."),
    ] = None
    download: Annotated[
        str | None,
        typer.Option(metavar="RATE", help="Receive at most so much over all connections together, such as 50mbit."),
    ] = None
    hours: Annotated[
        str | None,
        typer.Option(
            metavar="HOURS",
            help="Take part only within these hours of local time, such as 22-07 or 12:30-13:30,22-07. The client "
            "leaves after the round and comes back by itself.",
        ),
    ] = None
    when_idle: Annotated[
        bool,
        typer.Option(
            "--when-idle",
            help="Take part only while nobody else uses keyboard, processor or GPU. What cannot be observed here is "
            "said.",
        ),
    ] = False

    @property
    def bandwidth(self) -> Bandwidth:
        """The limits of bandwidth. Raise `InvalidInput` for what is no rate."""
        up, down = (
            None if text is None else RateLimit(parse_rate(place, text))
            for place, text in (("--upload", self.upload), ("--download", self.download))
        )
        return Bandwidth(up, down)

    @property
    def terms(self) -> Terms:
        """When the client takes part. Raise `InvalidInput` for what are no hours."""
        return Terms(None if self.hours is None else Hours.parse("--hours", self.hours), self.when_idle)

    def check_goes_with_mesh(self, axes: str | None) -> None:
        """Raise `InvalidInput` for limits of bandwidth of a mesh, whose processes fetch data by themselves."""
        if axes is not None and (self.upload or self.download):
            raise InvalidInput(
                "--upload and --download do not go with --mesh, whose processes fetch data by themselves"
            )
