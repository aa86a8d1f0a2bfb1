"""Samples of text and images on their way to a trainer: not packed, each record a datum of its own."""

from collections.abc import Iterator

from epochal.batching.chunking.datum_records import DatumBatch, datum_of
from epochal.batching.chunking.datums import Datum
from epochal.batching.chunking.policies import MAX_CHUNK_ITEMS
from epochal.batching.packing.samples import RawSample


class DatumRows:
    """Makes batches of datums of records, called as a `Packer` is.

    Attributes:
        token_count: number of tokens in the batches so far; an image has none.

    Args:
        row_tokens: maximum number of tokens of a sample.
        vocabulary: tokens are below it; None for any.
    """

    def __init__(self, row_tokens: int, vocabulary: int | None) -> None:
        self._row_tokens = row_tokens
        self._vocabulary = vocabulary
        self.token_count = 0
        self._held: list[Datum] = []
        self._finished = False

    def take(self, samples: Iterator[RawSample]) -> bool:
        """Decode samples into a batch. Return whether there is one, or none will follow.

        Raises:
            CorruptData: a sample is no record of text and images; the context has its `data_index`.
        """
        while len(self._held) < MAX_CHUNK_ITEMS and (raw := next(samples, None)) is not None:
            self._held.append(datum_of(raw.record(), raw.index, self._row_tokens, self._vocabulary))
        return bool(self._held) or self._finished

    def next_row(self) -> DatumBatch | None:
        """Return the samples that were taken; None without any."""
        if not self._held:
            return None
        batch, self._held = DatumBatch.of(self._held), []
        self.token_count += len(batch.input_ids)
        return batch

    def finish(self) -> None:
        """Note that no sample will follow."""
        self._finished = True
