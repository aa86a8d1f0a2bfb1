"""The end of an answer at a text: what can be shown of it while it arrives, in pieces of any size."""

from collections.abc import Sequence

from epochal.state.errors import InvalidInput

MAX_STOPS = 4
MAX_STOP_CHARACTERS = 256


def check_stops(stops: Sequence[str]) -> None:
    """Raise `InvalidInput` unless these may end an answer."""
    if len(stops) > MAX_STOPS or any(not 0 < len(one) <= MAX_STOP_CHARACTERS for one in stops):
        raise InvalidInput(f"stop: allowed are up to {MAX_STOPS} texts of 1 to {MAX_STOP_CHARACTERS} characters")


class StopText:
    """Passes a text on up to the first place at which one of some texts is complete, and not that text.

    If several are complete at the same place, the longest counts.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = sorted(stops, key=len, reverse=True)
        self._held = ""
        self.is_reached = False

    def add(self, piece: str) -> str:
        """Return what can be shown: all but an end that may be the beginning of a stop."""
        shown = ""
        for character in piece:
            if self.is_reached:
                break
            self._held += character
            stop = next((one for one in self._stops if self._held.endswith(one)), "")
            self.is_reached = bool(stop)
            kept = len(stop) or self._begun()
            shown += self._held[: len(self._held) - kept]
            self._held = self._held[len(self._held) - kept :]
        return shown

    def end(self) -> str:
        """Return what was held back, of a text that ends without a stop."""
        return "" if self.is_reached else self._held

    def _begun(self) -> int:
        """Return the length of the longest beginning of a stop with which the held text ends."""
        lengths = (
            length
            for stop in self._stops
            for length in range(min(len(stop) - 1, len(self._held)), 0, -1)
            if self._held.endswith(stop[:length])
        )
        return max(lengths, default=0)
