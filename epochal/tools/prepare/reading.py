"""Reads source files as portions of whole documents, decompressed, with bounded memory.

The rules kept here: a portion begins where the one before ended, so that reading can resume there; a document of more
than `MAX_DOCUMENT_BYTES` is never held; an archive that ends in the middle, or whose checksum is wrong, is an error and
never a shorter text. What cannot be read is named by the portion in whose place it is.
"""

import contextlib
import gzip
import io
from collections.abc import Generator, Iterator
from typing import Any, NamedTuple

from epochal.data_providers.protocol import SourceUnavailable
from epochal.state.errors import ExtraMissing
from epochal.tools.prepare.portions import Portion, Position
from epochal.tools.prepare.prepare_options import EXTRA, PrepareOptions
from epochal.tools.prepare.sources import BadFile, Sources, SourceText, failure_of

PORTION_BYTES = 1024**2
"""Size up to which documents are put together into one portion."""
MAX_PORTION_DOCUMENTS = 4096
MAX_PARQUET_ROWS = 256
"""Maximum number of rows of a parquet file that are decoded at a time."""
MAX_DOCUMENT_BYTES = 64 * 1024**2
"""Maximum size of a document, which is held in memory."""
MAX_COLUMNS_SHOWN = 20


class _Document(NamedTuple):
    """A document as its file holds it; its first line or row, and the last; and why it is left out, if it is."""

    text: bytes
    first: int
    last: int
    bad: str = ""


def portions(sources: Sources, options: PrepareOptions, start: Position) -> Iterator[Portion]:
    """Yield every portion of the sources from a position on.

    Raises:
        SourceUnavailable: a server does not answer; the same preparation can continue later.
        InvalidInput: a package that a file needs is not installed.
    """
    files = sources.files
    portion, size = Portion("text"), 0
    read_bytes = sum(file.size_bytes for file in files[: start.file])
    for number in range(start.file, len(files)):
        file, before = files[number], start.row if number == start.file else 0
        if file.kind != portion.kind:
            if portion.texts:
                yield portion
            portion, size = Portion(file.kind), 0
        try:
            with contextlib.ExitStack() as stack:
                stored = stack.enter_context(file.open())
                for document in stack.enter_context(contextlib.closing(_documents(file, stored, options, before))):
                    before, portion.bad = document.last, document.bad
                    if not document.bad:
                        portion.texts.append(document.text)
                        portion.files.append(file.name)
                        portion.rows.append(document.first)
                        size += len(document.text)
                    if document.bad or size >= PORTION_BYTES or len(portion.texts) == MAX_PORTION_DOCUMENTS:
                        portion.after = Position(number, before, read_bytes + min(stored.tell(), file.size_bytes))
                        yield portion
                        portion, size = Portion(file.kind), 0
            file.check_unchanged()
        except BadFile as error:
            unit = "row" if file.kind == "parquet" else "line"
            portion.bad = error.message + (f", after {unit} {before}" if before else "")
        read_bytes += file.size_bytes
        portion.after = Position(number + 1, read_bytes=read_bytes)
        if portion.bad:
            yield portion
            portion, size = Portion(file.kind), 0
    if portion.texts:
        yield portion


def _documents(
    file: SourceText, stored: io.BufferedIOBase, options: PrepareOptions, before: int
) -> Generator[_Document]:
    """Yield a file's documents after a line or row. Raise `BadFile` after those before the damage."""
    with contextlib.ExitStack() as stack:
        try:
            if file.kind == "parquet":
                found = _rows(file, stored, options.text_field, before)
            else:
                stream = stack.enter_context(_decompressed(file, stored))
                found = _lines(file, stream, options.documents if file.kind == "text" else "lines")
            for document in found:
                if document.last > before:
                    yield document
        except (BadFile, ExtraMissing, SourceUnavailable):
            raise
        except Exception as error:  # of the libraries that read, decompress and parse
            raise failure_of(file, error) from error


def _decompressed(file: SourceText, stored: Any) -> io.BufferedReader:
    """Return the file's bytes, decompressed."""
    if file.compression and not file.size_bytes:
        raise BadFile(f"{file.name} cannot be read: it is empty, and no archive", file=file.name)
    if file.compression == ".gz":
        stored = gzip.GzipFile(fileobj=stored, mode="rb")
    elif file.compression == ".zst":
        stored = _pyarrow("files in .zst").CompressedInputStream(stored, "zstd")
    return io.BufferedReader(stored, PORTION_BYTES)


def _lines(file: SourceText, stream: io.BufferedReader, cut: str) -> Iterator[_Document]:
    """Yield each line, each text between blank lines, or the whole file."""
    held: list[bytes] = []
    size = first = line = 0

    def document() -> _Document:
        if size <= MAX_DOCUMENT_BYTES:
            return _Document(b"".join(held), first, line)
        way_out = "; allowed: --documents lines or blank-lines, which cut it" * (cut == "file")
        said = f"{file.name}, line {first}: a document of more than {MAX_DOCUMENT_BYTES} bytes{way_out}"
        return _Document(b"", first, line, said)

    is_whole = True
    while part := stream.readline(PORTION_BYTES):
        line += is_whole
        is_whole = part.endswith(b"\n")
        if cut == "blank-lines" and part.isspace() and is_whole:
            if size:
                yield document()
                held, size = [], 0
            continue
        first = first if size else line
        size += len(part)
        if size <= MAX_DOCUMENT_BYTES:
            held.append(part)
        else:
            held.clear()
        if cut == "lines" and is_whole:
            yield document()
            held, size = [], 0
    if size:
        yield document()


def _rows(file: SourceText, stored: Any, column: str, before: int) -> Iterator[_Document]:
    """Yield the text of each row of a parquet file; that of a missing one is empty."""
    arrow = _pyarrow("parquet files")
    import pyarrow.parquet as parquet

    opened = parquet.ParquetFile(stored)
    if column not in opened.schema_arrow.names:
        shown = ", ".join(opened.schema_arrow.names[:MAX_COLUMNS_SHOWN])
        raise BadFile(f"{file.name} has no column {column!r}; allowed for --text-field: {shown}", file=file.name)
    kind = opened.schema_arrow.field(column).type
    if not (arrow.types.is_string(kind) or arrow.types.is_large_string(kind)):
        raise BadFile(f"{file.name}: the column {column!r} holds {kind}; allowed: text", file=file.name)
    row = 0
    for group in range(opened.num_row_groups):
        count = opened.metadata.row_group(group).num_rows
        if row + count <= before:
            row += count
            continue
        for batch in opened.iter_batches(MAX_PARQUET_ROWS, row_groups=[group], columns=[column], use_threads=False):
            for value in batch.column(0).cast(arrow.large_binary()).to_pylist():
                row += 1
                yield _Document(value or b"", row, row)


def _pyarrow(what: str) -> Any:
    try:
        import pyarrow
    except ImportError as error:
        raise ExtraMissing(f"{what} need the pyarrow package: {EXTRA}") from error
    return pyarrow
