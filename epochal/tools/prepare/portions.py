"""Portions: consecutive documents of the sources as their bytes, which one worker encodes at a time."""

import re
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

Form: TypeAlias = Literal["texts", "lines", "blank-lines", "records", "bad"]
"""The layout of documents in a portion: one in each of its parts, or many in its only one. `bad`: no document."""

PORTION_BYTES = 1024**2
"""Size up to which documents are put together into one portion."""
MAX_PORTION_PARTS = 4096
"""Maximum number of texts of one portion."""

MAX_BLANK_BYTES = 1000
"""Maximum number of blanks in a line that separates documents."""
BLANK_LINES = re.compile(rb"\n(?:[ \t\r]{0,%d}\n)+" % MAX_BLANK_BYTES)
"""Separates documents between blank lines."""


@dataclass(frozen=True, slots=True)
class Place:
    """The beginning of a part of a portion.

    Attributes:
        file: the name of its file.
        offset: number of bytes of the file, decompressed, before it; None for a row.
        line: number of its first line, from 1; of a row, its number.
    """

    file: str
    offset: int | None
    line: int


@dataclass(frozen=True, slots=True)
class Position:
    """The place at which reading resumes.

    Attributes:
        file: number of the file among the sources.
        offset: bytes of it, decompressed, or rows, before the next document.
        line: number of the next line, from 1.
        read_bytes: number of bytes of all sources that were read to come here, for the progress.
    """

    file: int = 0
    offset: int = 0
    line: int = 1
    read_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Portion:
    """Consecutive documents of the sources.

    Attributes:
        form: how they lie in `parts`.
        parts: bytes of the sources, as they are there.
        places: where each part begins.
        after: where reading continues after this portion.
        bad: what is wrong with what is left out here, by its place, if the form is `bad`.
    """

    form: Form
    parts: list[bytes]
    places: list[Place]
    after: Position
    bad: str = ""

    @property
    def size_bytes(self) -> int:
        """The size of all parts."""
        return sum(map(len, self.parts))


@dataclass(frozen=True, slots=True)
class EncodedPortion:
    """A portion as tokens.

    Attributes:
        tokens: of all documents, each with the end token, little-endian, in the preparation's token size.
        lengths: number of tokens of each document.
        digests: `DIGEST_BYTES` bytes for each document: the hash of its text.
        text_bytes: size of the documents' text as UTF-8.
        empty: number of documents without text, which are left out.
        skipped: documents that are left out because they are not UTF-8, each in a sentence.
        replaced: number of documents in which wrong bytes were replaced.
        bad: documents that are wrong, each in a sentence. The preparation ends with the first one, or counts them.
    """

    tokens: bytes = b""
    lengths: list[int] = field(default_factory=list)
    digests: bytes = b""
    text_bytes: int = 0
    empty: int = 0
    skipped: list[str] = field(default_factory=list)
    replaced: int = 0
    bad: list[str] = field(default_factory=list)
