"""Local steps of the trainer on one machine, and its inner state, which is tentative until its result counts."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest

from epochal.data_providers.protocol import TokenBatch
from epochal.runtime.worker_thread import WorkerThread
from epochal.state.errors import InternalError, TrainerFailed
from epochal.state.replays.inner_states import inner_state_stream, parse_inner_state
from epochal.trainers.learner import NOT_FINITE
from epochal.trainers.learner_trainer import LearnerTrainer
from epochal.trainers.ngram import model as ngram
from epochal.trainers.ngram.learner import NgramModel
from tests.support.models.local_training import (
    ADAMW,
    SEED,
    TINY,
    arriving,
    bytes_of,
    numpy_trainer,
    plan_of,
    rounds,
    sequences_of,
)

SOON_S = 30.0
"""Much less than the arithmetic takes that is cancelled."""


async def test_numpy_loss_falls_over_rounds() -> None:
    trainer, sequences = numpy_trainer(), sequences_of(*[68] * 8)
    start = await trainer.initial_parameters(SEED)
    found, _ = await rounds(trainer, plan_of(8, 8), start, lambda: arriving(sequences), 15)
    assert found[-1].loss is not None
    assert found[-1].loss < 1.0


@pytest.mark.parametrize("kind", [np.uint16, np.uint32])
async def test_numpy_token_outside_the_vocabulary_is_refused(kind: type[np.unsignedinteger[Any]]) -> None:
    trainer, sequences = numpy_trainer(), sequences_of(4, 4, 4, 4, kind=kind)
    sequences[2][1] = 256
    with pytest.raises(TrainerFailed, match="token 256; the model knows bytes only, 0 to 255"):
        await trainer.train(plan_of(4), await trainer.initial_parameters(SEED), arriving(sequences))


async def test_numpy_loss_that_is_not_finite_fails_the_step() -> None:
    trainer = numpy_trainer()
    start = await trainer.initial_parameters(SEED)
    start["output.bias"] = np.full_like(start["output.bias"], np.inf)
    with pytest.raises(TrainerFailed, match="local step 1: the loss is nan") as failed:
        await trainer.train(plan_of(2), start, arriving(sequences_of(8, 8)))
    assert failed.value.context["failure"] == NOT_FINITE
    start = await trainer.initial_parameters(SEED)
    with pytest.raises(TrainerFailed, match="infinite") as failed:
        await trainer.train(plan_of(1, 1, 1e39), start, arriving(sequences_of(8)))
    assert failed.value.context["failure"] == NOT_FINITE


async def test_numpy_arithmetic_stops_soon_after_its_round_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ngram, "CHUNK_POSITIONS", 1)
    worker = WorkerThread("test-train")
    trainer = LearnerTrainer(NgramModel(TINY), ADAMW, True, worker)
    start = await trainer.initial_parameters(SEED)
    long = sequences_of(8_000_000)  # minutes of chunks of one position
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await trainer.train(plan_of(1), start, arriving(long))
    async with asyncio.timeout(SOON_S):
        trained = await trainer.train(plan_of(1), start, arriving(sequences_of(8)))
    assert trained.token_count == 8
    await trainer.aclose()


async def test_trainer_refuses_a_label_that_no_token_has() -> None:
    trainer = numpy_trainer()
    tokens = sequences_of(4)[0]

    async def batches(label: int) -> AsyncIterator[TokenBatch]:
        yield TokenBatch(tokens, np.array([0, 4], np.int64), labels=np.array([1, 2, label, 3]))

    for label in (-1, 256):
        with pytest.raises(TrainerFailed, match=f"label {label}; the model knows bytes only"):
            await trainer.train(plan_of(1), await trainer.initial_parameters(SEED), batches(label))


async def test_packed_documents_train_exactly_as_they_do_unpacked() -> None:
    documents = sequences_of(9, 4, 30, 1, 16, 20)
    plan = plan_of(6, 1)
    tokens = np.concatenate(documents)
    lengths = np.array([document.size for document in documents])
    position_ids = np.concatenate([np.arange(length) for length in lengths])

    async def packed() -> AsyncIterator[TokenBatch]:
        for start, stop in ((0, 43), (43, 80)):
            held = [n for n, end in zip(lengths, np.cumsum(lengths), strict=True) if start < end <= stop]
            yield TokenBatch(
                tokens[start:stop],
                np.array([0, stop - start], np.int64),
                position_ids=position_ids[start:stop],
                sequence_lengths=np.array(held),
                source_count=len(held),
            )

    trainer = numpy_trainer("reset")
    start = await trainer.initial_parameters(SEED)
    apart = await trainer.train(plan, start, arriving(documents))
    together = await trainer.train(plan, start, packed())
    assert apart.loss == together.loss
    assert apart.token_count == together.token_count
    assert bytes_of(apart.difference) == bytes_of(together.difference)


async def difference(trainer: LearnerTrainer, planned: int = 4) -> dict[str, bytes]:
    """The difference of a round over four samples."""
    start = await trainer.initial_parameters(SEED)
    return bytes_of((await trainer.train(plan_of(planned), start, arriving(sequences_of(*[16] * 4)))).difference)


async def test_numpy_round_begins_with_the_newest_inner_state() -> None:
    """Two results are undecided: the older one counts first, and one that does not takes the other with it."""
    trainer, twin = numpy_trainer(), numpy_trainer()
    rounds = []
    for _ in range(3):
        rounds.append(await difference(twin))
        twin.commit_inner_state()
    assert [await difference(trainer), await difference(trainer)] == rounds[:2]
    with pytest.raises(InternalError):
        await difference(trainer)
    trainer.commit_inner_state()
    assert await difference(trainer) == rounds[2]
    trainer.roll_back_inner_state()
    assert await difference(trainer) == rounds[1], "the first result counted, the others did not"


async def test_numpy_inner_state_is_tentative_until_committed() -> None:
    trainer, twin = numpy_trainer(), numpy_trainer()
    first = await difference(trainer)
    trainer.roll_back_inner_state()
    assert await difference(trainer) == first
    trainer.roll_back_inner_state()
    trainer.commit_inner_state()
    assert await difference(trainer) == first
    trainer.commit_inner_state()
    second = await difference(trainer)
    assert second != first
    trainer.roll_back_inner_state()
    with pytest.raises(TrainerFailed):
        await difference(trainer, planned=5)
    trainer.commit_inner_state()
    assert await difference(trainer) == second, "a failed round leaves the state as it was"
    await difference(twin)
    twin.commit_inner_state()
    assert await difference(twin) == second


async def test_numpy_trainer_that_forgets_begins_as_a_new_one() -> None:
    trainer = numpy_trainer()
    first = await difference(trainer)
    trainer.commit_inner_state()
    second = await difference(trainer)
    assert second != first
    trainer.forget_inner_state()
    trainer.commit_inner_state()  # nothing is left that could count
    assert await difference(trainer) == first


async def test_numpy_round_is_repeated_from_a_state_that_was_revealed() -> None:
    trainer, verifier = numpy_trainer(), numpy_trainer()
    await difference(trainer)
    trainer.commit_inner_state()
    begun = inner_state_stream(trainer.inner_state).to_bytes()
    second = await difference(trainer)
    await difference(verifier)  # of other work
    verifier.adopt_inner_state(parse_inner_state(begun))
    assert await difference(verifier) == second
    ended = [inner_state_stream(one.inner_state).sha256() for one in (trainer, verifier)]
    assert ended[0] == ended[1]


async def test_numpy_inner_state_reset_begins_every_round_without() -> None:
    trainer = numpy_trainer("reset")
    first = await difference(trainer)
    trainer.commit_inner_state()
    assert await difference(trainer) == first
