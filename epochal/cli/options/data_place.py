"""The place that `--data` names, checked before a command sends any request."""

from pathlib import Path

from epochal.data_providers.locations import AnyLocation
from epochal.state.config.data_location import Local, WeightedHttp
from epochal.state.errors import InvalidInput


def check_place(location: AnyLocation) -> None:
    """Raise `InvalidInput` for a path on this machine at which nothing is."""
    place = location.path if isinstance(location, Local) else ""
    if isinstance(location, WeightedHttp) and "://" not in location.place:
        place = location.place
    if place and not Path(place).exists():
        raise InvalidInput(f"--data {place}: there is no such file or folder ({Path(place).absolute()})", path=place)
