"""The report of `epochal data inspect` on a location, and its text."""

from dataclasses import dataclass

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from epochal.data_providers.mixes.mixture import PERIOD
from epochal.data_providers.protocol import DataProvider
from epochal.data_providers.providers.local import LocalDataProvider
from epochal.data_providers.providers.preprocessed import PreprocessedDataProvider
from epochal.data_providers.providers.ranged import RangedDataProvider
from epochal.data_providers.providers.record_files import RecordsDataProvider
from epochal.tools.inspect.sample_parts import SamplePart, draw_parts

MAX_FILES_SHOWN = 20


@dataclass(frozen=True, slots=True)
class FileReport:
    """One file. `tokens` is None for files of rows; `dropped_tokens` at its end do not fill a sequence."""

    name: str
    format: str
    size_bytes: int
    sequences: int
    tokens: int | None
    dropped_tokens: int


@dataclass(frozen=True, slots=True)
class DataReport:
    """The data of a location.

    Attributes:
        identified_by: by what of the files the fingerprint tells them from others; None if there are no files.
        sequences, tokens: of one pass; None if it is endless or they are not known.
        mix: of a mix, each source's samples in a period, in its first phase.
        schedule: of a mix whose weights change, the same of every phase with its first data index.
        largest_token: of all files if their manifest names it, else of the samples that were inspected; None if there
            are no tokens.
        sample_parts: the first sample's first document, by what of it is learnt; empty if it cannot be decoded.
        problems: why the run's model cannot be trained on these data; empty if no run is named.
        notes: what looks wrong with them.
    """

    location: str
    kind: str
    sequence_length: int | None
    files: tuple[FileReport, ...]
    sequences: int | None
    tokens: int | None
    fingerprint: str
    identified_by: str | None
    columns: tuple[str, ...]
    mix: dict[str, int]
    schedule: tuple[tuple[int, dict[str, int]], ...]
    quantisation_error: float | None
    sample_tokens: tuple[int, ...]
    sample_text: str | None
    sample_parts: tuple[SamplePart, ...]
    largest_token: int | None
    problems: tuple[str, ...]
    notes: tuple[str, ...]


def largest_token_of(provider: DataProvider, seen: int | None) -> int | None:
    """Return the largest token of all files where their manifest names it, else the largest one seen."""
    if isinstance(provider, LocalDataProvider | RangedDataProvider):
        listed = provider.encodings
        if listed and all(file.name in listed for file in provider.order.files):
            return max(one.largest_token for one in listed.values())
    return seen


def files_of(provider: DataProvider) -> tuple[FileReport, ...]:
    """Return the files of a provider that has any."""
    if isinstance(provider, PreprocessedDataProvider | RecordsDataProvider):
        kind = "" if provider.description is None else provider.description.kind
        return tuple(
            FileReport(file.name, kind.removesuffix(" files"), file.size_bytes, file.token_count, None, 0)
            for file in provider.files
        )
    if not isinstance(provider, LocalDataProvider | RangedDataProvider):
        return ()
    order, length = provider.order, provider.order.spec.sequence_length
    return tuple(
        FileReport(
            *(file.name, file.format, file.size_bytes, file.token_count // length, file.token_count),
            order.dropped_tokens.get(file.name, 0),
        )
        for file in order.files
    )


def _shares(counts: dict[str, int]) -> str:
    return ", ".join(f"{name}: {count:,}" for name, count in counts.items() if count)


def show(report: DataReport) -> None:
    """Print the report for people."""
    console = Console()
    table = Table(title=escape(f"{report.location} · {report.kind}"), show_header=False)
    table.add_column()
    table.add_column(overflow="fold")
    for name, value in (
        ("sequences", "endless" if report.sequences is None else f"{report.sequences:,}"),
        (
            "tokens of a sequence",
            "varying" if report.sequence_length is None else f"{report.sequence_length:,}",
        ),
        ("tokens of a pass", "" if report.tokens is None else f"{report.tokens:,}"),
        ("columns", ", ".join(report.columns)),
        *(
            (f"share of {PERIOD:,}{f' from {start:,}' if report.schedule else ''}", _shares(counts))
            for start, counts in report.schedule or ((0, report.mix),)
        ),
        ("quantisation error", "" if report.quantisation_error is None else f"{report.quantisation_error:.2e}"),
        ("largest token", "" if report.largest_token is None else f"{report.largest_token:,}"),
        ("first tokens", " ".join(map(str, report.sample_tokens))),
    ):
        if value:
            table.add_row(name, escape(value))
    console.print(table)
    over = "" if report.identified_by is None else f" (over the files' {report.identified_by})"
    console.print(f"fingerprint: {report.fingerprint}{over}", highlight=False, soft_wrap=True)  # a table would cut it
    if report.files:
        files = Table("file", "format", "bytes", "sequences", "tokens", "tokens dropped")
        for file in report.files[:MAX_FILES_SHOWN]:
            tokens = "" if file.tokens is None else f"{file.tokens:,}"
            counts = (f"{file.size_bytes:,}", f"{file.sequences:,}", tokens, f"{file.dropped_tokens:,}")
            files.add_row(escape(file.name), file.format, *counts)
        if len(report.files) > MAX_FILES_SHOWN:
            files.add_row(f"… {len(report.files) - MAX_FILES_SHOWN:,} more", "", "", "", "", "")
        console.print(files)
    if report.sample_parts:
        console.print("the first sample, decoded:", style="bold")
        console.print(draw_parts(report.sample_parts), highlight=False)
    for note in report.notes:
        console.print(f"[yellow]note:[/yellow] {escape(note)}", highlight=False, soft_wrap=True)
