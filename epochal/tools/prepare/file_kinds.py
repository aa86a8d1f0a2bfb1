"""The files that are read as text, by the suffixes of their names."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

Kind: TypeAlias = Literal["text", "records", "parquet"]

TEXT_SUFFIXES = (".txt", ".text", ".md", ".markdown", ".rst")
RECORD_SUFFIXES = (".jsonl", ".ndjson")
PARQUET_SUFFIXES = (".parquet",)
COMPRESSIONS = {".gz": "gz", ".zst": "zst"}
READ = (
    f"{', '.join(TEXT_SUFFIXES)} (text), {', '.join(RECORD_SUFFIXES)} (JSON lines), {', '.join(PARQUET_SUFFIXES)}, "
    f"each also with {' or '.join(COMPRESSIONS)}"
)
"""The suffixes in words, for messages."""


@dataclass(frozen=True, slots=True)
class FileKind:
    """The kind of content of a file, and how it is compressed (`gz`, `zst` or "")."""

    kind: Kind
    compression: str = ""


def kind_of(name: str, further_text: tuple[str, ...] = ()) -> FileKind | None:
    """Return what a file of this name holds, or None if such files are not read.

    Args:
        name: the file's name, with or without folders.
        further_text: further suffixes of text files.
    """
    base = name.rpartition("/")[2].lower()
    compression = ""
    for suffix, kind in COMPRESSIONS.items():
        if base.endswith(suffix):
            base, compression = base.removesuffix(suffix), kind
    if base.endswith((*TEXT_SUFFIXES, *(suffix.lower() for suffix in further_text))):
        return FileKind("text", compression)
    if base.endswith(RECORD_SUFFIXES):
        return FileKind("records", compression)
    if base.endswith(PARQUET_SUFFIXES):
        return FileKind("parquet", compression)
    return None
