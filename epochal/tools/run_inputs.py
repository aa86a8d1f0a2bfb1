"""Opens what a run's files name, as a start would: data, initial parameters, task encoder, manifest."""

import asyncio
import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from epochal.batching.data_check import DataNeeds, look_at_data
from epochal.batching.packing.packed_batches import Packing
from epochal.data_providers.description import description_of
from epochal.data_providers.file_names import LINES_SUFFIXES, ROW_SUFFIXES, TAR_SUFFIXES, TOKEN_SUFFIXES
from epochal.data_providers.locations import AnyLocation
from epochal.data_providers.mixes.mix_file import parse_mix
from epochal.data_providers.open_data import OpenOptions, mix_file, open_described, open_location, run_data
from epochal.data_providers.protocol import DataProvider
from epochal.data_providers.providers.local_places import files_below
from epochal.data_providers.sources.manifest import MANIFEST_NAME, verify_folder
from epochal.runtime.permissions import OWNERS
from epochal.runtime.worker_thread import WorkerThread
from epochal.state.config.data_file import DataConfig
from epochal.state.config.data_location import DummyData, Local, Preprocessed, Server, WeightedHttp
from epochal.state.config.model_table import HF_ARCHITECTURES, LocalCheckpoint, ModelSpec
from epochal.state.config.state_file import StateFile
from epochal.state.dataset_descriptions import dataset_in_words
from epochal.state.errors import EpochalError, InvalidInput, Unsupported
from epochal.tools.evaluate.losses import DEFAULT_SPLIT as HELD_OUT_SPLIT
from epochal.tools.evaluate.losses import TRAINING_SPLIT
from epochal.tools.model_size import ModelSize, in_words, size_notes, size_problems
from epochal.trainers.architectures import ARCHITECTURES, open_model
from epochal.trainers.first_parameters import check_config, look_at_source, make_first_model

TOKEN_DATA_SUFFIXES = (*TOKEN_SUFFIXES, ".idx")
DATA_SUFFIXES = (*TOKEN_DATA_SUFFIXES, *LINES_SUFFIXES, *TAR_SUFFIXES, *ROW_SUFFIXES)
DATA_PLACE, HELD_OUT_PLACE = "model.LLM.data_location", "model.LLM.held_out_location"
LOOK_TIMEOUT_S = 60.0
"""Seconds for the answer of each place that is checked in the files of a `data.toml`."""


@dataclass
class NamedFiles:
    """The findings about the files that a run's files name; each is a sentence that begins with the file's name.

    Attributes:
        problems: why a start would fail, or the run's model could not be trained.
        own: the same of the state file's own lines, which the model's library finds.
        notes: what is suspicious, and what was not opened.
        facts: what a person who starts the run should know.
        fingerprint: of the data; None if they were not opened.
    """

    problems: list[str] = field(default_factory=list)
    own: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    facts: list[str] = field(default_factory=list)
    fingerprint: str | None = None

    @contextlib.contextmanager
    def collecting(self, place: str) -> Iterator[None]:
        """Turn an error in the block into a problem of this place."""
        try:
            yield
        except EpochalError as error:
            self.problems.append(f"{place}: {error}")


async def open_what_state_names(state: StateFile, source: str, *, with_network: bool = False) -> NamedFiles:
    """Open a state file's data, initial parameters and task encoder.

    Args:
        state: the state file.
        source: its name, for messages.
        with_network: whether to open data on other machines.
    """
    found = NamedFiles()
    llm = state.model.LLM
    spec = None
    if llm.architecture in ARCHITECTURES:
        spec = llm.spec
        if not llm.is_made_from_seed:
            spec = await _open_checkpoint(state, f"{source}: model.LLM.checkpoint", found, with_network=with_network)
    if spec is not None and llm.is_made_from_seed:
        lines = NamedFiles()
        with lines.collecting(source):
            check_config(state, spec)
        found.own += lines.problems
    if spec is not None and not found.problems and not found.own:
        await asyncio.to_thread(_look_at_size, state, spec, source, found)
    async with contextlib.aclosing(WorkerThread("epochal-check")) as worker:
        needs = None
        with found.collecting(source):
            vocabulary = _vocabulary_in(spec, f"{source}: model.LLM", found)
            needs = DataNeeds.of(state, vocabulary, Packing.of(state, vocabulary, worker, OWNERS))
        await _open_data(state, f"{source}: {DATA_PLACE}", needs, found, with_network=with_network)
        for at_step, place in _held_out_places(state):
            held_out = NamedFiles()
            await _open_data(at_step, f"{source}: {place}", needs, held_out, with_network=with_network)
            found.problems += held_out.problems
            found.notes += held_out.notes
    return found


def _held_out_places(state: StateFile) -> Iterator[tuple[StateFile, str]]:
    """Yield the settings with each held-out location of a state file, its changes' too, and the place of each."""
    if state.model.LLM.held_out_location is not None:
        yield state, HELD_OUT_PLACE
    for number, change in enumerate(state.changes):
        after = state.at(change.at_step)
        if any(path.startswith(HELD_OUT_PLACE) for path in change.values) and after.model.LLM.held_out_location:
            yield after, f"changes[{number}]: {HELD_OUT_PLACE}"


async def open_what_data_file_names(config: DataConfig, path: Path, state: StateFile | None) -> NamedFiles:
    """Open the folder of a `data.toml`, and check that the model of the state file, if any, can take it."""
    found = NamedFiles()
    place = f"{path}: dir"
    with found.collecting(place):
        async with (
            contextlib.aclosing(await open_described(config, path.parent)) as provider,
            contextlib.aclosing(WorkerThread("epochal-check")) as worker,
        ):
            vocabulary = None if state is None else vocabulary_of(state)
            tokenizer = None if state is None else state.model.LLM.tokenizer
            packing = None if state is None else Packing.of(state, vocabulary, worker, OWNERS)
            length = config.seq_len or (0 if state is None else state.model.LLM.max_seq_len)
            found.fingerprint = provider.fingerprint
            if length:  # what records become is a matter of the run's task encoder
                await _look(provider, place, DataNeeds(length, vocabulary, packing, LOOK_TIMEOUT_S, tokenizer), found)
            if state is not None:
                found.problems += [f"{place}: {problem}" for problem in fingerprint_problems(state, provider)]
    with found.collecting(place):
        await asyncio.to_thread(_check_manifest, path.parent / config.dir)
    return found


async def _open_checkpoint(state: StateFile, place: str, found: NamedFiles, *, with_network: bool) -> ModelSpec | None:
    """Open the run's first model as `epochal coordinator` would; return its spec, as far as it is known."""
    spec = state.model.LLM.spec
    is_local = isinstance(state.model.LLM.checkpoint, LocalCheckpoint)
    if not (with_network or is_local):
        found.notes.append(f"{place} was not opened: it is on another machine; --network opens it")
        return spec
    if lacking := _lacking_libraries(spec):
        found.notes.append(f"{place} was not opened: {lacking}")
        return spec
    with found.collecting(place):
        if is_local:
            return await asyncio.to_thread(_read_first_model, state)
        spec = await asyncio.to_thread(look_at_source, state)
        found.notes.append(f"{place} was opened, but its weights were not read; a start reads them")
        return spec
    return None


def _read_first_model(state: StateFile) -> ModelSpec:
    """Read every parameter of the run's first model, one at a time, and return its spec."""
    first = make_first_model(state, 0)
    for _ in first.parameters():
        pass
    return first.spec


def _look_at_size(state: StateFile, spec: ModelSpec, source: str, found: NamedFiles) -> None:
    """Note how large a run's model is, and which limits it exceeds, if the model is known and can be opened here."""
    if not spec.is_complete or spec.dummy or _lacking_libraries(spec):
        return
    try:
        size = ModelSize.of(spec, state.merge)
    except (InvalidInput, Unsupported):  # reported where the model is opened for its vocabulary
        return
    found.facts.append(f"{source}: {in_words(size, state)}")
    found.problems += [f"{source}: {problem}" for problem in size_problems(size, state)]
    found.notes += [f"{source}: {note}" for note in size_notes(size, state)]


def _vocabulary_in(spec: ModelSpec | None, place: str, found: NamedFiles) -> int | None:
    """Return the number of tokens of a model; None if it is not known, with the reason among what was found."""
    if spec is None:
        return None
    if lacking := _lacking_libraries(spec):
        found.notes.append(f"{place}: tokens were not compared with the vocabulary of the model: {lacking}")
        return None
    with found.collecting(place):
        return _vocabulary(spec)
    return None


def _lacking_libraries(spec: ModelSpec) -> str:
    """Return which libraries that the model needs are not installed, and what to do; "" if all are there."""
    entry = ARCHITECTURES[spec.architecture]
    missing = [] if spec.dummy else entry.missing_modules(spec)
    return f"not installed: {' and '.join(missing)}; pip install 'epochal[{entry.extra_of(spec)}]'" if missing else ""


def vocabulary_of(state: StateFile) -> int | None:
    """Return the number of tokens of the run's model, as `vocabulary_of_model`."""
    return vocabulary_of_model(state.model.LLM.spec)


def vocabulary_of_model(spec: ModelSpec) -> int | None:
    """Return the number of a model's tokens, as far as it is known on this machine.

    It is None if its config is at its checkpoint, this version or what is installed here (a library, a trainer's
    package) does not train it, or it takes every token.
    """
    size = (spec.hf or {}).get("vocab_size")
    if spec.architecture in HF_ARCHITECTURES and type(size) is int and not spec.dummy:
        return size  # named by the file itself, so that a data server needs neither torch nor the time to import it
    with contextlib.suppress(InvalidInput, Unsupported):
        return _vocabulary(spec)
    return None


def _vocabulary(spec: ModelSpec) -> int | None:
    return open_model(spec).vocabulary if spec.is_complete and not spec.dummy else None


def fingerprint_problems(state: StateFile, provider: DataProvider) -> list[str]:
    """Return in words, as the only item, that the state file pins other data than the provider's; else nothing."""
    pinned = state.config.data_fingerprint
    if pinned in (None, provider.fingerprint):
        return []
    found = description_of(provider)
    described = (
        "" if found is None else f" (a pin does not say which data it means; these are {dataset_in_words(found)})"
    )
    return [f"these data have fingerprint {provider.fingerprint}; config.data_fingerprint pins {pinned}{described}"]


def data_names(folder: Path, suffixes: tuple[str, ...] = DATA_SUFFIXES) -> list[str]:
    """Return the names of the files in a folder, and in those below it, that a manifest lists."""
    return sorted(name for name, _ in files_below(folder) if name.endswith(suffixes))


async def _open_data(
    state: StateFile, place: str, needs: DataNeeds | None, found: NamedFiles, *, with_network: bool
) -> None:
    """Open the run's data, or those held out, and inspect some of them if the run's needs are known."""
    is_held_out = place.endswith(HELD_OUT_PLACE)
    location, spec = run_data(state, held_out=is_held_out)
    with found.collecting(place):
        reason = await asyncio.to_thread(_why_not_opened, location, with_network)
        if reason:
            found.notes.append(f"{place} was not opened: {reason}")
            return
        packs, split = state.model.LLM.data_type.reads_records, HELD_OUT_SPLIT if is_held_out else TRAINING_SPLIT
        options = OpenOptions(state.run_id, None, OWNERS, packs=packs, split=split)
        async with contextlib.aclosing(await open_location(location, spec, options)) as provider:
            found.fingerprint = provider.fingerprint
            if not is_held_out:
                found.problems += [f"{place}: {problem}" for problem in fingerprint_problems(state, provider)]
            if needs is not None:
                await _look(provider, place, needs, found)
    if isinstance(location, Local):
        with found.collecting(place):
            await asyncio.to_thread(_check_manifest, Path(location.path))


def _why_not_opened(location: AnyLocation, with_network: bool) -> str:
    """Return why a location is not opened; "" if it is. A mix with a source that is not opened is not opened."""
    if isinstance(location, Server):
        return "its data server serves only members; name the server's own file with --data-config"
    if isinstance(location, Local | DummyData) or (isinstance(location, Preprocessed) and "://" not in location.path):
        return ""
    if isinstance(location, WeightedHttp) and "://" not in location.place:
        path = Path(location.place)
        sources = parse_mix(mix_file(path), str(path)).sources
        reasons = [_why_not_opened(source.location, with_network) for source in sources]
        return next(filter(None, reasons), "")
    return "" if with_network else "it is on another machine; --network opens it"


async def _look(provider: DataProvider, place: str, needs: DataNeeds, found: NamedFiles) -> None:
    findings = await look_at_data(provider, needs)
    found.problems += [f"{place}: {problem}" for problem in findings.problems]
    found.notes += [f"{place}: {note}" for note in findings.notes]


def _check_manifest(folder: Path) -> None:
    """Raise `CorruptData` unless the folder's manifest, if it has one, lists its files with their sizes."""
    if (folder / MANIFEST_NAME).is_file():
        verify_folder(folder, data_names(folder, TOKEN_DATA_SUFFIXES), with_hashes=False)
