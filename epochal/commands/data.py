"""`epochal data inspect`, `manifest` and `verify`: what a data location holds, and whether its files are intact."""

import asyncio
import contextlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from data_providers.file_names import JSON_LINES_SUFFIX, MDS_INDEX_NAME, PARQUET_SUFFIX, TOKEN_SUFFIXES, is_hidden
from data_providers.formats.mds import SHARD_SUFFIX
from data_providers.json_lines import JsonLinesDataProvider
from data_providers.local import LocalDataProvider
from data_providers.locations import parse_location
from data_providers.mixture import PERIOD
from data_providers.opening import DATA_CONFIG_SUFFIX, OpenOptions, open_location
from data_providers.preprocessed import PreprocessedDataProvider
from data_providers.protocol import DataProvider, DatasetSpec
from data_providers.ranged import RangedDataProvider
from data_providers.sources.http.source import without_secrets
from data_providers.sources.manifest import DEFAULT_BLOCK_BYTES, verify_folder, write_manifest
from data_providers.weighted import WeightedDataProvider
from epochal.cli.options import JsonOption
from epochal.cli.run import run_to_end, say
from epochal.cli.state_files import read_data_config
from state.config.data_location import Local, Preprocessed, Server
from state.errors import DataError, InvalidInput
from state.intervals import DataIds

DATA_SUFFIXES = (*TOKEN_SUFFIXES, ".idx", SHARD_SUFFIX)
DEFAULT_SEQUENCE_LENGTH = 2048
MAX_FILES_SHOWN = 20
SAMPLE_TOKENS = 32
SAMPLE_CHARACTERS = 400
BYTES_VOCABULARY = 256


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
    """The data of a location. `sequences` and `tokens` count one pass; None if it is endless or they are not known."""

    location: str
    kind: str
    sequence_length: int | None
    files: tuple[FileReport, ...]
    sequences: int | None
    tokens: int | None
    fingerprint: str
    columns: tuple[str, ...]
    mix: dict[str, int]
    quantisation_error: float | None
    sample_tokens: tuple[int, ...]
    sample_text: str | None


def inspect(
    location: Annotated[
        str, typer.Argument(metavar="LOCATION", help="Path or URL, as `epochal client --data` takes it.")
    ],
    token_size: Annotated[
        Literal["2", "4"], typer.Option(help="Bytes of a token. Files that state it themselves must agree.")
    ] = "2",
    seq_len: Annotated[int, typer.Option(min=1, help="Number of tokens in a sequence.")] = DEFAULT_SEQUENCE_LENGTH,
    preprocessed: Annotated[
        bool, typer.Option("--preprocessed", help="The location is a folder of parquet files with one sample a row.")
    ] = False,
    tokenizer: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A Hugging Face tokenizer.json, to decode the first sample.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show what a location holds: files, sequences, tokens, fingerprint, and the first sample decoded.

    The exit code is 2 if the location cannot be read.
    """
    found = parse_location(location)
    if isinstance(found, Server):
        raise InvalidInput("a TCP data server serves only a run's members; inspect the files that it serves")
    path = Path(found.path) if isinstance(found, Local) else None
    if path is not None and path.suffix == DATA_CONFIG_SUFFIX:
        config = read_data_config(path)
        seq_len, path = config.seq_len, path.parent / config.dir
    spec = DatasetSpec(int(token_size), seq_len)
    target = Preprocessed(found.path) if preprocessed and isinstance(found, Local) else found
    packs = path is not None and _holds_samples(path)

    async def main() -> None:
        options = OpenOptions("", None, packs=packs)
        try:
            async with contextlib.aclosing(await open_location(target, spec, options)) as provider:
                report = await _report(location, provider, tokenizer)
        except DataError as error:
            raise InvalidInput(error.message, **error.context) from error
        if as_json:
            say(json.dumps(asdict(report), ensure_ascii=False))
        else:
            _show(report)

    run_to_end(main())


def manifest(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder of token files.")],
    block_bytes: Annotated[
        int, typer.Option(help="Number of bytes in a block, each of which has its hash.")
    ] = DEFAULT_BLOCK_BYTES,
) -> None:
    """Write a manifest of hashes beside a folder's files, so that clients can check each block that they fetch."""
    if not folder.is_dir():
        raise InvalidInput(f"{folder} is not a folder", path=str(folder))
    names = _data_names(folder)
    if not names:
        raise InvalidInput(f"{folder} holds no data files", path=str(folder))
    say(f"{write_manifest(folder, names, block_bytes)}: {len(names)} files")


def verify(folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder with a manifest.")]) -> None:
    """Compare every byte of a folder's files with its manifest."""
    count = verify_folder(folder, _data_names(folder) if folder.is_dir() else ())
    say(f"{folder}: {count} files match the manifest")


def _data_names(folder: Path) -> list[str]:
    """Return the names of the files that a manifest lists."""
    entries = [path for path in folder.iterdir() if path.is_file() and not is_hidden(path.name)]
    names = {path.name for path in entries if path.name.endswith(DATA_SUFFIXES) or path.name == MDS_INDEX_NAME}
    if MDS_INDEX_NAME in names:  # a merged index names shards in folders below it
        names |= {path.relative_to(folder).as_posix() for path in folder.rglob("*" + SHARD_SUFFIX)}
    return sorted(names)


def _holds_samples(path: Path) -> bool:
    """Return whether a path holds samples of different lengths (JSON lines or parquet files) and no token files."""
    if not path.is_dir():
        return path.suffix == JSON_LINES_SUFFIX
    try:
        if any(entry.name.endswith(TOKEN_SUFFIXES) or entry.name == MDS_INDEX_NAME for entry in path.iterdir()):
            return False
        return any(entry.suffix in (JSON_LINES_SUFFIX, PARQUET_SUFFIX) for entry in path.rglob("*"))
    except OSError:  # opening the folder will raise the same error with its reason
        return False


async def _report(location: str, provider: DataProvider, tokenizer: Path | None) -> DataReport:
    batch = await provider.get_samples(DataIds(0, 0))
    sample: list[int] = batch.input_ids[: int(batch.offsets[1])].tolist()
    order = provider.order if isinstance(provider, LocalDataProvider | RangedDataProvider) else None
    length = None if order is None else order.spec.sequence_length
    count = provider.sequence_count
    return DataReport(
        location=without_secrets(location) if "://" in location else location,
        kind=type(provider).__name__.removesuffix("DataProvider"),
        sequence_length=length,
        files=_files(provider),
        sequences=count,
        tokens=None if count is None or length is None else count * length,
        fingerprint=provider.fingerprint,
        columns=provider.columns if isinstance(provider, PreprocessedDataProvider) else (),
        mix=provider.counts if isinstance(provider, WeightedDataProvider) else {},
        quantisation_error=provider.quantisation_error if isinstance(provider, WeightedDataProvider) else None,
        sample_tokens=tuple(sample[:SAMPLE_TOKENS]),
        sample_text=await asyncio.to_thread(_decoded, sample, tokenizer),
    )


def _files(provider: DataProvider) -> tuple[FileReport, ...]:
    if isinstance(provider, PreprocessedDataProvider | JsonLinesDataProvider):
        kind = "parquet" if isinstance(provider, PreprocessedDataProvider) else "JSON lines"
        return tuple(FileReport(file.name, kind, file.size_bytes, file.token_count, None, 0) for file in provider.files)
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


def _decoded(tokens: list[int], tokenizer: Path | None) -> str | None:
    """Return the beginning of the sample's text, or None if there is neither a tokenizer nor a sample of bytes."""
    if tokenizer is not None:
        text = _detokenized(tokens, tokenizer)
    elif max(tokens, default=0) < BYTES_VOCABULARY:
        text = bytes(tokens).decode("utf-8", errors="replace")
    else:
        return None
    # a terminal must not obey the characters of the data
    return "".join(char if char.isprintable() or char == "\n" else "·" for char in text[:SAMPLE_CHARACTERS])


def _detokenized(tokens: list[int], tokenizer: Path) -> str:
    try:
        import tokenizers
    except ImportError as error:
        raise InvalidInput("--tokenizer needs the tokenizers package: pip install tokenizers") from error
    try:
        text: str = tokenizers.Tokenizer.from_file(str(tokenizer)).decode(tokens)
    except Exception as error:  # the package raises plain Exception
        raise InvalidInput(f"--tokenizer {tokenizer}: {error}", path=str(tokenizer)) from error
    return text


def _show(report: DataReport) -> None:
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
        (f"share of {PERIOD:,}", ", ".join(f"{name}: {count:,}" for name, count in report.mix.items())),
        ("quantisation error", "" if report.quantisation_error is None else f"{report.quantisation_error:.2e}"),
        ("fingerprint", report.fingerprint),
        ("first tokens", " ".join(map(str, report.sample_tokens))),
    ):
        if value:
            table.add_row(name, escape(value))
    console.print(table)
    if report.files:
        files = Table("file", "format", "bytes", "sequences", "tokens", "tokens dropped")
        for file in report.files[:MAX_FILES_SHOWN]:
            tokens = "" if file.tokens is None else f"{file.tokens:,}"
            counts = (f"{file.size_bytes:,}", f"{file.sequences:,}", tokens, f"{file.dropped_tokens:,}")
            files.add_row(escape(file.name), file.format, *counts)
        if len(report.files) > MAX_FILES_SHOWN:
            files.add_row(f"… {len(report.files) - MAX_FILES_SHOWN:,} more", "", "", "", "", "")
        console.print(files)
    if report.sample_text is not None:
        console.print("the first sample, decoded:", style="bold")
        console.print(report.sample_text, markup=False, highlight=False)
