"""Packs marked samples into rows, and writes them as the parquet files that runs read.

The order of the samples is a keyed permutation: rows are read in the files' order, so they are shuffled here. The rule
kept here: the files depend on the samples alone.
"""

import itertools
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from epochal.batching.packing.packer import Packer, packed
from epochal.batching.packing.samples import RawSample
from epochal.batching.packing.task_encoder import EncoderContext, TaskEncoder
from epochal.data_providers.encoding import MAX_NAME_CHARS, TokenEncoding
from epochal.data_providers.protocol import IGNORED_LABEL, TokenBatch
from epochal.data_providers.sources.manifest import hashed_file
from epochal.runtime.os_errors import reason_of
from epochal.state.config.state_file import PackingConfig
from epochal.state.errors import EpochalError, InvalidInput
from epochal.state.permutation import permutation_key, permute
from epochal.tools.prepare.chats import LAST, LEARNT, MARKED_TOKEN_BYTES, TOKEN_BITS
from epochal.tools.prepare.prepare_options import PrepareOptions
from epochal.tools.prepare.publishing import TRAIN, Finished
from epochal.tools.prepare.sources import Sources
from epochal.tools.row_files import part_name, write_rows

ROWS_OF_A_FILE = 4096
SAMPLES_TOGETHER = 4096
TOKENS_TOGETHER = 1024**2
_DOMAIN = b"epochal/prepare/chat-order/v1"
Marked = npt.NDArray[np.uint32]


class MarkedSamples:
    """The samples of a split, in shards that are mapped and not read. Memory: eight bytes for each sample."""

    def __init__(self, shards: Sequence[Path]) -> None:
        self._shards = [np.memmap(path, "<u4", "r") for path in shards]
        self._sizes = np.concatenate(([0], np.cumsum([len(shard) for shard in self._shards], dtype=np.int64)))
        ends = [
            np.flatnonzero(shard & LAST) + 1 + start for shard, start in zip(self._shards, self._sizes, strict=False)
        ]
        self._offsets = np.concatenate([np.zeros(1, np.int64), *ends])
        self.largest_token = max((_largest_in(shard) for shard in self._shards if len(shard)), default=0)

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def sample(self, number: int) -> Marked:
        """Return the marked tokens of a sample, which may lie in two shards."""
        start, stop = int(self._offsets[number]), int(self._offsets[number + 1])
        parts: list[Marked] = []
        while start < stop:
            at = int(np.searchsorted(self._sizes, start, side="right")) - 1
            part = self._shards[at][start - self._sizes[at] : stop - self._sizes[at]]
            parts.append(part)
            start += len(part)
        return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _largest_in(shard: Marked) -> int:
    parts = (shard[first : first + TOKENS_TOGETHER] & TOKEN_BITS for first in range(0, len(shard), TOKENS_TOGETHER))
    return max(int(part.max()) for part in parts)


def samples_folder(working: Path) -> Path:
    """Return the folder of the marked samples of a preparation, which is made if it does not exist."""
    folder = working / "samples"
    folder.mkdir(exist_ok=True)
    return folder


def check_are_records(sources: Sources) -> None:
    """Raise `InvalidInput` if a source holds no JSON lines."""
    for file in sources.files:
        if file.kind != "records":
            raise InvalidInput(
                f"{file.name} is no JSON lines; --chat reads .jsonl, also as .gz or .zst", file=file.name
            )


def packed_into_rows(made: Finished, working: Path, options: PrepareOptions, show: Callable[[int], None]) -> Finished:
    """Pack the marked samples of each split into rows; what an earlier call has written is discarded. Blocks.

    Args:
        made: the preparation, with the entries of the samples' shards.
        working: its folder, which gets a folder of each split.
        options: of the preparation.
        show: called with the number of samples that were packed, now and then.

    Returns:
        The preparation with the entries of the files of rows, each with its number of `rows`, and in its counts how
        many conversations were `truncated`, `split` or `dropped`.

    Raises:
        InvalidInput: pyarrow is not installed.
        EpochalError: the disk is full or fails; the same preparation can continue later.
    """
    config = PackingConfig(oversized=options.oversized)
    entries: dict[str, dict[str, dict[str, Any]]] = {}
    counts = dict.fromkeys(("truncated", "split", "dropped"), 0)
    before = 0
    try:
        for split, shards in made.entries.items():
            folder = working / split
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            samples = MarkedSamples([samples_folder(working) / split / name for name in sorted(shards)])
            packer = Packer(config, TaskEncoder(EncoderContext("epochal prepare", options.seq_len)))
            shuffled = _raw(samples, made.seed if split == TRAIN else None)
            paths = (folder / part_name(number, split) for number in itertools.count())
            entries[split] = _written(packer, shuffled, paths, show, before)
            _name_encoding(entries[split], made.content["tokenizer"], samples.largest_token)
            before += len(samples)
            counts = {name: number + getattr(packer.counts, name) for name, number in counts.items()}
    except OSError as error:
        place = error.filename or working
        raise EpochalError(f"{place} cannot be written: {reason_of(error)}", path=str(place)) from error
    found = {split: files for split, files in entries.items() if files}
    return Finished(made.content, made.counts | counts, found)


def _name_encoding(entries: dict[str, dict[str, Any]], tokenizer: Mapping[str, Any], largest_token: int) -> None:
    """Note in each file's entry how its tokens were made."""
    name, sha256 = tokenizer["name"][:MAX_NAME_CHARS], tokenizer["sha256"]
    for entry in entries.values():
        entry["encoding"] = TokenEncoding(name, sha256, MARKED_TOKEN_BYTES, largest_token).to_plain()


def _written(
    packer: Packer, samples: Iterator[RawSample], paths: Iterator[Path], show: Callable[[int], None], before: int
) -> dict[str, dict[str, Any]]:  # fmt: skip
    """Write rows in files of `ROWS_OF_A_FILE`; return the manifest's entries, with the number of rows and tokens."""
    entries: dict[str, dict[str, Any]] = {}
    rows: list[TokenBatch] = []

    def write() -> None:
        path = next(paths)
        write_rows(path, rows)
        tokens = sum(len(row.input_ids) for row in rows)
        entries[path.name] = {**hashed_file(path), "rows": len(rows), "tokens": tokens}
        rows.clear()
        show(before + packer.counts.samples)

    for row in packed(packer, samples):
        if row.sample_count:
            rows.append(row)
        if len(rows) == ROWS_OF_A_FILE:
            write()
    if rows:
        write()
    return entries


def _raw(samples: MarkedSamples, seed: bytes | None) -> Iterator[RawSample]:
    total = len(samples)
    key = None if seed is None else permutation_key(seed, _DOMAIN, 0)
    for first in range(0, total, SAMPLES_TOGETHER):
        numbers: npt.NDArray[Any] = np.arange(first, min(first + SAMPLES_TOGETHER, total), dtype=np.uint64)
        for number in (numbers if key is None else permute(key, total, numbers)).tolist():
            marked = samples.sample(number)
            tokens = marked & TOKEN_BITS
            labels = np.where(marked & LEARNT, tokens.astype(np.int64), IGNORED_LABEL)
            yield RawSample(number, tokens.astype("<u4", copy=False), labels)
