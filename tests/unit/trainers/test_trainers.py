"""The trainers: the gradient against differences, AdamW against scalars, plans, cancelling, and a loss that falls."""

import asyncio
import itertools
import math
from collections.abc import AsyncIterator, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batching.micro_batches import Example, micro_batches
from batching.round_plan import RoundPlan, plan_round
from data_providers.protocol import IGNORED_LABEL, SourceUnavailable, TokenBatch
from runtime.worker_thread import InlineWorker, WorkerThread
from state.config.model import AdamW, Constant, Linear, NgramConfig
from state.errors import InternalError, InvalidInput, TrainerFailed, Unsupported
from state.intervals import BatchId
from state.tensors import Tensors
from tests.support.states import state_file
from trainers.learner_trainer import LearnerTrainer
from trainers.ngram import model as ngram
from trainers.ngram.adamw import AdamWState, adamw_step
from trainers.ngram.learner import NgramModel
from trainers.ngram.model import (
    initial_parameters,
    loss_and_gradient,
    padded_targets,
    padded_tokens,
    parameter_shapes,
)
from trainers.protocol import Trainer
from trainers.registry import open_trainer

SEED = bytes(range(32))
TINY = NgramConfig(context=3, embedding=4, hidden=5)
ADAMW = AdamW(betas=(0.9, 0.95), weight_decay=0.01, eps=1e-8, clip_grad_norm=1.0)
PHRASE = b"the run goes on. "


def sequences_of(*lengths: int, kind: type[np.unsignedinteger[Any]] = np.uint16) -> list[np.ndarray[Any, Any]]:
    text = PHRASE * (sum(lengths) // len(PHRASE) + 1)
    ends = np.cumsum([0, *lengths])
    return [np.frombuffer(text[a:b], np.uint8).astype(kind) for a, b in itertools.pairwise(ends)]


def batch_of(sequences: Sequence[np.ndarray[Any, Any]]) -> TokenBatch:
    ids = np.concatenate(sequences) if sequences else np.empty(0, np.uint16)
    return TokenBatch(ids, np.cumsum([0, *(sequence.size for sequence in sequences)]).astype(np.int64))


async def arriving(sequences: Sequence[np.ndarray[Any, Any]], group: int = 3) -> AsyncIterator[TokenBatch]:
    for start in range(0, len(sequences), group):
        yield batch_of(sequences[start : start + group])


def plan_of(sequence_count: int, local_steps: int = 2, learning_rate: float = 0.01) -> RoundPlan:
    schedule = Constant(base_lr=learning_rate, warmup_init_lr=0.0, warmup_steps=0)
    return plan_round(1, (BatchId(10, 9 + sequence_count),), 1, local_steps, schedule)


def numpy_trainer(inner_state: Any = "keep", optimizer: AdamW | None = ADAMW) -> LearnerTrainer:
    return LearnerTrainer(NgramModel(TINY), optimizer, inner_state == "keep", InlineWorker())


def bytes_of(tensors: Tensors) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in tensors.items()}


# The model


def naive_loss(parameters: dict[str, Any], sequences: Sequence[np.ndarray[Any, Any]], context: int) -> float:
    """The summed loss, position by position."""
    total = 0.0
    for sequence in sequences:
        tokens = [ngram.PADDING] * context + [int(token) for token in sequence]
        for at in range(context, len(tokens)):
            x = np.concatenate([parameters["embedding"][token] for token in tokens[at - context : at]])
            h = np.tanh(x @ parameters["hidden.weight"] + parameters["hidden.bias"])
            z = h @ parameters["output.weight"] + parameters["output.bias"]
            total += float(np.log(np.exp(z).sum()) - z[tokens[at]])
    return total


def random_parameters(model: NgramConfig) -> dict[str, Any]:
    generator = np.random.default_rng(7)
    return {name: generator.normal(0, 0.5, shape) for name, shape in parameter_shapes(model).items()}


@given(st.lists(st.integers(0, 12), min_size=1, max_size=5).filter(any), st.integers(1, 4))
def test_ngram_loss_agrees_with_the_naive_one_for_ragged_sequences(lengths: list[int], context: int) -> None:
    model = NgramConfig(context=context, embedding=2, hidden=3)
    sequences, parameters = sequences_of(*lengths), random_parameters(model)
    loss, token_count, _ = loss_and_gradient(parameters, padded_tokens(sequences, context))
    assert token_count == sum(lengths)
    assert loss == pytest.approx(naive_loss(parameters, sequences, context), rel=1e-12)


def test_ngram_gradient_agrees_with_numerical_differentiation() -> None:
    padded, parameters = padded_tokens(sequences_of(7, 1, 12), TINY.context), random_parameters(TINY)
    _, token_count, gradient = loss_and_gradient(parameters, padded)
    generator, width = np.random.default_rng(1), 1e-5
    for name, array in parameters.items():
        used = array.reshape(-1)
        rows = np.unique(padded) if name == "embedding" else np.arange(len(array))
        for row in generator.choice(rows, 12):
            at = row * (array.size // len(array)) + generator.integers(array.size // len(array))
            kept = used[at]
            used[at] = kept + width
            above = loss_and_gradient(parameters, padded)[0]
            used[at] = kept - width
            below = loss_and_gradient(parameters, padded)[0]
            used[at] = kept
            slope = (above - below) / (2 * width * token_count)
            assert gradient[name].reshape(-1)[at] == pytest.approx(slope, abs=1e-8, rel=1e-6), (name, at)


def test_ngram_gradient_does_not_depend_on_the_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    padded, parameters = padded_tokens(sequences_of(40, 3, 30), TINY.context), random_parameters(TINY)
    whole_loss, _, whole = loss_and_gradient(parameters, padded)
    for positions in (1, 7, 64):
        monkeypatch.setattr(ngram, "CHUNK_POSITIONS", positions)
        loss, _, pieces = loss_and_gradient(parameters, padded)
        assert loss == pytest.approx(whole_loss, rel=1e-12)
        for name, array in whole.items():
            np.testing.assert_allclose(pieces[name], array, rtol=1e-9, atol=1e-12)


def test_ngram_loss_of_huge_logits_stays_finite() -> None:
    parameters = random_parameters(TINY)
    parameters["output.bias"][:] = np.linspace(-1e4, 1e4, 256)
    loss, _, gradient = loss_and_gradient(parameters, padded_tokens(sequences_of(9), TINY.context))
    assert math.isfinite(loss)
    assert all(np.isfinite(array).all() for array in gradient.values())


def test_initial_parameters_are_keyed_by_the_seed_and_golden() -> None:
    tensors = initial_parameters(TINY, SEED)
    assert {name: array.shape for name, array in tensors.items()} == parameter_shapes(TINY)
    assert list(tensors) == sorted(tensors)
    assert [float(x).hex() for x in tensors["hidden.weight"][0, :3]] == GOLDEN_INITIAL_VALUES
    assert bytes_of(tensors) == bytes_of(initial_parameters(TINY, SEED))
    assert bytes_of(tensors)["embedding"] != bytes_of(initial_parameters(TINY, bytes(32)))["embedding"]
    assert abs(float(tensors["embedding"].mean())) < 0.2
    assert float(tensors["embedding"].std()) == pytest.approx(1, abs=0.1)


def test_initial_parameters_of_several_blocks_do_not_repeat(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ngram, "_INIT_BLOCK_VALUES", 64)
    values = initial_parameters(TINY, SEED)["embedding"]
    assert len(np.unique(values)) == values.size


# AdamW


def test_adamw_agrees_with_the_scalar_rule() -> None:
    slopes = [0.3, -0.2, 0.25, 0.0]
    settings = AdamW(betas=(0.9, 0.99), weight_decay=0.1, eps=1e-6)
    parameters: Tensors = {"m": np.array([[2.0]], np.float32), "b": np.array([2.0], np.float32)}
    state = AdamWState()
    decayed = plain = 2.0
    first = second = 0.0
    for count, slope in enumerate(slopes, start=1):
        gradient: Tensors = {"m": np.array([[slope]], np.float32), "b": np.array([slope], np.float32)}
        adamw_step(parameters, gradient, state, settings, 0.05)
        first, second = 0.9 * first + 0.1 * slope, 0.99 * second + 0.01 * slope**2
        step = 0.05 * (first / (1 - 0.9**count)) / (math.sqrt(second / (1 - 0.99**count)) + 1e-6)
        decayed, plain = decayed * (1 - 0.05 * 0.1) - step, plain - step
    assert float(parameters["m"][0, 0]) == pytest.approx(decayed, rel=1e-5)
    assert float(parameters["b"][0]) == pytest.approx(plain, rel=1e-5)
    assert state.step_count == len(slopes)


def test_adamw_clips_the_gradient_s_norm_over_all_tensors() -> None:
    settings = AdamW(betas=(0.0, 0.0), weight_decay=0.0, eps=1.0, clip_grad_norm=1.0)
    parameters: Tensors = {"a": np.zeros(1, np.float32), "b": np.zeros(1, np.float32)}
    gradient: Tensors = {"a": np.array([30.0], np.float32), "b": np.array([-40.0], np.float32)}
    adamw_step(parameters, gradient, AdamWState(), settings, 1.0)
    assert float(parameters["a"][0]) == pytest.approx(-0.6 / 1.6, rel=1e-5)
    assert float(parameters["b"][0]) == pytest.approx(0.8 / 1.8, rel=1e-5)


# Plans and micro-batches


@given(st.integers(1, 60), st.integers(1, 12))
def test_plan_splits_the_assignment_into_nearly_equal_local_steps(sequence_count: int, local_steps: int) -> None:
    sizes = plan_of(sequence_count, local_steps).micro_batch_sizes
    assert sum(sizes) == sequence_count
    assert len(sizes) == min(sequence_count, local_steps)
    assert max(sizes) - min(sizes) <= 1
    assert list(sizes) == sorted(sizes, reverse=True)


def test_plan_takes_the_schedule_where_the_step_stands() -> None:
    schedule = Linear(base_lr=1.0, warmup_init_lr=0.0, warmup_steps=0, total_steps=100, final_lr=0.0)
    plan = plan_round(6, (BatchId(0, 1), BatchId(8, 8)), 2, 4, schedule)
    assert plan.learning_rates == pytest.approx([0.80, 0.79, 0.78, 0.77])
    assert plan.sequence_count == 6
    assert plan_round(6, (BatchId(0, 0),), 2, 4, schedule).learning_rates == pytest.approx([0.80, 0.79])
    with pytest.raises(InternalError):
        plan_round(6, (), 2, 4, schedule)


@given(st.integers(1, 20), st.integers(1, 7), st.integers(1, 9))
async def test_micro_batches_are_the_same_however_the_data_arrive(count: int, local_steps: int, group: int) -> None:
    plan, sequences = plan_of(count, local_steps), sequences_of(*range(1, count + 1))
    found = [part async for part in micro_batches(plan, arriving(sequences, group))]
    assert tuple(len(part.examples) for part in found) == plan.micro_batch_sizes
    assert [part.local_step for part in found] == list(range(len(found)))
    flat = [example.tokens.tolist() for part in found for example in part.examples]
    assert flat == [sequence.tolist() for sequence in sequences]


async def test_micro_batches_skip_an_empty_answer() -> None:
    async def batches() -> AsyncIterator[TokenBatch]:
        yield batch_of([])
        yield batch_of(sequences_of(4, 4))

    assert [len(part.examples) async for part in micro_batches(plan_of(2, 1), batches())] == [2]


# Trainers


@pytest.fixture(params=["numpy", "null"])
def trainer(request: pytest.FixtureRequest) -> Trainer:
    return open_trainer(request.param, state_file(model__LLM__ngram=TINY.model_dump()), InlineWorker())


async def test_trainer_gives_a_difference_for_every_parameter_and_counts_tokens(trainer: Trainer) -> None:
    start = await trainer.initial_parameters(SEED)
    before = bytes_of(start)
    trained = await trainer.train(plan_of(5), start, arriving(sequences_of(8, 8, 8, 8, 8)))
    assert {name: (array.shape, array.dtype) for name, array in trained.difference.items()} == {
        name: (shape, np.dtype(np.float32)) for name, shape in parameter_shapes(TINY).items()
    }
    assert trained.token_count == 40
    assert bytes_of(start) == before
    assert (trainer.name == "null") == (trained.loss is None)
    assert (trainer.name == "null") == (not any(array.any() for array in trained.difference.values()))
    await trainer.aclose()


@pytest.mark.parametrize(("arrived", "message"), [(3, "ended after 3 of 5"), (6, "more samples arrived than the 5")])
async def test_trainer_with_another_number_of_sequences_than_assigned_fails(
    trainer: Trainer, arrived: int, message: str
) -> None:
    start = await trainer.initial_parameters(SEED)
    with pytest.raises(TrainerFailed, match=message):
        await trainer.train(plan_of(5), start, arriving(sequences_of(*[8] * arrived)))
    assert (await trainer.train(plan_of(5), start, arriving(sequences_of(*[8] * 5)))).token_count == 40


async def test_trainer_predicts_the_labels_that_are_not_ignored(trainer: Trainer) -> None:
    tokens = sequences_of(30)[0]
    labels = tokens.astype(np.int64)
    labels[::3] = IGNORED_LABEL

    async def batches() -> AsyncIterator[TokenBatch]:
        yield TokenBatch(tokens, np.array([0, 30], np.int64), labels=labels)

    start = await trainer.initial_parameters(SEED)
    trained = await trainer.train(plan_of(1), start, batches())
    assert trained.token_count == 20
    if trained.loss is not None:
        padded = padded_tokens([tokens], TINY.context)
        targets = padded_targets([Example(tokens, labels)], TINY.context)
        loss, count, _ = loss_and_gradient(start, padded, targets=targets)
        assert trained.loss == pytest.approx(loss / count, rel=1e-6)
        assert trained.token_count == count


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


async def test_packs_end_a_micro_batch_where_they_reach_the_planned_number_of_samples() -> None:
    def pack(*lengths: int, source_count: int) -> TokenBatch:
        tokens = sequences_of(sum(lengths))[0] if lengths else np.empty(0, np.uint16)
        ends = [0, tokens.size] if lengths else [0]
        return TokenBatch(
            tokens, np.array(ends, np.int64), sequence_lengths=np.array(lengths, np.int64), source_count=source_count
        )

    async def packs(*given: TokenBatch) -> AsyncIterator[TokenBatch]:
        for batch in given:
            yield batch

    plan = plan_of(12, 4)  # micro-batches end after 3, 6, 9 and 12 samples
    arrived = packs(pack(5, 4, source_count=2), pack(9, source_count=7), pack(2, source_count=1), pack(source_count=2))
    found = [part async for part in micro_batches(plan, arrived)]
    assert [(part.local_step, [example.tokens.size for example in part.examples]) for part in found] == [
        (0, [5, 4, 9]),
        (3, [2]),
    ]
    with pytest.raises(TrainerFailed, match="ended after 11 of 12"):
        _ = [part async for part in micro_batches(plan, packs(pack(3, source_count=11)))]
    with pytest.raises(TrainerFailed, match="more samples arrived than the 12"):
        _ = [part async for part in micro_batches(plan, packs(pack(3, source_count=13)))]


async def test_trainer_passes_the_provider_s_error_on(trainer: Trainer) -> None:
    async def batches() -> AsyncIterator[TokenBatch]:
        yield batch_of(sequences_of(8))
        raise SourceUnavailable("gone")

    with pytest.raises(SourceUnavailable, match="gone"):
        await trainer.train(plan_of(2), await trainer.initial_parameters(SEED), batches())


async def test_numpy_difference_has_the_sign_of_a_gradient() -> None:
    trainer = numpy_trainer()
    start, sequences = await trainer.initial_parameters(SEED), sequences_of(*[40] * 4)
    padded = padded_tokens(sequences, TINY.context)
    trained = await trainer.train(plan_of(4), start, arriving(sequences))
    end = {name: start[name] - trained.difference[name] for name in start}
    before, after = loss_and_gradient(start, padded)[0], loss_and_gradient(end, padded)[0]
    assert after < before
    assert trained.loss == pytest.approx(math.log(256), abs=0.1)


async def test_numpy_loss_falls_over_rounds_and_is_that_before_each_local_step() -> None:
    trainer = numpy_trainer()
    parameters, losses = await trainer.initial_parameters(SEED), []
    sequences = sequences_of(*[68] * 8)
    for _ in range(15):
        trained = await trainer.train(plan_of(8, 8), parameters, arriving(sequences))
        trainer.commit_inner_state()
        parameters = {name: parameters[name] - trained.difference[name] for name in parameters}
        losses.append(trained.loss)
    assert losses[-1] is not None
    assert losses[-1] < 1.0

    still = numpy_trainer(optimizer=None)
    measured = await still.train(plan_of(8, 8), parameters, arriving(sequences))
    loss, token_count, _ = loss_and_gradient(parameters, padded_tokens(sequences, TINY.context))
    assert measured.loss == pytest.approx(loss / token_count, rel=1e-5)
    assert not any(array.any() for array in measured.difference.values())


async def test_numpy_inner_state_is_tentative_until_committed() -> None:
    sequences = sequences_of(*[16] * 4)
    trainer, twin = numpy_trainer(), numpy_trainer()
    start = await trainer.initial_parameters(SEED)

    async def difference(of: LearnerTrainer) -> dict[str, bytes]:
        return bytes_of((await of.train(plan_of(4), start, arriving(sequences))).difference)

    first = await difference(trainer)
    trainer.roll_back_inner_state()
    assert await difference(trainer) == first
    assert await difference(trainer) == first  # the next `train` rolls back by itself
    trainer.roll_back_inner_state()
    trainer.commit_inner_state()
    assert await difference(trainer) == first
    trainer.commit_inner_state()
    second = await difference(trainer)
    assert second != first
    await difference(twin)
    twin.commit_inner_state()
    assert await difference(twin) == second


async def test_numpy_inner_state_reset_starts_every_round_afresh() -> None:
    trainer, sequences = numpy_trainer("reset"), sequences_of(*[16] * 4)
    start = await trainer.initial_parameters(SEED)
    differences = []
    for _ in range(2):
        differences.append(bytes_of((await trainer.train(plan_of(4), start, arriving(sequences))).difference))
        trainer.commit_inner_state()
    assert differences[0] == differences[1]


async def test_numpy_failed_round_leaves_the_inner_state_as_it_was() -> None:
    sequences = sequences_of(*[16] * 4)
    trainer, untouched = numpy_trainer(), numpy_trainer()
    start = await trainer.initial_parameters(SEED)
    await trainer.train(plan_of(4), start, arriving(sequences))
    with pytest.raises(TrainerFailed):
        await trainer.train(plan_of(5), start, arriving(sequences))
    trainer.commit_inner_state()
    found = await trainer.train(plan_of(4), start, arriving(sequences))
    wanted = await untouched.train(plan_of(4), start, arriving(sequences))
    assert bytes_of(found.difference) == bytes_of(wanted.difference)


@pytest.mark.parametrize("kind", [np.uint16, np.uint32])
async def test_numpy_token_outside_the_vocabulary_is_refused(
    kind: type[np.unsignedinteger[Any]],
) -> None:
    trainer, sequences = numpy_trainer(), sequences_of(4, 4, 4, 4, kind=kind)
    sequences[2][1] = 256
    with pytest.raises(TrainerFailed, match="token 256; the model knows bytes only, 0 to 255"):
        await trainer.train(plan_of(4), await trainer.initial_parameters(SEED), arriving(sequences))


async def test_numpy_loss_that_is_not_finite_fails_the_step() -> None:
    trainer = numpy_trainer()
    start = await trainer.initial_parameters(SEED)
    start["output.bias"] = np.full_like(start["output.bias"], np.inf)
    with pytest.raises(TrainerFailed, match="local step 1: the loss is nan"):
        await trainer.train(plan_of(2), start, arriving(sequences_of(8, 8)))
    start = await trainer.initial_parameters(SEED)
    with pytest.raises(TrainerFailed, match="infinite"):
        await trainer.train(plan_of(1, 1, 1e39), start, arriving(sequences_of(8)))


async def test_numpy_samples_without_a_token_change_nothing() -> None:
    trainer = numpy_trainer()
    start = await trainer.initial_parameters(SEED)
    trained = await trainer.train(plan_of(2), start, arriving(sequences_of(0, 0)))
    assert (trained.loss, trained.token_count) == (None, 0)
    assert not any(array.any() for array in trained.difference.values())


async def test_numpy_arithmetic_stops_soon_after_its_round_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ngram, "CHUNK_POSITIONS", 1)
    worker = WorkerThread("test-train")
    trainer = LearnerTrainer(NgramModel(TINY), ADAMW, True, worker)
    start = await trainer.initial_parameters(SEED)
    long = sequences_of(2_000_000)  # minutes of chunks of one position
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await trainer.train(plan_of(1), start, arriving(long))
    async with asyncio.timeout(10):
        trained = await trainer.train(plan_of(1), start, arriving(sequences_of(8)))
    assert trained.token_count == 8
    await trainer.aclose()


# The registry


def test_registry_with_an_unknown_trainer_names_those_that_there_are() -> None:
    with pytest.raises(InvalidInput, match=r"no trainer 'numpi'; allowed: null, numpy"):
        open_trainer("numpi", state_file(), InlineWorker())


@pytest.mark.parametrize("name", ["numpy", "null"])
def test_registry_with_another_architecture_names_the_line_to_change(name: str) -> None:
    with pytest.raises(Unsupported, match=r"model\.LLM\.architecture is HfLlama; allowed: EpochalNgram"):
        open_trainer(name, state_file(model__LLM__architecture="HfLlama"), InlineWorker())


def test_registry_with_an_optimizer_that_numpy_lacks_names_the_line_to_change() -> None:
    distro = {
        "Distro": {"compression_decay": 0.9, "compression_topk": 8, "compression_chunk": 64, "quantize_1bit": True}
    }
    with pytest.raises(Unsupported, match=r"model\.LLM\.optimizer is Distro; allowed: AdamW or Dummy"):
        open_trainer("numpy", state_file(model__LLM__optimizer=distro), InlineWorker())


async def test_registry_opens_numpy_without_an_optimizer_for_the_dummy_one() -> None:
    trainer = open_trainer("numpy", state_file(model__LLM__optimizer="Dummy"), InlineWorker())
    start = await trainer.initial_parameters(SEED)
    trained = await trainer.train(plan_of(2), start, arriving(sequences_of(8, 8)))
    assert trained.loss == pytest.approx(math.log(256), abs=0.1)
    assert not any(array.any() for array in trained.difference.values())


GOLDEN_INITIAL_VALUES = ["0x1.9d1c100000000p-4", "-0x1.889c000000000p-5", "-0x1.8488900000000p-2"]
