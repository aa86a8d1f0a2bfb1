"""`epochal data inspect`, `manifest` and `verify`: what a data location holds, and whether its files are intact."""

import asyncio
import contextlib
import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from batching.data_check import DataFindings, DataNeeds, look_at_data
from batching.packing.packed_batches import Packing
from data_providers.description import description_of
from data_providers.file_names import LINES_SUFFIXES, MDS_INDEX_NAME, ROW_SUFFIXES, TAR_SUFFIXES, TOKEN_SUFFIXES
from data_providers.local import LocalDataProvider
from data_providers.locations import AnyLocation, parse_location
from data_providers.mixture import PERIOD
from data_providers.opening import DATA_CONFIG_SUFFIX, OpenOptions, open_location, run_data
from data_providers.preprocessed import PreprocessedDataProvider
from data_providers.protocol import DataProvider, DatasetSpec
from data_providers.ranged import RangedDataProvider
from data_providers.records import RecordsDataProvider
from data_providers.sources.http.source import without_secrets
from data_providers.sources.hub_dataset import HubDataset
from data_providers.sources.manifest import DEFAULT_BLOCK_BYTES, verify_folder, write_manifest
from data_providers.token_records import TokenRecordsDataProvider
from data_providers.weighted import WeightedDataProvider
from epochal.cli.named_files import LOOK_TIMEOUT_S, TOKEN_DATA_SUFFIXES, data_names, fingerprint_problems, vocabulary_of
from epochal.cli.options import JsonOption
from epochal.cli.run import run_to_end, say
from epochal.cli.state_files import read_data_config, read_supported_state
from epochal.inspection.decoding import BYTES_VOCABULARY, Decode, decoder_for, decoder_of
from epochal.inspection.drawings import draw_parts, draw_profile
from epochal.inspection.prepared import prepared_data
from epochal.inspection.profile import DataProfile, profile_of
from epochal.inspection.sample_parts import SamplePart, encoded_first, first_parts
from runtime.worker_thread import WorkerThread
from state.config.data_location import Local, Preprocessed, Server
from state.config.model import DataType
from state.config.state_file import StateFile
from state.errors import DataError, InvalidInput
from state.intervals import DataIds

DEFAULT_SEQUENCE_LENGTH = 2048
SAMPLE_SUFFIXES = (*LINES_SUFFIXES, *TAR_SUFFIXES, *ROW_SUFFIXES)
MAX_FILES_SHOWN = 20
SAMPLE_TOKENS = 32
SAMPLE_CHARACTERS = 400


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
        largest_token: of the samples that were looked at; None if they are not tokens.
        sample_parts: the first sample's first document, by what of it is learnt; empty if it cannot be decoded.
        profile: lengths and frequencies; None if they were not asked for.
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
    profile: DataProfile | None
    largest_token: int | None
    problems: tuple[str, ...]
    notes: tuple[str, ...]


def inspect(
    location: Annotated[
        str | None,
        typer.Argument(
            metavar="[LOCATION]",
            help="Path or URL, as `epochal client --data` takes it. With --state, default: the run's own.",
        ),
    ] = None,
    state: Annotated[
        Path | None,
        typer.Option(
            metavar="STATE.toml",
            help="Open the location as a client of this run does: the fingerprint is what the run's clients compute,"
            " and the run's model must know the tokens (exit code 2 if it does not).",
        ),
    ] = None,
    token_size: Annotated[
        Literal["2", "4"] | None,
        typer.Option(help="Bytes of a token, by default 2. Files that state it themselves must agree."),
    ] = None,
    seq_len: Annotated[
        int | None, typer.Option(min=1, help=f"Number of tokens in a sequence. [default: {DEFAULT_SEQUENCE_LENGTH}]")
    ] = None,
    preprocessed: Annotated[
        bool, typer.Option("--preprocessed", help="The location is a folder of parquet files with one sample a row.")
    ] = False,
    tokenizer: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A Hugging Face tokenizer.json, to decode the first sample.")
    ] = None,
    end_token: Annotated[
        int | None, typer.Option(min=0, metavar="TOKEN", help="Token that ends each document of token files.")
    ] = None,
    profile: Annotated[
        bool, typer.Option("--profile/--no-profile", help="Draw lengths of documents and frequencies of tokens.")
    ] = True,
    as_json: JsonOption = False,
) -> None:
    """Show what a location holds: files, sequences, tokens, fingerprint, drawings, and the first sample decoded.

    Some of the data are read: to find tokens that no model knows, and to draw how long documents are, and how frequent
    tokens. Parts of the sample that are masked, and so not learnt, are told apart. The exit code is 2 if the location
    cannot be read.
    """
    if state is None:
        if location is None:
            raise InvalidInput("give a LOCATION, or the run whose data are meant: --state STATE.toml")
        asked = _asked_for(location, token_size or "2", seq_len or DEFAULT_SEQUENCE_LENGTH, preprocessed)
    elif token_size is not None or seq_len is not None or preprocessed:
        raise InvalidInput("--token-size, --seq-len and --preprocessed do not go with --state, which says it all")
    else:
        asked = _asked_of_run(read_supported_state(state), location)
    if isinstance(asked.location, Server):
        raise InvalidInput("a TCP data server serves only a run's members; inspect the files that it serves")
    known = None if asked.path is None else prepared_data(asked.path)
    if known is not None:
        tokenizer, end_token = tokenizer or known.tokenizer, known.end_id if end_token is None else end_token
    looks = _Looks(decoder_of(tokenizer), profile, end_token)
    run_to_end(_inspect(asked, looks, as_json))


@dataclass(frozen=True, slots=True)
class _Asked:
    """A location to inspect.

    Attributes:
        shown: as the user wrote it.
        location, spec, packs: as it is opened.
        run: for which it is inspected.
        path: of its files, if they are on this machine.
    """

    shown: str
    location: AnyLocation
    spec: DatasetSpec
    packs: bool
    run: StateFile | None = None
    path: Path | None = None


@dataclass(frozen=True, slots=True)
class _Looks:
    """How the data are looked at: `decode` is None where there is no tokenizer."""

    decode: Decode | None
    profile: bool
    end_token: int | None


def _asked_for(text: str, token_size: str, seq_len: int, preprocessed: bool) -> _Asked:
    found: AnyLocation = parse_location(text)
    path = Path(found.path) if isinstance(found, Local) else None
    if path is not None and path.suffix == DATA_CONFIG_SUFFIX:
        config = read_data_config(path)
        seq_len, path = config.seq_len, path.parent / config.dir
    if preprocessed and isinstance(found, Local):
        found = Preprocessed(found.path)
    packs = isinstance(found, HubDataset) if path is None else _holds_samples(path)
    return _Asked(text, found, DatasetSpec(int(token_size), seq_len), packs, path=path)


def _asked_of_run(run: StateFile, text: str | None) -> _Asked:
    location, spec = run_data(run, text)
    shown = f"the data of run {run.run_id}" if text is None else text
    path = Path(location.path) if isinstance(location, Local | Preprocessed) else None
    return _Asked(shown, location, spec, run.model.LLM.data_type is DataType.FINETUNING, run, path)


async def _opened(asked: _Asked) -> tuple[DataProvider, _Asked]:
    """Open a location; where no run says whether it packs, and there are records, as the data of a run that does."""
    run_id = "" if asked.run is None else asked.run.run_id
    try:
        provider = await open_location(asked.location, asked.spec, OpenOptions(run_id, None, packs=asked.packs))
    except (DataError, InvalidInput) as error:
        if asked.run is not None or asked.packs or not error.context.get("holds_records"):
            raise
        asked = replace(asked, packs=True)
        provider = await open_location(asked.location, asked.spec, OpenOptions(run_id, None, packs=True))
    return provider, asked


async def _inspect(asked: _Asked, looks: _Looks, as_json: bool) -> None:
    try:
        provider, asked = await _opened(asked)
        async with contextlib.aclosing(provider):
            findings = await _findings(provider, asked)
            if asked.run is not None:
                findings.problems += fingerprint_problems(asked.run, provider)
            report = await _report(asked, provider, looks, findings)
    except DataError as error:
        raise InvalidInput(error.message, **error.context) from error
    if as_json:
        say(json.dumps(asdict(report), ensure_ascii=False))
    else:
        _show(report, decoder_for(looks.decode, report.largest_token))
    if report.problems:
        raise InvalidInput("; ".join(report.problems))


async def _findings(provider: DataProvider, asked: _Asked) -> DataFindings:
    """Look at some of the data: for the run that is asked for, or for any model."""
    if asked.run is not None:
        vocabulary = vocabulary_of(asked.run)
        async with contextlib.aclosing(WorkerThread("epochal-inspect")) as worker:
            packing = Packing.of(asked.run, vocabulary, worker)
            return await look_at_data(provider, DataNeeds.of(asked.run, vocabulary, packing))
    if asked.packs:  # what records become is a matter of the run's task encoder
        return DataFindings()
    findings = await look_at_data(provider, DataNeeds(asked.spec.sequence_length, None, None, LOOK_TIMEOUT_S))
    findings.notes, findings.problems = findings.problems + findings.notes, []
    largest = findings.largest_token or 0
    if largest >= BYTES_VOCABULARY and not findings.notes:
        findings.notes.append(
            f"these tokens go up to {largest} at least: they are for models with a vocabulary of more than {largest} "
            f"(the embedded one has {BYTES_VOCABULARY}); --state STATE.toml compares them with a run's"
        )
    return findings


def manifest(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder of token files.")],
    block_bytes: Annotated[
        int, typer.Option(help="Number of bytes in a block, each of which has its hash.")
    ] = DEFAULT_BLOCK_BYTES,
) -> None:
    """Write a manifest of hashes beside a folder's files, so that clients can check each block that they fetch."""
    if not folder.is_dir():
        raise InvalidInput(f"{folder} is not a folder", path=str(folder))
    names = data_names(folder)
    if not names:
        raise InvalidInput(f"{folder} holds no data files", path=str(folder))
    say(f"{write_manifest(folder, names, block_bytes)}: {len(names)} files")


def verify(folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder with a manifest.")]) -> None:
    """Compare every byte of a folder's files with its manifest."""
    count = verify_folder(folder, data_names(folder, TOKEN_DATA_SUFFIXES) if folder.is_dir() else ())
    say(f"{folder}: {count} files match the manifest")


def _holds_samples(path: Path) -> bool:
    """Return whether a path holds samples of different lengths (JSON lines or parquet files) and no token files."""
    if not path.is_dir():
        return path.name.endswith((*LINES_SUFFIXES, *TAR_SUFFIXES))
    try:
        if any(entry.name.endswith(TOKEN_SUFFIXES) or entry.name == MDS_INDEX_NAME for entry in path.iterdir()):
            return False
        return any(entry.name.endswith(SAMPLE_SUFFIXES) for entry in path.rglob("*"))
    except OSError:  # opening the folder will raise the same error with its reason
        return False


async def _report(asked: _Asked, provider: DataProvider, looks: _Looks, findings: DataFindings) -> DataReport:
    first = await provider.get_samples(DataIds(0, 0))
    batch = encoded_first(first, asked.run) if first.is_text else first
    decode = decoder_for(looks.decode, int(batch.input_ids.max(initial=0)))
    text_of = decoder_for(None, 0) if first.is_text else decode
    parts = () if decode is None else await asyncio.to_thread(first_parts, batch, decode)
    sample: list[int] = first.input_ids[: int(first.offsets[1])].tolist()
    order = provider.order if isinstance(provider, LocalDataProvider | RangedDataProvider) else None
    length = None if order is None else order.spec.sequence_length
    count, described = provider.sequence_count, description_of(provider)
    return DataReport(
        location=without_secrets(asked.shown) if "://" in asked.shown else asked.shown,
        kind=type(provider).__name__.removesuffix("DataProvider"),
        sequence_length=length,
        files=_files(provider),
        sequences=count,
        tokens=None if count is None or length is None else count * length,
        fingerprint=provider.fingerprint,
        identified_by=None if described is None else described.identified_by,
        columns=provider.columns if isinstance(provider, PreprocessedDataProvider) else (),
        mix=provider.counts if isinstance(provider, WeightedDataProvider) else {},
        schedule=provider.schedule if isinstance(provider, WeightedDataProvider) and provider.schedule[1:] else (),
        quantisation_error=provider.quantisation_error if isinstance(provider, WeightedDataProvider) else None,
        sample_tokens=tuple(sample[:SAMPLE_TOKENS]),
        sample_text=None if text_of is None else text_of(sample)[:SAMPLE_CHARACTERS],
        sample_parts=parts,
        profile=await profile_of(provider, looks.end_token) if looks.profile else None,
        largest_token=findings.largest_token,
        problems=tuple(findings.problems),
        notes=tuple(findings.notes),
    )


def _files(provider: DataProvider) -> tuple[FileReport, ...]:
    if isinstance(provider, PreprocessedDataProvider | RecordsDataProvider | TokenRecordsDataProvider):
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


def _show(report: DataReport, decode: Decode | None) -> None:
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
        ("largest token seen", "" if report.largest_token is None else f"{report.largest_token:,}"),
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
    if report.profile is not None:
        console.print(draw_profile(report.profile, decode), highlight=False)
    if report.sample_parts:
        console.print("the first sample, decoded:", style="bold")
        console.print(draw_parts(report.sample_parts), highlight=False)
    for note in report.notes:
        console.print(f"[yellow]note:[/yellow] {escape(note)}", highlight=False, soft_wrap=True)
