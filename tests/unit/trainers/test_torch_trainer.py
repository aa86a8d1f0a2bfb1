"""The `torch` trainer: rounds of a transformer, beside the same training in a loop of torch alone."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import numpy as np
import pytest

from epochal.data_providers.protocol import TokenBatch
from epochal.runtime.files.spool import Spool
from epochal.runtime.merging.merger import Merger
from epochal.runtime.worker_thread import InlineWorker, Worker, WorkerThread
from epochal.state.config.state_file import MergeConfig
from epochal.state.errors import TrainerFailed, Unsupported
from epochal.state.merging import OuterStep, UnsoundArithmetic, merge
from epochal.state.model.replica import first_replica, replica_digest
from epochal.state.model.tensors import Tensors, layout_of
from epochal.state.replays.inner_states import inner_state_size_bound, inner_state_stream, parse_inner_state
from epochal.state.updates import UpdateHeader, UpdateRule, Weight, decode_update, update_bytes
from epochal.trainers.protocol import RevealsInnerState, TrainedRound, Trainer
from epochal.trainers.registry import TrainerOptions, open_trainer
from epochal.trainers.torch.torch_options import TorchOptions
from tests.support.data.spooled import SPOOL_PARENT
from tests.support.data.states import state_file
from tests.support.heavy import need_module
from tests.support.models.local_training import ADAMW, MUON, SEED, arriving, bytes_of, plan_of, sequences_of
from tests.support.models.tiny_llama import LLAMA_SPEC, LLAMA_STATE, plain_llama, plain_loss

LENGTHS = (9, 4, 30, 2, 17, 20)
RATE = 0.01


@pytest.fixture(autouse=True)
def torch() -> None:
    need_module("torch")
    need_module("transformers")


def torch_trainer(worker: Worker | None = None, inner_state: str = "keep", **given: Any) -> Trainer:
    fields = {name: value for name, value in given.items() if "__" in name}
    options = {name: value for name, value in given.items() if "__" not in name}
    state = state_file(merge__inner_state=inner_state, **(LLAMA_STATE | fields))
    chosen = TrainerOptions(torch=TorchOptions(device="cpu", **options))
    return open_trainer("torch", state, LLAMA_SPEC, worker or InlineWorker(), chosen)


async def start_of(trainer: Trainer) -> Tensors:
    return await trainer.initial_parameters(SEED)


async def packed(*rows: Sequence[Any]) -> AsyncIterator[TokenBatch]:
    """Each row's documents as one packed sample."""
    for documents in rows:
        lengths = np.array([document.size for document in documents])
        yield TokenBatch(
            np.concatenate(documents),
            np.array([0, lengths.sum()], np.int64),
            position_ids=np.concatenate([np.arange(length) for length in lengths]),
            sequence_lengths=lengths,
            source_count=len(documents),
        )


@pytest.mark.nightly
async def test_packed_row_has_the_loss_and_step_of_its_documents_alone() -> None:
    documents = sequences_of(*LENGTHS)
    trainer = torch_trainer(inner_state="reset")
    start = await start_of(trainer)
    module = plain_llama(start)
    count = sum(LENGTHS) - len(LENGTHS)
    alone = sum(float(plain_loss(module, document).detach()) for document in documents) / count
    apart = await trainer.train(plan_of(6, 1), start, arriving(documents))
    together = await trainer.train(plan_of(6, 1), start, packed(documents[:4], documents[4:]))
    assert together.token_count == apart.token_count == count
    assert together.loss == pytest.approx(alone, abs=1e-5)
    assert apart.loss == pytest.approx(alone, abs=1e-5)
    for name, values in apart.difference.items():
        np.testing.assert_allclose(together.difference[name], values, rtol=1e-3, atol=1e-6)


async def test_one_client_with_outer_rate_1_trains_as_a_bare_loop() -> None:
    import torch

    sequences = sequences_of(*[24] * 8)
    smooth = {"betas": [0.9, 0.95], "weight_decay": 0.01, "eps": 1.0, "clip_grad_norm": 1.0}
    trainer = torch_trainer(micro_batch=2, model__LLM__optimizer={"AdamW": smooth})
    replica = first_replica(0, await start_of(trainer))
    module = plain_llama(replica.parameters)
    merger = Merger(MergeConfig(outer_lr=1.0, outer_momentum=0.0), Spool(SPOOL_PARENT), InlineWorker())
    groups = [
        {"params": [one for one in module.parameters() if one.ndim > 1]},
        {"params": [one for one in module.parameters() if one.ndim == 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=RATE, betas=(0.9, 0.95), eps=1.0, weight_decay=0.01)
    for _ in range(3):
        trained = await trainer.train(plan_of(8, 4, RATE), replica.parameters, arriving(sequences))
        trainer.commit_inner_state()
        replica = (await merger.applied(replica, trained.difference)).replica
        losses = []
        for first, second in zip(sequences[::2], sequences[1::2], strict=True):
            loss = (plain_loss(module, first) + plain_loss(module, second)) / 46
            losses.append(float(loss.detach()))
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
            optimizer.step()
        assert trained.loss == pytest.approx(np.mean(losses), rel=1e-6)
    for name, one in module.named_parameters():
        np.testing.assert_allclose(replica.parameters[name], one.detach().numpy(), rtol=1e-5, atol=1e-7, err_msg=name)


async def test_loss_that_is_nan_fails_the_step_by_name_and_costs_the_round_only() -> None:
    trainer = torch_trainer()
    start = await start_of(trainer)
    broken = start | {"model.norm.weight": np.full(32, np.nan, np.float32)}
    sequences = sequences_of(*[16] * 4)
    with pytest.raises(TrainerFailed, match="step 1, local step 1: the loss is nan"):
        await trainer.train(plan_of(4), broken, arriving(sequences))
    assert (await trainer.train(plan_of(4), start, arriving(sequences))).token_count == 60


async def test_gradient_that_is_not_finite_fails_the_step_by_name() -> None:
    import torch

    trainer = torch_trainer()
    start = await start_of(trainer)

    class Poison(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(_: Any, values: Any) -> Any:
            return values.clone()

        @staticmethod
        def backward(_: Any, gradient: Any) -> Any:
            return gradient * float("nan")

    from transformers import LlamaForCausalLM

    with pytest.MonkeyPatch.context() as patched:
        forward = LlamaForCausalLM.forward

        def poisoned(*arguments: Any, **named: Any) -> Any:
            found = forward(*arguments, **named)
            found.logits = Poison.apply(found.logits)
            return found

        patched.setattr(LlamaForCausalLM, "forward", poisoned)
        with pytest.raises(TrainerFailed, match="step 1, local step 1: the norm of the gradient is nan"):
            await trainer.train(plan_of(4), start, arriving(sequences_of(*[16] * 4)))
    assert (await trainer.train(plan_of(4), start, arriving(sequences_of(*[16] * 4)))).token_count == 60


async def test_round_that_is_cancelled_stops_between_micro_batches() -> None:
    trainer = torch_trainer(WorkerThread("test-torch"), micro_batch=1)
    start = await start_of(trainer)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await trainer.train(plan_of(20_000, 1), start, arriving(sequences_of(*[64] * 20_000), 20_000))
    async with asyncio.timeout(30):  # the whole of it takes minutes
        trained = await trainer.train(plan_of(1), start, arriving(sequences_of(8)))
    assert trained.token_count == 7
    await trainer.aclose()


async def test_clients_of_other_precision_and_threads_merge_to_the_same_bits() -> None:
    import torch

    threads = torch.get_num_threads()
    sequences = sequences_of(*[16] * 4)
    results: list[TrainedRound] = []
    start = await start_of(torch_trainer())
    try:
        for number, options in ((1, {}), (2, {"precision": "bf16"}), (1, {"micro_batch": 1})):
            torch.set_num_threads(number)
            results.append(await torch_trainer(**options).train(plan_of(4), start, arriving(sequences)))
    finally:
        torch.set_num_threads(threads)
    assert len({bytes_of(result.difference)["lm_head.weight"] for result in results}) == 3, "they computed differently"
    digests = set()
    for number in (1, 2):
        torch.set_num_threads(number)
        replica, header = first_replica(0, start), UpdateHeader("run", 1, "", "int4")
        weighed = [(Weight(1), result.difference) for result in results]
        update = decode_update(
            update_bytes(header, UpdateRule("int4"), replica.layout, weighed), header, replica.layout
        )
        digests.add(replica_digest(merge(replica, update, OuterStep(0.7, 0.9))))
    torch.set_num_threads(threads)
    assert len(digests) == 1


async def test_client_whose_torch_flushes_denormals_merges_right_or_says_why_not() -> None:
    import torch

    training, config = WorkerThread("test-flushing"), MergeConfig(outer_lr=0.7, outer_momentum=0.9)
    spool = Spool(SPOOL_PARENT)
    replica = first_replica(0, {"w": np.array([1.0, 1e-40], np.float32)})
    update = {"w": np.array([0.5, 1e-41], np.float32)}
    wanted = (await Merger(config, spool, InlineWorker()).applied(replica, update)).digest
    if not await training.run(lambda: torch.set_flush_denormal(True)):
        pytest.skip("this processor cannot flush denormals")
    merger = Merger(config, spool, WorkerThread("test-merge"))
    assert (await merger.applied(replica, update)).digest == wanted, "the trainer's thread is not the merger's"
    inline = Merger(config, spool, InlineWorker())
    torch.set_flush_denormal(True)
    try:
        with pytest.raises(UnsoundArithmetic, match="flushes denormals to zero"):
            await inline.applied(replica, update)
    finally:
        torch.set_flush_denormal(False)
    await merger.aclose()
    await training.aclose()


@pytest.mark.parametrize(
    ("trainer", "state", "message"),
    [
        ("numpy", LLAMA_STATE, "HfLlama; allowed: EpochalNgram with --trainer numpy; HfLlama is trained by --trainer"),
        ("torch", {}, "EpochalNgram; allowed: HfAuto or HfDeepseek or HfLlama with --trainer torch; EpochalNgram is"),
    ],
)
def test_pair_of_trainer_and_architecture_that_is_wrong_is_refused(
    trainer: str, state: dict[str, Any], message: str
) -> None:
    file = state_file(**state)
    with pytest.raises(Unsupported, match=message):
        open_trainer(trainer, file, file.model.LLM.spec, InlineWorker())


@pytest.mark.parametrize("optimizer", ["AdamW", "Muon"])
async def test_torch_round_is_repeated_from_a_state_that_was_revealed(optimizer: str) -> None:
    chosen = {optimizer: (ADAMW if optimizer == "AdamW" else MUON).model_dump(mode="json")}
    trainer, verifier = (torch_trainer(model__LLM__optimizer=chosen) for _ in range(2))
    assert isinstance(trainer, RevealsInnerState)
    assert isinstance(verifier, RevealsInnerState)
    start, files, rounds = await start_of(trainer), [], []
    for _ in range(2):
        rounds.append((await trainer.train(plan_of(6, 3, RATE), start, arriving(sequences_of(*LENGTHS)))).difference)
        trainer.commit_inner_state()
        files.append(inner_state_stream(trainer.inner_state).to_bytes())
    verifier.adopt_inner_state(parse_inner_state(files[0]))
    again = await verifier.train(plan_of(6, 3, RATE), start, arriving(sequences_of(*LENGTHS)))
    assert bytes_of(again.difference) == bytes_of(rounds[1]) != bytes_of(rounds[0])
    assert inner_state_stream(verifier.inner_state).to_bytes() == files[1]
    assert len(files[1]) <= inner_state_size_bound(layout_of(start))
