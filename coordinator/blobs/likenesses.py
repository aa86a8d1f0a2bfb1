"""Sketches of the results that are summed up, and how like they are to each other (`runtime/merging/sketches.py`).

The seed of a round is drawn when its first result is sketched, so that nobody knows it who makes one, and is published
with the figures. That of the comparison with a client's own earlier results stays in this process: it serves for many
rounds. Both end with the process; a coordinator that starts again has no earlier results to compare with.
"""

import secrets
from collections import deque
from collections.abc import Sequence

from epochal.coordinator.machine.stimuli import ResultsCompared
from epochal.runtime.merging.sketches import Sketch, Sketcher, largest_cosine, likenesses
from epochal.state.documents import OutcomeEntry
from epochal.state.messages.replay_messages import Likeness
from epochal.state.model.tensors import TensorLayout
from epochal.state.results import Difference
from epochal.state.updates import Weight
from epochal.state.wire import ClientId, Seed, Sha256

MAX_COMPARED = 1024
"""Maximum number of a round's results that are compared, those of clients that chance picks; they take 32 MiB."""
OWN_WIDTH = 1 << 10
OWN_ROUNDS = 8
"""Number of a client's last results with which its next one is compared. Of `MAX_COMPARED` clients: 64 MiB."""
DIGITS = 3
"""Decimal places of the figures, of which sketches have hardly two."""


class Likenesses:
    """The sketches of one run's results.

    Args:
        layout: names and shapes of the model's parameters.
    """

    def __init__(self, layout: TensorLayout) -> None:
        self._layout = layout
        self._own = Sketcher(secrets.token_bytes(32), layout, OWN_WIDTH)
        self._earlier: dict[ClientId, deque[Sketch]] = {}
        self._begin((0, 0))

    def _begin(self, number: tuple[int, int]) -> None:
        self._number, self._seed = number, secrets.token_bytes(32)
        self._sketcher = Sketcher(self._seed, self._layout)
        self._found: dict[Sha256, tuple[Sketch, Sketch]] = {}

    def add(self, number: tuple[int, int], sha256: Sha256, difference: Difference, part: float) -> None:
        """Sketch a result, unless it was, or chance leaves it out. It blocks.

        Args:
            number: step and attempt of its round.
            sha256: its digest.
            difference: its values.
            part: of the round's results that are to be compared, from 0 to 1.
        """
        if number != self._number:
            self._begin(number)
        if sha256 in self._found or len(self._found) >= MAX_COMPARED or secrets.SystemRandom().random() >= part:
            return
        self._found[sha256] = (self._sketcher.sketches(difference), self._own.sketches(difference))

    def compared(self, number: tuple[int, int], entries: Sequence[OutcomeEntry]) -> ResultsCompared | None:
        """Return the figures of an outcome's results, which are earlier ones from now on; None without any."""
        if number != self._number:
            return None
        known = {
            entry.client_id: self._found[entry.result_sha256] for entry in entries if entry.result_sha256 in self._found
        }
        weights = {entry.client_id: Weight.of(entry) for entry in entries}
        found = likenesses(
            {one: sketch for one, (sketch, _) in known.items()},
            {one: weight.batch_count * weight.factor for one, weight in weights.items()},
        )
        figures = {}
        for client_id, (_, own) in known.items():
            earlier = self._earlier.pop(client_id, deque(maxlen=OWN_ROUNDS))
            like = found[client_id]._replace(with_own=largest_cosine(own, earlier))
            figures[client_id] = Likeness(*(None if one is None else round(one, DIGITS) for one in like))
            earlier.append(own)
            self._earlier[client_id] = earlier
        while len(self._earlier) > MAX_COMPARED:
            del self._earlier[next(iter(self._earlier))]
        seed = Seed(self._seed.hex())
        self._begin((0, 0))
        return ResultsCompared(number[0], seed, figures) if figures else None
