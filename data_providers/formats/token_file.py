"""A token file: its number of tokens, and the byte at which each sample begins."""

from dataclasses import dataclass

from epochal.data_providers.order import DataFile
from epochal.data_providers.protocol import DatasetSpec


@dataclass(frozen=True, slots=True)
class TokenFile(DataFile):
    """A token file, whose samples follow each other without a gap.

    Attributes:
        data_offset_bytes: where the first sample begins.
        format: what the file is, for people.
    """

    data_offset_bytes: int
    format: str = "raw"

    def offset_bytes(self, sequence: int, spec: DatasetSpec) -> int:
        """Return the byte at which a sample begins."""
        return self.data_offset_bytes + sequence * spec.sequence_bytes
