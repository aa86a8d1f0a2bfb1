"""A token file: its number of tokens, and the byte at which each sample begins."""

from dataclasses import dataclass

from epochal.data_providers.order import DataFile
from epochal.data_providers.protocol import DatasetSpec


@dataclass(frozen=True, slots=True)
class TokenFile(DataFile):
    """A token file and the places of its samples.

    Its samples follow each other without a gap, or are in records of equal length: sample *i* is number
    `i mod samples_per_record` of record `i div samples_per_record`.

    Attributes:
        data_offset_bytes: where the first sample begins.
        stride_bytes: from one record's first sample to the next one's; None without records.
        samples_per_record: 1 or more; 0 without records.
        format: what the file is, for people.
    """

    data_offset_bytes: int
    stride_bytes: int | None = None
    samples_per_record: int = 0
    format: str = "raw"

    def offset_bytes(self, sequence: int, spec: DatasetSpec) -> int:
        """Return the byte at which a sample begins."""
        if self.stride_bytes is None:
            return self.data_offset_bytes + sequence * spec.sequence_bytes
        record, rest = divmod(sequence, self.samples_per_record)
        return self.data_offset_bytes + record * self.stride_bytes + rest * spec.sequence_bytes

    def stretches(self, sequence: int, length: int, spec: DatasetSpec) -> list[tuple[int, int]]:
        """Return neighbouring samples as (offset, length) in bytes, one for each stretch without a gap."""
        if self.stride_bytes is None:
            return [(self.offset_bytes(sequence, spec), length * spec.sequence_bytes)]
        found: list[tuple[int, int]] = []
        while length:
            here = min(length, self.samples_per_record - sequence % self.samples_per_record)
            found.append((self.offset_bytes(sequence, spec), here * spec.sequence_bytes))
            sequence, length = sequence + here, length - here
        return found
