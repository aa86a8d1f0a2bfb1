"""Portions: consecutive documents of the sources as their bytes, which one worker encodes at a time."""

from dataclasses import dataclass, field

from epochal.tools.prepare.sources import Kind


@dataclass(frozen=True, slots=True)
class Position:
    """The place at which reading resumes.

    Attributes:
        file: number of the file among the sources.
        row: number of its lines or rows before.
        read_bytes: number of bytes of all sources, as they are stored, that were read to come here; for the progress.
    """

    file: int = 0
    row: int = 0
    read_bytes: int = 0


@dataclass(slots=True)
class Portion:
    """Consecutive documents of sources of one kind.

    Attributes:
        kind: of the files.
        after: where reading continues after this portion.
        texts: the documents as the files hold them.
        files, rows: of each document, the name of its file and the number of its first line or row, from 1.
        bad: what is wrong with what is left out after them, by its place; "" if nothing is.
    """

    kind: Kind
    after: Position = field(default_factory=Position)
    texts: list[bytes] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    bad: str = ""

    def place(self, number: int) -> str:
        """Return where a document is, for messages."""
        return f"{self.files[number]}, {'row' if self.kind == 'parquet' else 'line'} {self.rows[number]}"


@dataclass(frozen=True, slots=True)
class EncodedPortion:
    """A portion as tokens.

    Attributes:
        tokens: of all documents, each with the end token, little-endian, in the preparation's token size.
        lengths: number of tokens of each document.
        digests: `DIGEST_BYTES` bytes for each document: the hash of its text.
        text_bytes: size of the documents' text as UTF-8.
        empty: number of documents without text, which are left out.
        bad: documents that are wrong, each in a sentence. The preparation ends with the first one, or counts them.
    """

    tokens: bytes = b""
    lengths: list[int] = field(default_factory=list)
    digests: bytes = b""
    text_bytes: int = 0
    empty: int = 0
    bad: list[str] = field(default_factory=list)
