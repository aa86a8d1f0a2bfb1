"""Cuts source files into portions of whole documents.

The rules kept here: no more of a file is held than a portion, or one document; a document of more than
`max_document_bytes` is never held; a portion begins where the one before ended, so that reading can go on there. What
cannot be read becomes a portion of the form `bad`, in its place.
"""

import contextlib
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from epochal.tools.prepare.parquet_rows import row_batches
from epochal.tools.prepare.portions import (
    BLANK_LINES,
    MAX_BLANK_BYTES,
    MAX_PORTION_PARTS,
    PORTION_BYTES,
    Form,
    Place,
    Portion,
    Position,
)
from epochal.tools.prepare.prepare_options import PrepareOptions
from epochal.tools.prepare.source_bytes import BadFile, DecompressedReader, RangeReader, RawFile, TextStream
from epochal.tools.prepare.sources import Sources, SourceText

_LINE = re.compile(rb"\n")


class Cutter:
    """Cuts the files of `sources`, in their order.

    Args:
        sources: what is read.
        options: say what a document is.
        spool: the folder in which compressed parquet files are decompressed, one at a time.
    """

    def __init__(self, sources: Sources, options: PrepareOptions, spool: Path) -> None:
        self._sources = sources
        self._options = options
        self._spool = spool

    def portions(self, start: Position) -> Iterator[Portion]:
        """Yield every portion from a position on.

        Raises:
            SourceUnavailable: a server does not answer; the same preparation can continue later.
            InvalidInput: a package that a file needs is not installed.
        """
        waiting: list[Portion] = []  # whole files, until they are enough for a portion
        read_bytes = sum(file.size_bytes for file in self._sources.files[: start.file])
        for number, file in enumerate(self._sources.files[start.file :], start.file):
            begin = start if number == start.file else Position(number, read_bytes=read_bytes)
            read_bytes += file.size_bytes
            try:
                for portion in self._portions_of(file, begin, read_bytes - file.size_bytes):
                    if portion.form == "texts" and portion.places[0].offset is not None:
                        waiting.append(portion)
                        size = sum(one.size_bytes for one in waiting)
                        if size < PORTION_BYTES and len(waiting) < MAX_PORTION_PARTS:
                            continue
                        yield _together(waiting)
                    else:
                        yield from [_together(waiting)] if waiting else []
                        yield portion
                    waiting = []
            except BadFile as error:
                yield from [_together(waiting)] if waiting else []
                waiting = []
                yield Portion("bad", [], [], Position(number + 1, read_bytes=read_bytes), error.message)
        yield from [_together(waiting)] if waiting else []

    def _portions_of(self, file: SourceText, begin: Position, before_bytes: int) -> Iterator[Portion]:
        reader = self._sources.reader(file)
        try:
            stream = TextStream(file.name, reader, file.kind.compression)
            if file.kind.kind == "parquet":
                opened: RangeReader = reader
                if file.kind.compression:
                    opened = DecompressedReader(file.name, stream, self._spool)
                with contextlib.closing(opened):
                    yield from self._rows(file, RawFile(opened), begin, before_bytes)
                return
            stream.skip(begin.offset)
            if file.kind.kind == "text" and self._options.documents == "file":
                yield self._whole(file, stream, replace(begin, file=begin.file + 1, read_bytes=before_bytes))
                return
            form: Form = "records" if file.kind.kind == "records" else "lines"
            if file.kind.kind == "text" and self._options.documents == "blank-lines":
                form = "blank-lines"
            yield from _Lines(file.name, stream, form, self._options.max_document_bytes).portions(begin, before_bytes)
        finally:
            reader.close()

    def _whole(self, file: SourceText, stream: TextStream, after: Position) -> Portion:
        """Return a text file as one document."""
        parts: list[bytes] = []
        size, most = 0, self._options.max_document_bytes
        while size <= most and (found := stream.read(PORTION_BYTES)):
            parts.append(found)
            size += len(found)
        if size > most:
            raise BadFile(
                f"{file.name} is one document of more than {most} bytes, at line 1; allowed: --documents lines or "
                "blank-lines, which cut it, or a larger --max-document-bytes",
                file=file.name,
            )
        after = replace(after, offset=0, line=1, read_bytes=after.read_bytes + file.size_bytes)
        return Portion("texts", [b"".join(parts)], [Place(file.name, 0, 1)], after)

    def _rows(self, file: SourceText, raw: RawFile, begin: Position, before_bytes: int) -> Iterator[Portion]:
        for first, texts in row_batches(file.name, raw, self._options.text_column, begin.offset):
            places = [Place(file.name, None, first + number + 1) for number in range(len(texts))]
            done = min(raw.furthest, file.size_bytes)  # the footer at the end is read first
            after = Position(begin.file, first + len(texts), 1, before_bytes + (done if first else 0))
            yield Portion("texts", texts, places, after)


def _together(portions: list[Portion]) -> Portion:
    """Return portions of one document each as one."""
    parts = [part for portion in portions for part in portion.parts]
    places = [place for portion in portions for place in portion.places]
    return Portion("texts", parts, places, portions[-1].after)


class _Lines:
    """Cuts a stream at ends of lines, or at blank lines."""

    def __init__(self, name: str, stream: TextStream, form: Form, most_bytes: int) -> None:
        self._name = name
        self._stream = stream
        self._form: Form = form
        self._most = most_bytes
        self._end: Callable[[bytearray, int], re.Match[bytes] | None]
        self._end = (BLANK_LINES if form == "blank-lines" else _LINE).search
        self._held = bytearray()
        self._ended = False
        self._damage: BadFile | None = None

    def portions(self, begin: Position, before_bytes: int) -> Iterator[Portion]:
        """Yield the portions of the rest of the stream, which begins at a position.

        Raises:
            BadFile: the stream is damaged. What was whole before the damage has been yielded.
        """
        offset, line = begin.offset, begin.line
        while True:
            while len(self._held) < PORTION_BYTES and not self._ended:
                self._more()
            size = (self._last_end() or self._first_end()) if self._held else 0
            if not self._held:
                if self._damage is not None:
                    raise BadFile(f"{self._damage.message}, after line {line - 1}", file=self._name) from self._damage
                return
            bad = ""
            if size:
                part = bytes(self._held[:size])
                del self._held[:size]
                lines = part.count(b"\n")
            else:
                what = "the line" if self._form in ("lines", "records") else "the document"
                bad = (
                    f"{self._name}, line {line}: {what} has more than {self._most} bytes; "
                    "--max-document-bytes allows more"
                )
                part, (size, lines) = b"", self._discard()
            place = Place(self._name, offset, line)
            offset, line = offset + size, line + lines
            after = Position(begin.file, offset, line, before_bytes + self._stream.stored_bytes)
            yield Portion("bad", [], [], after, bad) if bad else Portion(self._form, [part], [place], after)

    def _more(self) -> None:
        try:
            found = self._stream.read(PORTION_BYTES)
        except BadFile as error:
            self._damage, found = error, b""
            del self._held[self._whole() :]
        self._ended = not found
        self._held += found

    def _whole(self) -> int:
        """Return where the last document ends that is followed by an end."""
        if self._form != "blank-lines":
            return self._held.rfind(b"\n") + 1
        return max((found.end() for found in BLANK_LINES.finditer(self._held)), default=0)

    def _last_end(self) -> int:
        """Return where the last document ends that begins and ends within a portion; 0 if none does."""
        if self._ended and len(self._held) <= PORTION_BYTES:
            return len(self._held)
        if self._form != "blank-lines":
            return self._held.rfind(b"\n", 0, PORTION_BYTES) + 1
        ends = [found.end() for found in BLANK_LINES.finditer(self._held, 0, PORTION_BYTES)]
        # at the very end the blank lines may continue
        return next((end for end in reversed(ends) if end < PORTION_BYTES), 0)

    def _first_end(self) -> int:
        """Return where the first document ends; 0 if it is too long."""
        searched = 0
        while True:
            if found := self._end(self._held, max(0, searched - MAX_BLANK_BYTES)):
                return found.end()
            if self._ended:
                return len(self._held) if len(self._held) <= self._most else 0
            if len(self._held) > self._most:
                return 0
            searched = len(self._held)
            self._more()

    def _discard(self) -> tuple[int, int]:
        """Go to the end of the first document without holding it; return the number of its bytes and lines."""
        size = lines = 0
        while not (found := self._end(self._held, 0)) and not self._ended:
            drop = max(0, len(self._held) - MAX_BLANK_BYTES)
            size, lines = size + drop, lines + self._held.count(b"\n", 0, drop)
            del self._held[:drop]
            self._more()
        rest = found.end() if found else len(self._held)
        lines += self._held.count(b"\n", 0, rest)
        del self._held[:rest]
        return size + rest, lines
