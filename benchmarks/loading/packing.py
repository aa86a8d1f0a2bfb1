"""Packing: how full rows become, how fast they are made, and how much faster a trainer is with them."""

import argparse
import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.figures import Figure, per_second
from benchmarks.plots import line_plot
from epochal.batching.packing.packer import Packer, packed
from epochal.batching.packing.row_choice import best_fit_decreasing, fill_row
from epochal.batching.packing.samples import RawSample, raw_samples
from epochal.batching.packing.task_encoder import EncoderContext, TaskEncoder
from epochal.batching.round_plan import RoundPlan
from epochal.data_providers.protocol import TokenBatch, Tokens
from epochal.runtime.worker_thread import InlineWorker
from epochal.state.config.model_table import AdamW, NgramConfig
from epochal.state.config.state_file import PackingConfig
from epochal.state.intervals import BatchId
from epochal.trainers.learner_trainer import LearnerTrainer
from epochal.trainers.ngram.learner import NgramModel
from epochal.trainers.protocol import TrainedRound

ROW = 4096
MEAN, SIGMA = 926, 0.8
"""Of the log-normal lengths, which are cut to at most a row."""
SAMPLES = 20_000
TRAINED = 512
LOCAL_STEPS = 16
ASSIGNMENTS = (8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)


def lengths_of(count: int, seed: int = 0) -> list[int]:
    """Return log-normal lengths of mean `MEAN`."""
    drawn = np.random.default_rng(seed).lognormal(np.log(MEAN) - SIGMA**2 / 2, SIGMA, count)
    lengths: list[int] = np.clip(drawn.astype(int), 1, ROW).tolist()
    return lengths


def delivered(lengths: list[int], text: Tokens) -> TokenBatch:
    """Return samples of these lengths from a text's bytes, as a provider delivers them."""
    offsets = np.concatenate(([0], np.cumsum(lengths)))
    return TokenBatch(np.resize(text, offsets[-1]), offsets)


def samples_of(batch: TokenBatch) -> Iterator[RawSample]:
    """Yield a batch's samples, with the data indices 0, 1, 2, …"""
    return raw_samples(batch, iter(range(batch.sample_count)))


def packer_of(method: str, pool_size: int) -> Packer:
    """Return a packer of bytes into rows of `ROW`."""
    config = PackingConfig.model_validate({"method": method, "pool_size": pool_size})
    return Packer(config, TaskEncoder(EncoderContext("benchmark", ROW, 256)))


def _fill(lengths: list[int], method: str, pool_size: int) -> float:
    """Return the percentage of the rows' tokens that are not padding."""
    packer = packer_of(method, pool_size)
    rows = sum(1 for _ in packed(packer, samples_of(delivered(lengths, np.zeros(1, "<u2")))))
    return 100 * sum(lengths) / (rows * ROW)


def _flushed(lengths: list[int], pool_size: int) -> float:
    """Return the percentage if the whole pool is packed by best-fit-decreasing before it is filled again."""
    pools = [lengths[start : start + pool_size] for start in range(0, len(lengths), pool_size)]
    return 100 * sum(lengths) / (sum(len(best_fit_decreasing(pool, ROW)) for pool in pools) * ROW)


def _rows_by(choose: Callable[[list[int], int], list[int]], lengths: list[int], pool_size: int) -> int:
    """Return the number of rows when `choose` takes each from a pool that is refilled after it."""
    waiting = iter(lengths)
    pool: list[int] = []
    rows = 0
    while True:
        while len(pool) < pool_size and (length := next(waiting, 0)):
            pool.append(length)
        if not pool:
            return rows
        for position in sorted(choose(pool, ROW), reverse=True):
            del pool[position]
        rows += 1


def _first_of_all(pool: list[int], row: int) -> list[int]:
    """Pack the whole pool and return the first row: the naive choice."""
    return best_fit_decreasing(pool, row)[0]


def _drain(rows: Iterator[TokenBatch]) -> None:
    for _ in rows:
        pass


def measure() -> list[Figure]:
    """Measure fill, speed, and a packed beside a padded round."""
    lengths = lengths_of(SAMPLES)
    some = lengths[:4000]
    text = _text()
    figures = [
        Figure(
            f"rows filled, pool of {pool}",
            _fill(lengths, "rolling", pool),
            "%",
            target,
            _flushed(lengths, pool),
            "best-fit-decreasing that empties its pool",
        )
        for pool, target in ((64, ">= 99 %"), (256, ">= 99.7 %"))
    ]
    decided = per_second(lambda: _rows_by(fill_row, lengths, 256), SAMPLES, 5)
    naive = per_second(lambda: _rows_by(_first_of_all, some, 256), len(some), 3)
    batch = delivered(lengths, text)
    made = per_second(lambda: _drain(packed(packer_of("rolling", 256), samples_of(batch))), SAMPLES, 5)
    name = "rows decided, pool of 256"
    return [
        *figures,
        Figure(name, decided, "samples/s", ">= 100,000", naive, "the whole pool packed again for every row"),
        Figure("rows made: encoded, decided, with labels, positions and documents", made, "samples/s", ">= 100,000"),
        *_trained(lengths_of(TRAINED, seed=1), text),
    ]


def _trained(lengths: list[int], text: Tokens) -> list[Figure]:
    packed_rate, packed_round = _train(lengths, text, "rolling")
    padded_rate, padded_round = _train(lengths, text, "padded")
    assert packed_round.token_count == padded_round.token_count
    assert packed_round.loss is not None
    loss, target = packed_round.loss, "the same within noise"
    return [
        Figure(
            "a round trained on packed rows, one BLAS thread",
            packed_rate,
            "tokens/s",
            "",
            padded_rate,
            "the same samples, padded",
        ),
        Figure("its mean loss", loss, "nats", target, padded_round.loss, "of the padded round"),
    ]


def _train(lengths: list[int], text: Tokens, method: str) -> tuple[float, TrainedRound]:
    """Train the embedded model for one round; return the predicted tokens per second, and the round."""
    optimizer = AdamW(betas=(0.9, 0.95), weight_decay=0.0, eps=1e-8, clip_grad_norm=1.0)
    trainer = LearnerTrainer(NgramModel(NgramConfig()), optimizer, False, InlineWorker())
    batch = delivered(lengths, text)
    plan = RoundPlan(1, (BatchId(0, len(lengths) - 1),), 1, (0.003,) * LOCAL_STEPS)

    async def rows() -> AsyncIterator[TokenBatch]:
        for row in packed(packer_of(method, 256), samples_of(batch)):
            yield row

    async def train() -> tuple[float, TrainedRound]:
        start = await trainer.initial_parameters(bytes(32))
        begin_s = time.perf_counter()
        trained = await trainer.train(plan, start, rows())
        return trained.token_count / (time.perf_counter() - begin_s), trained

    return asyncio.run(train())


def _text() -> Tokens:
    """Return text that every machine has: a module of the standard library."""
    return np.frombuffer(Path(argparse.__file__).read_bytes(), np.uint8).astype("<u2")


def plots() -> dict[str, str]:
    """Return this benchmark's plots, SVG by name: each packer's fill by the number of samples in a data assignment."""
    fills = {
        f"{name}, pool of {pool}": [(size, _mean_fill(size, fill, pool)) for size in ASSIGNMENTS]
        for name, fill in (("rolling", partial(_fill, method="rolling")), ("best fit decreasing", _flushed))
        for pool in (64, 256)
    }
    return {"packing-fill": line_plot(fills, "samples of a data assignment", "rows filled, %")}


def _mean_fill(size: int, fill: Callable[..., float], pool: int) -> float:
    """Return the mean fill of assignments of this size, the more of them the smaller they are."""
    fills = [fill(lengths_of(size, seed), pool_size=pool) for seed in range(max(1, 2048 // size))]
    return sum(fills) / len(fills)
