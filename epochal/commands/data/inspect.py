"""`epochal data inspect`, `manifest` and `verify`: what a data location holds, and whether its files are intact."""

import asyncio
import contextlib
import json
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from epochal.batching.chunking.datum_records import is_datum
from epochal.batching.data_check import IMAGES_ADVICE, DataFindings, DataNeeds, look_at_data
from epochal.batching.packing.datum_rows import DatumRows
from epochal.batching.packing.packed_batches import Packing
from epochal.batching.packing.samples import raw_samples
from epochal.cli.options.shared import JsonOption, local_path
from epochal.cli.output.printing import run_to_end, say
from epochal.data_providers.file_names import LINES_SUFFIXES, ROW_SUFFIXES, TAR_SUFFIXES, TOKEN_SUFFIXES
from epochal.data_providers.locations import AnyLocation, parse_location
from epochal.data_providers.open_data import DATA_CONFIG_SUFFIX, OpenOptions, open_location, run_data
from epochal.data_providers.protocol import MAX_SEQUENCE_BYTES, CorruptData, DataProvider, DatasetSpec, TokenBatch
from epochal.data_providers.sources.http.source import without_secrets
from epochal.data_providers.sources.hub_dataset import HubDataset
from epochal.data_providers.sources.manifest import DEFAULT_BLOCK_BYTES, verify_folder
from epochal.data_providers.sources.renewed_manifest import write_manifest
from epochal.runtime.permissions import OWNERS
from epochal.runtime.worker_thread import WorkerThread
from epochal.state.config.data_location import Local, Preprocessed, Server
from epochal.state.config.file_urls import path_of
from epochal.state.config.state_file import StateFile
from epochal.state.errors import DataError, InvalidInput
from epochal.state.intervals import DataIds
from epochal.state.text.amounts import counted
from epochal.tools.data_report import report_on, show
from epochal.tools.prepare.publishing import TRAIN, preparation_of, seed_of
from epochal.tools.prepare.text_tokenizer import BYTES_VOCABULARY
from epochal.tools.run_inputs import (
    LOOK_TIMEOUT_S,
    TOKEN_DATA_SUFFIXES,
    data_names,
    fingerprint_problems,
    vocabulary_of,
)
from epochal.tools.sample_parts import (
    Decode,
    SamplePart,
    decode_bytes,
    decoder_of,
    encoded_first,
    first_parts,
    prepared_tokenizer,
    record_parts,
)
from epochal.tools.state_files import read_data_config, read_supported_state

DEFAULT_SEQUENCE_LENGTH = 2048
SAMPLE_SUFFIXES = (*LINES_SUFFIXES, *TAR_SUFFIXES, *ROW_SUFFIXES)


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
        typer.Option(
            help="Bytes of a token, by default 2, or as `epochal prepare` made them. Files that state it must agree."
        ),
    ] = None,
    seq_len: Annotated[
        int | None,
        typer.Option(
            min=1,
            help=f"Tokens of a sequence, by default {DEFAULT_SEQUENCE_LENGTH}, or as `epochal prepare` made them.",
        ),
    ] = None,
    tokenizer: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="A Hugging Face tokenizer.json, or bytes, to decode the first sample."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show what a location holds: files, sequences, tokens, fingerprint, and the first sample decoded.

    Some of the data are read, to find tokens that no model knows. Parts of the sample that are masked, and so not
    learnt, are marked. The exit code is 2 if the location cannot be read.
    """
    if state is None:
        if location is None:
            raise InvalidInput("give a LOCATION, or the run whose data are meant: --state STATE.toml")
        asked = _asked_for(location, token_size, seq_len)
    elif token_size is not None or seq_len is not None:
        raise InvalidInput("--token-size and --seq-len do not go with --state, which says it all")
    else:
        asked = _asked_of_run(read_supported_state(state), location)
    if isinstance(asked.location, Server):
        raise InvalidInput("a TCP data server serves only a run's members; inspect the files that it serves")
    known = None if asked.path is None or tokenizer is not None else prepared_tokenizer(asked.path)
    named = tokenizer if known is None else str(known)
    run_to_end(_inspect(asked, None if named is None else decoder_of(named), as_json))


@dataclass(frozen=True, slots=True)
class _Asked:
    """A location to inspect: as the user wrote it (`shown`), as it is opened, and its files on this machine."""

    shown: str
    location: AnyLocation
    spec: DatasetSpec
    packs: bool
    run: StateFile | None = None
    path: Path | None = None


def _asked_for(text: str, token_size: str | None, seq_len: int | None) -> _Asked:
    """Return a location without a run: what `epochal prepare` made as its run reads it, if no length is given."""
    found, seed = parse_location(text), None
    path = Path(found.path) if isinstance(found, Local) else None
    made = None if path is None or seq_len is not None else preparation_of(path)
    if made is not None and path == made.folder / TRAIN and not made.is_chat:
        seed, seq_len = seed_of(made.content), made.seq_len
        token_size = token_size or str(made.tokenizer.token_size)
    if path is not None and path.suffix == DATA_CONFIG_SUFFIX:
        config = read_data_config(path)
        seq_len, path = config.seq_len, path.parent / config.dir
        packs = seq_len is None
    else:
        packs = isinstance(found, HubDataset) if path is None else _holds_samples(path)
    spec = DatasetSpec(int(token_size or 2), seq_len or DEFAULT_SEQUENCE_LENGTH, seed)
    return _Asked(text, found, spec, packs, path=path)


def _asked_of_run(run: StateFile, text: str | None) -> _Asked:
    location, spec = run_data(run, text)
    shown = f"the data of run {run.run_id}" if text is None else text
    path = Path(location.path) if isinstance(location, Local | Preprocessed) else None
    return _Asked(shown, location, spec, run.model.LLM.data_type.reads_records, run, path)


async def _opened(asked: _Asked) -> tuple[DataProvider, _Asked]:
    """Open a location; records without a run's state file are opened as for a run that packs."""
    run_id = "" if asked.run is None else asked.run.run_id
    try:
        provider = await open_location(asked.location, asked.spec, OpenOptions(run_id, None, OWNERS, packs=asked.packs))
    except (DataError, InvalidInput) as error:
        if asked.run is not None or asked.packs or not error.context.get("holds_records"):
            raise
        asked = replace(asked, packs=True)
        provider = await open_location(asked.location, asked.spec, OpenOptions(run_id, None, OWNERS, packs=True))
    return provider, asked


async def _inspect(asked: _Asked, decode: Decode | None, as_json: bool) -> None:
    try:
        provider, asked = await _opened(asked)
        async with contextlib.aclosing(provider):
            findings = await _findings(provider, asked)
            if asked.run is not None:
                findings.problems += fingerprint_problems(asked.run, provider)
            parts = await _first_sample(provider, asked.run, decode)
            shown = path_of(asked.shown)
            shown = without_secrets(shown) if "://" in shown else shown
            report = report_on(shown, provider, parts, findings)
    except DataError as error:
        raise InvalidInput(error.message, **error.context) from error
    if as_json:
        say(json.dumps(asdict(report), ensure_ascii=False))
    else:
        show(report)
    if report.problems:
        raise InvalidInput("; ".join(report.problems))


async def _first_sample(provider: DataProvider, run: StateFile | None, decode: Decode | None) -> tuple[SamplePart, ...]:
    """Return the first sample, decoded; as bytes where none of its tokens is greater; nothing if that is not known."""
    first = await provider.get_samples(DataIds(0, 0))
    if first.is_text and is_datum(record := _record_of(first)):
        return record_parts(record)
    batch = encoded_first(first, run) if first.is_text else first
    if batch.is_text:  # it could not be encoded
        decode = decode_bytes
    if decode is None and int(batch.input_ids.max(initial=0)) >= BYTES_VOCABULARY:
        return ()
    return await asyncio.to_thread(first_parts, batch, decode or decode_bytes)


async def _findings(provider: DataProvider, asked: _Asked) -> DataFindings:
    """Check some of the data: for the run that is asked for, or for any model."""
    any_model = DataNeeds(asked.spec.sequence_length, None, None, LOOK_TIMEOUT_S)
    if asked.run is not None:
        vocabulary = vocabulary_of(asked.run)
        async with contextlib.aclosing(WorkerThread("epochal-inspect")) as worker:
            packing = Packing.of(asked.run, vocabulary, worker, OWNERS)
            return await look_at_data(provider, DataNeeds.of(asked.run, vocabulary, packing))
    if asked.packs:
        first = await provider.get_samples(DataIds(0, 0))
        if not first.is_text or not is_datum(_record_of(first)):
            return DataFindings()  # what such records become is a matter of the run's task encoder
        async with contextlib.aclosing(WorkerThread("epochal-inspect")) as worker:
            packing = Packing(partial(DatumRows, MAX_SEQUENCE_BYTES, None), 1, worker)
            findings = await look_at_data(provider, replace(any_model, packing=packing, advice=IMAGES_ADVICE))
        return DataFindings(notes=findings.problems + findings.notes, images=findings.images)
    findings = await look_at_data(provider, any_model)
    findings.notes, findings.problems = findings.problems + findings.notes, []
    largest = findings.largest_token or 0
    if largest >= BYTES_VOCABULARY and not findings.notes:
        findings.notes.append(
            f"these tokens go up to {largest} at least: they are for models with a vocabulary of more than {largest} "
            f"(the embedded one has {BYTES_VOCABULARY}); --state STATE.toml compares them with a run's"
        )
    return findings


def _record_of(first: TokenBatch) -> Any:
    """Return the first record of a batch; None if it is not JSON."""
    try:
        return next(raw_samples(first, iter((0,)))).record()
    except CorruptData:
        return None


def manifest(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", parser=local_path, help="Folder of token files.")],
    block_bytes: Annotated[
        int, typer.Option(help="Number of bytes in a block, each of which has its hash.")
    ] = DEFAULT_BLOCK_BYTES,
) -> None:
    """Write a manifest of hashes beside a folder's files, so that clients can check each block that they fetch.

    What an earlier manifest says of the tokenizer of files that are still the same is kept.
    """
    if not folder.is_dir():
        raise InvalidInput(f"{folder} is not a folder", path=str(folder))
    names = data_names(folder)
    if not names:
        raise InvalidInput(f"{folder} holds no data files", path=str(folder))
    written = write_manifest(folder, names, block_bytes)
    say(f"{written.path}: {counted(len(names), 'file')}")
    for lost in written.lost:
        say(f"note: {lost}")
    if written.unknown:
        more = f", and {counted(len(written.unknown) - 1, 'more file')}" if written.unknown[1:] else ""
        say(f"note: {written.unknown[0]}{more}: the manifest does not say with which tokenizer, as it does of others")


def verify(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", parser=local_path, help="Folder with a manifest.")],
) -> None:
    """Compare every byte of a folder's files with its manifest."""
    count = verify_folder(folder, data_names(folder, TOKEN_DATA_SUFFIXES) if folder.is_dir() else ())
    say(f"{folder}: the manifest matches {counted(count, 'file')}")


def _holds_samples(path: Path) -> bool:
    """Return whether a path holds samples of different lengths (JSON lines or parquet files) and no token files."""
    if not path.is_dir():
        return path.name.endswith((*LINES_SUFFIXES, *TAR_SUFFIXES))
    try:
        if any(entry.name.endswith(TOKEN_SUFFIXES) for entry in path.iterdir()):
            return False
        return any(entry.name.endswith(SAMPLE_SUFFIXES) for entry in path.rglob("*"))
    except OSError:  # opening the folder will raise the same error with its reason
        return False
