"""Packers, encoders and samples for the tests of packing."""

import random
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st

from epochal.batching.packing.packer import Packer
from epochal.batching.packing.samples import EncodedSample, RawSample
from epochal.batching.packing.task_encoder import EncoderContext, SkipSample, TaskEncoder, stateless
from epochal.data_providers.protocol import TokenBatch
from epochal.state.config.state_file import PackingConfig

ROW = 16
METHODS = ("rolling", "padded", "encoder")
POLICIES = ("truncate", "split", "drop")


class LongestFirst(TaskEncoder):
    """Puts one or two samples into a row, longest first, and leaves an odd one in the pool while others wait."""

    def slice_batch(self, samples: list[EncodedSample]) -> list[list[EncodedSample]]:
        samples.sort(key=len)
        rows: list[list[EncodedSample]] = []
        while samples:
            row = [samples.pop()]
            if samples and len(row[0]) + len(samples[0]) <= self.context.row_tokens:
                row.append(samples.pop(0))
            if rows and len(row) == 1 and len(row[0]) < self.context.row_tokens:
                continue  # it waits for a companion
            rows.append(row)
        return rows


def context(**changes: Any) -> EncoderContext:
    return EncoderContext("run", **{"row_tokens": ROW, "vocabulary": 256, **changes})


def encoder_for(method: str) -> TaskEncoder:
    return LongestFirst(context()) if method == "encoder" else TaskEncoder(context())


def packer_of(method: str = "rolling", encoder: TaskEncoder | None = None, **config: Any) -> Packer:
    return Packer(PackingConfig.model_validate({"method": method, **config}), encoder or encoder_for(method))


def samples_of(lengths: Sequence[int], first: int = 0) -> Iterator[RawSample]:
    """Sample *i* is *i* again and again, so that a token says whose it is."""
    for index, length in enumerate(lengths, first):
        yield RawSample(index, np.full(length, index % 256, "<u2"))


def documents(row: TokenBatch) -> list[list[int]]:
    assert row.sequence_lengths is not None
    ends = np.cumsum(row.sequence_lengths)[:-1]
    return [part.tolist() for part in np.split(row.input_ids, ends)]


def signature(rows: Sequence[TokenBatch]) -> list[Any]:
    return [(row.source_count, documents(row) if row.sample_count else []) for row in rows]


def skipping(method: str) -> TaskEncoder:
    """An encoder that leaves out samples of 3 tokens, for a method."""

    def encode_sample(self: TaskEncoder, sample: RawSample) -> EncodedSample:
        if len(sample.tokens) == 3:
            raise SkipSample
        return EncodedSample(sample.tokens)

    base = LongestFirst if method == "encoder" else TaskEncoder
    encoder: TaskEncoder = type("Skipping", (base,), {"encode_sample": encode_sample})(context())
    return encoder


lengths_strategy = st.lists(st.integers(0, 3 * ROW), max_size=60)


class Picky(TaskEncoder):
    """Skips samples of 3 tokens, fails on those of 5, and encodes the others with noise."""

    @stateless(restore_seeds=True)
    def encode_sample(self, sample: RawSample) -> EncodedSample:
        if len(sample.tokens) == 3:
            raise SkipSample
        if len(sample.tokens) == 5:
            raise ZeroDivisionError("five")
        noise = [random.randrange(100), int(np.random.randint(100)), self.rng.randrange(100)]
        return EncodedSample(np.array([sample.index, *noise], "<u2"))
