"""The report of `epochal data inspect` on a location, and its text."""

from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from epochal.batching.chunking.datum_records import DatumCounts
from epochal.batching.data_check import DataFindings
from epochal.data_providers.description import description_of
from epochal.data_providers.mixes.mixture import PERIOD
from epochal.data_providers.order import DataOrder
from epochal.data_providers.protocol import DataProvider
from epochal.tools.sample_parts import SamplePart, draw_parts

MAX_FILES_SHOWN = 20


@dataclass(frozen=True, slots=True)
class FileReport:
    """One file. `format` is that of the file, or of all of them."""

    name: str
    format: str
    size_bytes: int
    sequences: int


@dataclass(frozen=True, slots=True)
class DataReport:
    """The data of a location.

    Attributes:
        identified_by: the property of the files that the fingerprint covers; None if there are no files.
        read_as: how plain tokens are read, which the fingerprint covers as well; "" of other data.
        sequences, tokens: of one pass; None if it is endless or they are not known.
        dropped_tokens: number of tokens at the files' ends that do not fill a sequence.
        shares: of a mix, each source's samples in a period, by the first data index of each phase.
        largest_token: of all files if their manifest names it, else of the samples that were inspected; None if there
            are no tokens.
        sample_parts: the first sample's first document, in learnt and masked parts; empty if it cannot be decoded.
        images: content of the samples of text and images that were inspected; None of other data.
        problems: why the run's model cannot be trained on these data; empty if no run is named.
        notes: likely mistakes in them.
    """

    location: str
    kind: str
    sequence_length: int | None
    files: tuple[FileReport, ...]
    sequences: int | None
    tokens: int | None
    dropped_tokens: int
    fingerprint: str
    identified_by: str | None
    read_as: str
    shares: tuple[tuple[int, dict[str, int]], ...]
    sample_parts: tuple[SamplePart, ...]
    largest_token: int | None
    images: DatumCounts | None
    problems: tuple[str, ...]
    notes: tuple[str, ...]


def report_on(
    location: str, provider: DataProvider, sample_parts: tuple[SamplePart, ...], findings: DataFindings
) -> DataReport:
    """Return the report on a provider's data, given what some of their samples show."""
    described = description_of(provider)
    kind = type(provider).__name__.removesuffix("DataProvider") if described is None else described.kind
    length = None if described is None else described.sequence_length
    count = provider.sequence_count
    order = getattr(provider, "order", None)
    files = _files_of(order, kind) if isinstance(order, DataOrder) else ()
    listed = getattr(provider, "encodings", {})
    is_listed = bool(listed) and all(file.name in listed for file in files)
    return DataReport(
        location=location,
        kind=kind,
        sequence_length=length,
        files=files,
        sequences=count,
        tokens=None if count is None or length is None else count * length,
        dropped_tokens=sum(order.dropped_tokens.values()) if isinstance(order, DataOrder) else 0,
        fingerprint=provider.fingerprint,
        identified_by=None if described is None else described.identified_by,
        read_as=order.read_as if isinstance(order, DataOrder) else "",
        shares=getattr(provider, "schedule", ()),
        sample_parts=sample_parts,
        largest_token=max(one.largest_token for one in listed.values()) if is_listed else findings.largest_token,
        images=findings.images if findings.images.samples else None,
        problems=tuple(findings.problems),
        notes=tuple(findings.notes),
    )


def _files_of(order: DataOrder[Any], kind: str) -> tuple[FileReport, ...]:
    length = order.spec.sequence_length
    return tuple(
        FileReport(
            file.name, getattr(file, "format", kind.removesuffix(" files")), file.size_bytes, file.token_count // length
        )
        for file in order.files
    )


def show(report: DataReport) -> None:
    """Print the report for people."""
    console = Console()
    table = Table(title=escape(f"{report.location} · {report.kind}"), show_header=False)
    table.add_column()
    table.add_column(overflow="fold")
    for name, value in (
        ("sequences", "endless" if report.sequences is None else f"{report.sequences:,}"),
        ("tokens of a sequence", "varying" if report.sequence_length is None else f"{report.sequence_length:,}"),
        ("tokens of a pass", "" if report.tokens is None else f"{report.tokens:,}"),
        ("tokens dropped at files' ends", f"{report.dropped_tokens:,}" if report.dropped_tokens else ""),
        *((f"share of {PERIOD:,} from {start:,}", _shown(counts)) for start, counts in report.shares),
        ("largest token", "" if report.largest_token is None else f"{report.largest_token:,}"),
        *(() if report.images is None else _shown_images(report.images)),
    ):
        if value:
            table.add_row(name, escape(value))
    console.print(table)
    read_as = report.read_as and f", read as {report.read_as}"
    over = "" if report.identified_by is None else f" (over the files' {report.identified_by}{read_as})"
    console.print(f"fingerprint: {report.fingerprint}{over}", highlight=False, soft_wrap=True)  # a table would cut it
    if report.files:
        files = Table("file", "format", "bytes", "sequences")
        for file in report.files[:MAX_FILES_SHOWN]:
            files.add_row(escape(file.name), file.format, f"{file.size_bytes:,}", f"{file.sequences:,}")
        if len(report.files) > MAX_FILES_SHOWN:
            files.add_row(f"… {len(report.files) - MAX_FILES_SHOWN:,} more")
        console.print(files)
    if report.sample_parts:
        console.print("the first sample, decoded:", style="bold")
        console.print(draw_parts(report.sample_parts), highlight=False)
    for note in report.notes:
        console.print(f"[yellow]note:[/yellow] {escape(note)}", highlight=False, soft_wrap=True)


def _shown_images(counts: DatumCounts) -> tuple[tuple[str, str], ...]:
    return (
        ("inspected samples", f"{counts.samples:,}"),
        ("images in them", f"{counts.images:,} of {counts.image_bytes:,} bytes"),
        ("locations of images", f"{counts.pointers:,}"),
        ("tokens of text", f"{counts.text_tokens:,}"),
        ("size, as requests count it", f"{counts.size:,}"),
    )


def _shown(counts: dict[str, int]) -> str:
    return ", ".join(f"{name}: {count:,}" for name, count in counts.items() if count)
