"""The `torch` trainer beside a loop written by hand: the same model, data, order, micro-batch and optimizer."""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import numpy as np

from batching.round_plan import RoundPlan
from benchmarks.figures import Figure
from data_providers.protocol import TokenBatch, Tokens
from runtime.worker_thread import WorkerThread
from state.config.model import AdamW, Architecture, ModelSpec
from state.intervals import BatchId
from state.tensors import Tensors
from trainers.architectures import open_model
from trainers.learner_trainer import LearnerTrainer

LOCAL_STEPS = 50
STEP_ROWS = 8
MICRO_BATCH_ROWS = 4
LENGTH = 256
RATE = 3e-4
ROUNDS = 5
"""Rounds of each side, in turn; the pair of median ratio is shown."""
CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 512,
    "hidden_size": 128,
    "intermediate_size": 352,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": LENGTH,
    "tie_word_embeddings": True,
}
"""A Llama of 0.8 M parameters. One that is larger makes the trainer's own share smaller."""
OPTIMIZER = AdamW(betas=(0.9, 0.95), weight_decay=0.1, eps=1e-8, clip_grad_norm=1.0)


def measure() -> list[Figure]:
    """Measure a round of 50 local steps by the trainer and by the loop, in turn."""
    tokens = np.random.default_rng(0).integers(0, CONFIG["vocab_size"], LOCAL_STEPS * STEP_ROWS * LENGTH).astype("<u2")
    return asyncio.run(_measured(tokens))


async def _measured(tokens: Tokens) -> list[Figure]:
    from trainers.torch.options import TorchOptions

    spec = ModelSpec(architecture=Architecture.HF_LLAMA, hf=CONFIG)
    model = open_model(spec, options=TorchOptions(device="cpu", micro_batch=MICRO_BATCH_ROWS))
    start = model.initial_parameters(bytes(32))
    trainer = LearnerTrainer(model, OPTIMIZER, False, WorkerThread("bench-train"), "torch")
    loop = _BareLoop(start)
    plan = RoundPlan(1, (BatchId(0, LOCAL_STEPS * STEP_ROWS - 1),), 1, (RATE,) * LOCAL_STEPS)
    predicted = LOCAL_STEPS * STEP_ROWS * (LENGTH - 1)
    ours: list[float] = []
    bare: list[float] = []
    losses: tuple[float, float] = (0.0, 0.0)
    for _ in range(ROUNDS + 1):  # the first one of each warms up
        begin_s = time.perf_counter()
        trained = await trainer.train(plan, start, _arriving(tokens))
        ours.append(predicted / (time.perf_counter() - begin_s))
        begin_s = time.perf_counter()
        loss = loop.round(tokens)
        bare.append(predicted / (time.perf_counter() - begin_s))
        assert trained.token_count == predicted
        assert trained.loss is not None
        losses = (trained.loss, loss)
    await trainer.aclose()
    pairs = sorted(zip(ours[1:], bare[1:], strict=True), key=lambda pair: pair[0] / pair[1])
    speed, baseline = pairs[len(pairs) // 2]
    name = f"tokens trained in a round of {LOCAL_STEPS} local steps, --trainer torch"
    return [
        Figure(name, speed, "tokens/s", ">= 0.97 x", baseline, "a bare loop of torch"),
        Figure("its mean loss", losses[0], "nats", "the same within noise", losses[1], "of the bare loop"),
    ]


async def _arriving(tokens: Tokens) -> AsyncIterator[TokenBatch]:
    """Yield the samples in answers of a local step's size, as a fetcher does."""
    size = STEP_ROWS * LENGTH
    for begin in range(0, len(tokens), size):
        yield TokenBatch.fixed_length(tokens[begin : begin + size], LENGTH)


class _BareLoop:
    """What a good loop by hand does: the model of transformers, fused AdamW, no waiting for losses within the round."""

    def __init__(self, start: Tensors) -> None:
        import torch
        from transformers import AutoModelForCausalLM, LlamaConfig

        hf = {key: value for key, value in CONFIG.items() if key != "model_type"}
        self._model = AutoModelForCausalLM.from_config(LlamaConfig(**hf), dtype=torch.float32)
        self._model.config.use_cache = False
        self._start = start

    def round(self, tokens: Tokens) -> float:
        """Train one round from the start, and return its mean loss."""
        import torch

        model = self._model
        with torch.no_grad():
            for name, one in model.named_parameters():
                one.copy_(torch.tensor(self._start[name]))
        groups = [
            {"params": [one for one in model.parameters() if one.ndim > 1], "weight_decay": OPTIMIZER.weight_decay},
            {"params": [one for one in model.parameters() if one.ndim <= 1], "weight_decay": 0.0},
        ]
        optimizer = torch.optim.AdamW(groups, lr=RATE, betas=OPTIMIZER.betas, eps=OPTIMIZER.eps, fused=True)
        rows = torch.from_numpy(tokens.astype(np.int64)).view(LOCAL_STEPS, -1, MICRO_BATCH_ROWS, LENGTH)
        targets = torch.nn.functional.pad(rows[..., 1:], (0, 1), value=-100)
        losses = []
        model.train()
        for inputs_of_step, targets_of_step in zip(rows, targets, strict=True):
            for inputs, wanted in zip(inputs_of_step, targets_of_step, strict=True):
                logits = model(input_ids=inputs).logits
                summed = torch.nn.functional.cross_entropy(logits.flatten(0, 1), wanted.flatten(), reduction="sum")
                loss = summed / (STEP_ROWS * (LENGTH - 1))
                loss.backward()
                losses.append(loss.detach())
            torch.nn.utils.clip_grad_norm_(model.parameters(), OPTIMIZER.clip_grad_norm)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return float(torch.stack(losses).sum()) / LOCAL_STEPS
