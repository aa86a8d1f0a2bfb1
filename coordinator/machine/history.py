"""A run's history, kept as its rounds end: a fold over the journal's records.

The rule kept here: the history depends on nothing but the ends of rounds, in their order, and on the limits below. So
it is the same whether a coordinator has kept it all along, or somebody reads it from the journal, with a proof in the
place of its beginning or without.
"""

import base64
import binascii
import zlib
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

from coordinator.machine.figures import detail_of, figures_of
from coordinator.machine.instructions import Instruction, OutcomeDecided
from state.errors import InvalidDocument, StoreFailed
from state.history import RoundColumns, RoundDetail, RoundFigures, merged
from state.wire import canonical_json, parse_document
from state.wire_document import WireDocument

MAX_ROWS = 16_384
"""Maximum number of rows: with one more, each two neighbours of the older half are merged. A row takes about 1 KB."""
MAX_DETAILED_ROUNDS = 64
"""Maximum number of rounds of which each client's figures are kept, the newest."""
MAX_DETAILED_CLIENTS = 32_768
"""Maximum number of clients in all these rounds, unless the newest alone has more. Each takes about 400 bytes."""
MAX_ENCODED_BYTES = 64 * 1024 * 1024
"""Maximum size of a kept history, before it is compressed."""


@dataclass(frozen=True, slots=True)
class _Encoded(WireDocument):
    rows: RoundColumns
    details: tuple[RoundDetail, ...]


class History:
    """The rounds of a run that have ended."""

    def __init__(self) -> None:
        self.rows: list[RoundFigures] = []
        self.details: deque[RoundDetail] = deque()
        self._detailed_clients = 0

    @property
    def next(self) -> int:
        """Number of the round that ends next."""
        return self.rows[-1].next_number if self.rows else 0

    @property
    def detailed_from(self) -> int:
        """Number of the first round of which the clients' figures are held; `next` if there is none."""
        return self.details[0].figures.number if self.details else self.next

    def take(self, instructions: Iterable[Instruction], version: int) -> list[RoundDetail]:
        """Add the rounds that ended with a stimulus; return them.

        Args:
            instructions: the stimulus gave.
            version: of the run document that was published with the record that holds it.
        """
        ended = [one for one in instructions if isinstance(one, OutcomeDecided) and one.ended is not None]
        return [self.add(one, version) for one in ended]

    def add(self, decided: OutcomeDecided, version: int) -> RoundDetail:
        """Add a round that has ended, and return it."""
        detail = detail_of(decided, figures_of(decided, self.next, version))
        self.rows.append(detail.figures)
        if len(self.rows) > MAX_ROWS:
            self.rows = _halved(self.rows, MAX_ROWS // 2)
        self._keep(detail)
        return detail

    def _keep(self, detail: RoundDetail) -> None:
        self.details.append(detail)
        self._detailed_clients += len(detail.clients)
        while len(self.details) > 1 and (
            len(self.details) > MAX_DETAILED_ROUNDS or self._detailed_clients > MAX_DETAILED_CLIENTS
        ):
            self._detailed_clients -= len(self.details.popleft().clients)

    def between(self, first: int, last: int) -> list[RoundFigures]:
        """Return the rows that stand for any of the rounds from `first` to `last`, both included."""
        return [row for row in self.rows if row.next_number > first and row.number <= last]

    def detail(self, number: int) -> RoundDetail | None:
        """Return a round with its clients, or None if they are not held."""
        place = number - self.detailed_from
        return next(islice(self.details, place, None), None) if place >= 0 else None

    def encoded(self) -> str:
        """Return the whole history as text, from which `decoded` makes the same."""
        body = canonical_json(_Encoded(RoundColumns.of(self.rows), tuple(self.details)))
        return base64.b64encode(zlib.compress(body)).decode()

    @classmethod
    def decoded(cls, text: str) -> "History":
        """Return the history that `encoded` wrote; an empty one of an empty text.

        Raises:
            StoreFailed: it is something else.
        """
        found = cls()
        if not text:
            return found
        try:
            opened = zlib.decompressobj()
            body = opened.decompress(base64.b64decode(text, validate=True), MAX_ENCODED_BYTES)
            read: _Encoded = parse_document(_Encoded, body)
            found.rows = read.rows.rows()
        except (binascii.Error, zlib.error, InvalidDocument, ValueError) as error:
            raise StoreFailed(f"a kept history cannot be read: {error}") from error
        for detail in read.details:
            found._keep(detail)
        return found


def _halved(rows: Sequence[RoundFigures], count: int) -> list[RoundFigures]:
    """Return the rows with each two neighbours among the first `count` merged."""
    halved = [merged(rows[place], rows[place + 1]) for place in range(0, count, 2)]
    return [*halved, *rows[count:]]
