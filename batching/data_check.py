"""Inspects some of a run's data before its first round: can the run's model take them?

A few places, evenly spaced over one pass from its first sample to its last, are read and prepared as in a round. The
rules kept here: what is wrong at one place alone is a note, because a run sets such data aside by itself (quarantine);
what is wrong at several places is wrong with the dataset. At most about `LOOK_BYTES` are read, however large it is.
"""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from epochal.batching.chunking.datum_records import DatumCounts
from epochal.batching.packing.packed_batches import Packing
from epochal.data_providers.encoding import TokenEncoding, encoding_problems, mixed_tokenizers
from epochal.data_providers.fetcher import check_vocabulary
from epochal.data_providers.mixes.mixture import PERIOD
from epochal.data_providers.mixes.weighted import WeightedDataProvider
from epochal.data_providers.protocol import (
    CorruptData,
    DataProvider,
    OutOfRange,
    Rejected,
    SourceUnavailable,
    TokenBatch,
)
from epochal.data_providers.providers.preprocessed import PreprocessedDataProvider
from epochal.data_providers.providers.ranged import TokenFilesProvider
from epochal.data_providers.providers.record_files import RecordsDataProvider
from epochal.data_providers.sources.byte_source import MAX_CONCURRENT_READS, run_bounded
from epochal.data_providers.tcp.data_client import TcpDataProvider
from epochal.state.config.model_table import DataType
from epochal.state.config.state_file import StateFile
from epochal.state.errors import DataError, EpochalError, TrainerFailed
from epochal.state.intervals import DataIds

LOOK_BYTES = 4 * 1024**2
"""Approximate number of bytes of tokens that are read, of all sources of a mix together."""
MAX_PLACES = 8
"""Maximum number of places of a dataset that are read."""
MAX_PLACE_SAMPLES = 32
"""Maximum number of neighbouring samples that are read at a place."""
SYSTEMATIC_PLACES = 2
"""Number of places with tokens outside the vocabulary from which on the dataset is refused as a whole."""
_LARGEST_TOKEN_BYTES = 4
ADVICE = (
    "Encode the data for the run's model (the embedded one reads bytes, 0 to 255), name the right ones, or correct the "
    "size of a token (docs/data-providers.md, Vocabulary)"
)
IMAGES_ADVICE = "Correct the records (docs/data-providers.md, Text and images), or name the right data"


@dataclass(frozen=True, slots=True)
class DataNeeds:
    """The requirements of a run on its data.

    Attributes:
        sequence_length: tokens of a sample; packed samples have at most as many.
        vocabulary: number of the model's tokens; None to accept any token.
        packing: packs the run's samples; None if each sample is a row.
        timeout_s: seconds for the answer of one place.
        tokenizer: SHA-256 of the run's tokenizer, in hex; None if the run names none.
        advice: what to do about data that the model cannot take.
    """

    sequence_length: int
    vocabulary: int | None
    packing: Packing | None
    timeout_s: float
    tokenizer: str | None = None
    advice: str = ADVICE

    @classmethod
    def of(cls, state: StateFile, vocabulary: int | None, packing: Packing | None) -> "DataNeeds":
        """Return the needs of the run of a state file."""
        llm, timeout_s = state.model.LLM, state.client.fetch_timeout_s
        advice = IMAGES_ADVICE if llm.data_type is DataType.MULTIMODAL else ADVICE
        return cls(llm.max_seq_len, vocabulary, packing, timeout_s, llm.tokenizer, advice)


@dataclass
class DataFindings:
    """The findings of an inspection of some of a run's data, each a sentence.

    Attributes:
        problems: why the run's model cannot be trained on these data.
        notes: what is suspicious, or wrong with a small part.
        largest_token: of the tokens that were inspected; None if there were none.
        images: content of the samples of text and images that were inspected.
    """

    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    largest_token: int | None = None
    images: DatumCounts = field(default_factory=DatumCounts)

    def add(self, other: "DataFindings", name: str) -> None:
        """Take over the findings about one source, called by its name."""
        self.problems += [f"{name}: {problem}" for problem in other.problems]
        self.notes += [f"{name}: {note}" for note in other.notes]
        if other.largest_token is not None:
            self.largest_token = max(other.largest_token, self.largest_token or 0)
        self.images += other.images


async def look_at_data(provider: DataProvider, needs: DataNeeds, budget_bytes: int = LOOK_BYTES) -> DataFindings:
    """Read and check some of a provider's data, as a round would; of a mix, some of each source.

    A data server's are not read: it did so at its start.

    Args:
        provider: delivers the data; not closed here.
        needs: the run's requirements of them.
        budget_bytes: approximate number of bytes of tokens to read. A few samples are read even if they are larger.

    Raises:
        SourceUnavailable: the source does not answer now; retry.
    """
    if isinstance(provider, TcpDataProvider):
        return DataFindings()
    if isinstance(provider, WeightedDataProvider):
        return await _look_at_mix(provider, needs, budget_bytes)
    findings = await _Look(provider, needs).take(list(_places(provider.sequence_count, needs, budget_bytes)))
    findings.problems[:0] = _encoding_problems(provider, needs)
    return findings


def _encoding_problems(provider: DataProvider, needs: DataNeeds) -> list[str]:
    size = None
    if isinstance(provider, TokenFilesProvider):
        size = provider.order.spec.token_size_bytes
    return encoding_problems(_encodings(provider), size, needs.vocabulary, needs.tokenizer)


def _encodings(provider: DataProvider) -> Mapping[str, TokenEncoding]:
    """Return how the tokens of a provider's files were made, as far as it is known, by the files' names."""
    if isinstance(provider, TokenFilesProvider | PreprocessedDataProvider):
        return provider.encodings
    return {}


async def _look_at_mix(mix: WeightedDataProvider, needs: DataNeeds, budget_bytes: int) -> DataFindings:
    found: dict[int, DataFindings] = {}

    are_records: dict[str, bool] = {}

    async def look(number: int) -> None:
        source = mix.sources[number]
        found[number] = await look_at_data(source.provider, needs, budget_bytes // len(mix.sources))
        if not found[number].problems:
            are_records[source.name] = (await source.provider.get_samples(DataIds(0, 0))).is_text

    await run_bounded(look, range(len(mix.sources)), MAX_CONCURRENT_READS)
    firsts = {
        f"source {source.name}: {name}": encoding
        for source in mix.sources
        for name, encoding in sorted(_encodings(source.provider).items())[:1]
    }
    mixed = mixed_tokenizers(firsts)
    findings = DataFindings(problems=[*_mixed_kinds(mix, are_records), *([f"the mix: {mixed}"] if mixed else [])])
    for number, source in enumerate(mix.sources):
        findings.add(found[number], f"source {source.name} of the mix")
    return findings


def _mixed_kinds(mix: WeightedDataProvider, are_records: Mapping[str, bool]) -> Iterator[str]:
    """Yield, for each phase of a mix that has records and tokens, that they do not go together."""
    for start, counts in mix.schedule:
        used = [name for name, count in counts.items() if count and name in are_records]
        records = [name for name in used if are_records[name]]
        tokens = [name for name in used if not are_records[name]]
        if records and tokens:
            yield (
                f"the mix from data index {start} on: source {records[0]} holds JSON records and source {tokens[0]} "
                "tokens; allowed: one of them in a phase"
            )


class _Look:
    """One inspection of one dataset."""

    def __init__(self, provider: DataProvider, needs: DataNeeds) -> None:
        self._provider = provider
        self._needs = needs
        self._unknown: list[str] = []
        self._unreadable: list[str] = []
        self._tokens: list[TokenBatch] = []
        self._images = DatumCounts()

    async def take(self, places: Sequence[DataIds]) -> DataFindings:
        looked_at = 0
        for place in places:
            try:
                async with asyncio.timeout(self._needs.timeout_s):
                    batch = await self._provider.get_samples(place)
            except TimeoutError as error:
                message = f"no answer for data indices {place} within {self._needs.timeout_s:g} s"
                raise SourceUnavailable(message) from error
            except (OutOfRange, Rejected):  # of a provider that serves less than others do
                continue
            except CorruptData as error:
                looked_at += 1
                self._unreadable.append(error.message)
                continue
            looked_at += 1
            if not batch.is_text:
                self._tokens.append(batch)
            await self._prepare(batch, place)
        return self._judged(looked_at)

    async def _prepare(self, batch: TokenBatch, place: DataIds) -> None:
        try:
            if self._needs.packing is not None:
                self._images += await self._needs.packing.rehearse(batch, place)
            elif batch.is_text:
                raise CorruptData(
                    'these are records, which are packed; allowed: with model.LLM.data_type = "Finetuning"'
                )
            elif self._needs.vocabulary is not None:
                check_vocabulary(batch, place.start, self._needs.vocabulary)
        except (DataError, TrainerFailed) as error:  # the latter: the run's own task encoder failed
            self._unknown.append(error.message + self._file_of(error))

    def _file_of(self, error: EpochalError) -> str:
        """Return the file of a message's data index, if the provider reads token files or records."""
        index = error.context.get("data_index")
        if index is None or not isinstance(self._provider, TokenFilesProvider | RecordsDataProvider):
            return ""
        order = self._provider.order
        (extent,) = order.locate(DataIds(index, index))
        if isinstance(self._provider, RecordsDataProvider):
            return f"; it is record {extent.sequence + 1} of {order.files[extent.file].name}"
        return f"; it is sequence {extent.sequence} of {order.files[extent.file].name}"

    def _judged(self, looked_at: int) -> DataFindings:
        values = [int(batch.input_ids.max()) for batch in self._tokens if batch.input_ids.size]
        findings = DataFindings(largest_token=max(values, default=None), images=self._images)
        for found, enough in ((self._unknown, SYSTEMATIC_PLACES), (self._unreadable, looked_at)):
            if not found:
                continue
            where = f"{found[0]} (wrong at {len(found)} of the {looked_at} places that were inspected)"
            if len(found) >= min(enough, looked_at):
                findings.problems.append(f"{where}. {self._needs.advice}")
            else:
                findings.notes.append(f"{where}; the run sets such batches aside")
        return findings


def _places(count: int | None, needs: DataNeeds, budget_bytes: int) -> Iterator[DataIds]:
    """Yield the data indices to read: evenly spaced stretches of one pass, its first and last samples among them."""
    end = PERIOD if count is None else count
    affordable = max(SYSTEMATIC_PLACES, budget_bytes // (needs.sequence_length * _LARGEST_TOKEN_BYTES))
    places = min(MAX_PLACES, affordable, end)
    length = max(1, min(MAX_PLACE_SAMPLES, affordable // places, end // places))
    for number in range(places):
        start = 0 if places == 1 else (end - length) * number // (places - 1)
        yield DataIds(start, start + length - 1)
