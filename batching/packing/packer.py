"""Packs samples of different lengths into rows of one length.

A `Packer` holds a pool of encoded samples. Its caller alternates between `take`, which fills the pool, and `next_row`,
which takes a row out of it; after `finish` the rows empty the pool. A row is made only from a full or a finished pool,
so the rows depend only on the samples and their order, not on when they arrive.

The rules kept here: the pool never exceeds its bound; every sample is returned exactly once, or counted under the
policy that left it out; and each row has the number of source samples that are finished with it, so that the run's
ledger counts samples, not rows. A packer is saved as sample indices, and restored to exactly the rows that remained.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import partial
from typing import Any, Self, TypeVar

import numpy as np

from epochal.batching.packing.row_choice import fill_row, tail_rows
from epochal.batching.packing.samples import NO_INDEX, EncodedSample, RawSample, check_encoded, padded_row, part_of
from epochal.batching.packing.task_encoder import SkipSample, TaskEncoder
from epochal.data_providers.protocol import CorruptData, TokenBatch
from epochal.state.config.state_file import PackingConfig
from epochal.state.errors import InvalidInput, TrainerFailed
from epochal.state.wire import document_digest

log = logging.getLogger(__name__)

STATE_FORMAT = "epochal/packer/v1"

T = TypeVar("T")

_EMPTY_ROW = TokenBatch(np.empty(0, "<u2"), np.zeros(1, np.int64))


@dataclass(slots=True)
class PackingCounts:
    """Numbers of samples so far. `samples` were taken; `finished` were completely returned, in one or more rows.

    `skipped` (by `SkipSample`), `failed`, `empty` and `dropped` samples are in no row. `truncated` and `split` count
    samples that were longer than a row. `rows` and `tokens` count what was returned.
    """

    samples: int = 0
    finished: int = 0
    skipped: int = 0
    failed: int = 0
    empty: int = 0
    dropped: int = 0
    truncated: int = 0
    split: int = 0
    rows: int = 0
    tokens: int = 0


class Packer:
    """Packs one stream of samples into rows.

    Args:
        config: the run's `[packing]`.
        encoder: encodes samples, and turns the samples of a row into a batch.

    Raises:
        InvalidInput: method and encoder do not go together; the fault of the state file's author.
    """

    def __init__(self, config: PackingConfig, encoder: TaskEncoder) -> None:
        if (config.method == "encoder") != encoder.slices_itself:
            raise InvalidInput(
                f"{encoder.name} has {'a' if encoder.slices_itself else 'no'} slice_batch, and packing.method is "
                f'"{config.method}"; allowed: "encoder" with a slice_batch, and any other without'
            )
        self.counts = PackingCounts()
        self._config = config
        self._encoder = encoder
        self._row_tokens = encoder.context.row_tokens
        self._pool_size = 1 if config.method == "padded" else config.pool_size
        self._pool: list[EncodedSample] = []
        self._lengths: list[int] = []  # the pool's
        self._pending: list[list[EncodedSample]] = []
        self._pending_samples = 0
        self._loose = 0  # samples that were left out since the last row
        self._finished = False

    @property
    def held(self) -> int:
        """Number of samples in the pool, and in rows that are decided but not returned yet."""
        return len(self._pool) + self._pending_samples

    @property
    def wanted(self) -> int:
        """Number of samples that `take` would encode now; 0 after `finish`."""
        return 0 if self._finished else self._pool_size - self.held

    @property
    def settings(self) -> dict[str, Any]:
        """Everything besides the samples on which the rows depend, as plain JSON values; part of the saved state."""
        return {
            **self._config.model_dump(mode="json"),
            "task_encoder": self._encoder.name,
            "task_encoder_version": self._encoder.version,
            **asdict(self._encoder.context),
        }

    @property
    def token_count(self) -> int:
        """Number of tokens in the rows so far, without padding."""
        return self.counts.tokens

    def take(self, samples: Iterator[RawSample]) -> bool:
        """Encode samples into the pool until it is full. Return whether it is; False if the samples ended before.

        Raises:
            CorruptData: a sample, the context's `data_index`, is too long and `oversized` is "error", or cannot be
                encoded and no more failures are tolerated.
        """
        wanted = self.wanted
        while wanted:
            raw = next(samples, None)
            if raw is None:
                return False
            self.counts.samples += 1
            encoded = self._admit(raw)
            if encoded is None:
                self._loose += 1
                continue
            wanted -= 1
            self._pool.append(encoded)
            self._lengths.append(len(encoded.input_ids))
        return True

    def finish(self) -> None:
        """Note that no sample will follow: the next rows empty the pool."""
        self._finished = True

    def next_row(self) -> TokenBatch | None:
        """Return the next row, a batch of one packed sample. Return None if samples are wanted first, or none are left.

        If samples were left out after the last row, a last batch without a row has their number as its `source_count`.

        Raises:
            TrainerFailed: the task encoder's `slice_batch` or `batch` failed, or broke its contract.
        """
        if self.wanted:
            return None
        if not self.held:
            if not self._loose or not self._finished:
                return None
            left_out, self._loose = self._loose, 0
            return _EMPTY_ROW.finishing(left_out)
        samples = self._next_samples()
        row = self._made(samples)
        splits = self._config.oversized == "split"
        finished = sum(not self._has_rest(sample) for sample in samples) if splits else len(samples)
        source_count, self._loose = finished + self._loose, 0
        self.counts.finished += finished
        self.counts.rows += 1
        return row.finishing(source_count)

    def state(self) -> dict[str, Any]:
        """Return the packer's state for `restored`, as plain JSON values: indices of samples, not tokens.

        Raises:
            InvalidInput: the task encoder's `encode_sample` is not stateless; the fault of its author.
        """
        if not self._encoder.is_stateless:
            raise InvalidInput(
                f"{self._encoder.name}.encode_sample is not marked @stateless, so its samples cannot be encoded again"
            )

        def places(samples: Iterable[EncodedSample]) -> list[list[int]]:
            return [[sample.index, sample.start] for sample in samples]

        return {
            "format": STATE_FORMAT,
            "settings": self.settings,
            "settings_sha256": document_digest(self.settings),
            "pool": places(self._pool),
            "pending": [places(row) for row in self._pending],
            "left_out": self._loose,
            "finished": self._finished,
            "counts": asdict(self.counts),
        }

    @classmethod
    def restored(
        cls, config: PackingConfig, encoder: TaskEncoder, state: Mapping[str, Any], samples: Iterable[RawSample]
    ) -> Self:
        """Return a packer that continues where another one was saved.

        Args:
            config, encoder: as they were then.
            state: what `state` returned.
            samples: the samples of `indices_held(state)`, in any order.

        Raises:
            InvalidInput: the configuration has changed (the message names the differences), the state is damaged, or
                samples are missing.
        """
        packer = cls(config, encoder)
        _check_same_settings(state, packer.settings)
        try:
            packer._take_over(state, {raw.index: raw for raw in samples})
        except (KeyError, TypeError, ValueError) as error:
            raise _damaged(error) from error
        return packer

    def _take_over(self, state: Mapping[str, Any], raws: Mapping[int, RawSample]) -> None:
        def held(places: Sequence[Sequence[int]]) -> list[EncodedSample]:
            found: list[EncodedSample] = []
            for index, start in places:
                encoded = self._admit(raws[index])
                if encoded is None:
                    raise InvalidInput(f"data index {index} was in the pool and is now left out")
                found.append(part_of(encoded, start, len(encoded)))
            return found

        self._pool = held(state["pool"])
        self._lengths = [len(sample) for sample in self._pool]
        self._pending = [held(row) for row in state["pending"]]
        self._pending_samples = sum(map(len, self._pending))
        self._loose = int(state["left_out"])
        self._finished = bool(state["finished"])
        self.counts = PackingCounts(**{field.name: int(state["counts"][field.name]) for field in fields(PackingCounts)})

    def _admit(self, raw: RawSample) -> EncodedSample | None:
        """Return the sample, encoded and with an allowed length; None if it is left out."""
        encoder = self._encoder
        encoder.current_sample_index = raw.index
        try:
            encoded = encoder.encode_sample(raw)
            check_encoded(encoded, encoder.context.vocabulary)
        except SkipSample:
            self.counts.skipped += 1
            return None
        except Exception as error:  # the encoder is the user's own and may raise anything
            self._count_failure(raw.index, error)
            return None
        length = len(encoded.input_ids)
        if not length:
            self.counts.empty += 1
            return None
        if encoded.index != NO_INDEX:  # the encoder returned the same object before; each sample has its own
            encoded = EncodedSample(encoded.input_ids, encoded.labels, encoded.sequence_lengths)
        encoded.index, encoded.start = raw.index, 0
        return encoded if length <= self._row_tokens else self._fitted_to_row(encoded)

    def _fitted_to_row(self, encoded: EncodedSample) -> EncodedSample | None:
        match self._config.oversized:
            case "truncate":
                self.counts.truncated += 1
                return part_of(encoded, 0, self._row_tokens)
            case "split":
                self.counts.split += 1
                return encoded  # rows are cut off its front, one by one
            case "drop":
                self.counts.dropped += 1
                return None
        raise CorruptData(
            f"data index {encoded.index} has {len(encoded)} tokens, a row {self._row_tokens}; packing.oversized is "
            '"error"; allowed: "truncate", "split" or "drop" to continue',
            data_index=encoded.index,
        )

    def _count_failure(self, index: int, error: Exception) -> None:
        self.counts.failed += 1
        shown = f"data index {index}: {self._encoder.name}.encode_sample: {type(error).__name__}: {error}"
        if isinstance(error, CorruptData):
            shown = error.message
        if self.counts.failed > self._config.max_failed_samples:
            tolerated = f" (packing.max_failed_samples is {self._config.max_failed_samples})"
            raise CorruptData(shown + tolerated, data_index=index) from error
        log.warning("sample_failed", extra={"data_index": index, "reason": shown})

    def _next_samples(self) -> list[EncodedSample]:
        """Take the samples of the next row out of the pool."""
        if self._pending:
            row = self._pending.pop(0)
            self._pending_samples -= len(row)
            return row
        if self._config.oversized == "split" and max(self._lengths) > self._row_tokens:
            return [self._head_of_oversized()]
        if self._config.method != "encoder" and not self._finished:
            chosen = fill_row(self._lengths, self._row_tokens)
            row = [self._pool[position] for position in chosen]
            for position in reversed(chosen):
                del self._pool[position], self._lengths[position]
            return row
        self._pending = self._sliced()
        self._pending_samples = sum(map(len, self._pending))
        return self._next_samples()

    def _head_of_oversized(self) -> EncodedSample:
        """Cut a full row off the oldest sample that is longer than one; the rest stays in the pool."""
        position = next(at for at, length in enumerate(self._lengths) if length > self._row_tokens)
        sample = self._pool[position]
        self._pool[position] = part_of(sample, self._row_tokens, len(sample))
        self._lengths[position] -= self._row_tokens
        return part_of(sample, 0, self._row_tokens)

    def _sliced(self) -> list[list[EncodedSample]]:
        """Return the pool as rows, in order; samples that are in no row stay in the pool."""
        pool, encoder = self._pool, self._encoder
        if self._config.method != "encoder":
            rows = [[pool[position] for position in row] for row in tail_rows(self._lengths, self._row_tokens)]
            self._pool, self._lengths = [], []
            return rows
        encoder.current_sample_index = pool[0].index
        answer = self._asked("slice_batch", partial(encoder.slice_batch, list(pool)))
        if not isinstance(answer, Iterable):
            raise TrainerFailed(f"{encoder.name}.slice_batch returned {answer!r}; allowed: a list of lists of samples")
        # Both may be generators, which run the encoder's code and can be iterated only once.
        rows = self._asked("slice_batch", lambda: [list(row) for row in answer])
        self._pool = _left_in(pool, rows, self._row_tokens, encoder.name)
        self._lengths = [len(sample) for sample in self._pool]
        return rows

    def _made(self, samples: list[EncodedSample]) -> TokenBatch:
        encoder = self._encoder
        encoder.current_sample_index = samples[0].index
        row = self._asked("batch", partial(encoder.batch, samples))
        if not isinstance(row, TokenBatch) or row.sample_count != 1 or len(row.input_ids) > self._row_tokens:
            found = f"{row.sample_count} samples, {len(row.input_ids)} tokens" if isinstance(row, TokenBatch) else row
            raise TrainerFailed(
                f"{encoder.name}.batch returned {found}; allowed: a TokenBatch of one sample of at most "
                f"{self._row_tokens} tokens"
            )
        self.counts.tokens += len(row.input_ids)
        return row if self._config.method != "padded" else padded_row(row, self._row_tokens)

    def _asked(self, method: str, call: Callable[[], T]) -> T:
        try:
            return call()
        except Exception as error:  # the encoder is the user's own and may raise anything
            raise TrainerFailed(f"{self._encoder.name}.{method} failed: {type(error).__name__}: {error}") from error

    def _has_rest(self, sample: EncodedSample) -> bool:
        """Return whether the pool holds a later part of the same sample, because it is being split."""
        return any(other.index == sample.index and other.start > sample.start for other in self._pool)


def packed(packer: Packer, samples: Iterator[RawSample]) -> Iterator[TokenBatch]:
    """Yield all rows of a stream of samples. Raises what `Packer.take` and `next_row` raise."""
    while True:
        if not packer.take(samples):
            packer.finish()
        row = packer.next_row()
        if row is not None:
            yield row
        elif not packer.wanted:
            return


def _left_in(
    pool: Sequence[EncodedSample], rows: list[list[EncodedSample]], row_tokens: int, name: str
) -> list[EncodedSample]:
    """Return the samples of the pool that are in no row; `TrainerFailed` if the rows break `slice_batch`'s contract."""
    places = {id(sample): sample for sample in pool}
    if not any(rows) or not all(rows):
        raise TrainerFailed(f"{name}.slice_batch returned {'an empty row' if rows else 'no row'} for a full pool")
    for row in rows:
        for sample in row:
            if places.pop(id(sample), None) is None:
                shown = sample.index if isinstance(sample, EncodedSample) else repr(sample)
                raise TrainerFailed(f"{name}.slice_batch returned data index {shown} twice, or it is not of the pool")
        if sum(map(len, row)) > row_tokens:
            raise TrainerFailed(f"{name}.slice_batch made a row of {sum(map(len, row))} tokens; at most {row_tokens}")
    return list(places.values())


def indices_held(state: Mapping[str, Any]) -> list[int]:
    """Return the data indices of the samples that `Packer.restored` needs, ascending; `InvalidInput` if damaged."""
    try:
        return sorted({int(index) for places in (state["pool"], *state["pending"]) for index, _ in places})
    except (KeyError, TypeError, ValueError) as error:
        raise _damaged(error) from error


def _check_same_settings(state: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
    """Raise `InvalidInput` unless the state was saved under these settings; the message names those that differ."""
    if state.get("format") != STATE_FORMAT:
        raise InvalidInput(f"a packer's saved state has format {state.get('format')!r}; allowed: {STATE_FORMAT!r}")
    if state.get("settings_sha256") == document_digest(dict(settings)):
        return
    before = state.get("settings")
    before = before if isinstance(before, Mapping) else {}
    changed = ", ".join(
        f"{name} was {before.get(name)!r} and is {settings.get(name)!r}"
        for name in sorted({*before, *settings})
        if before.get(name) != settings.get(name)
    )
    raise InvalidInput(f"a packer cannot continue under another configuration: {changed or 'its digest differs'}")


def _damaged(error: Exception) -> InvalidInput:
    return InvalidInput(f"a packer's saved state is damaged: {type(error).__name__}: {error}")
