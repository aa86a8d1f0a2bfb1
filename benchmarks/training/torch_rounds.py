"""The `torch` trainer beside a loop written by hand: the same model, data, order, micro-batch and optimizer."""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.figures import Figure
from epochal.batching.round_plan import RoundPlan
from epochal.data_providers.protocol import TokenBatch, Tokens
from epochal.runtime.worker_thread import WorkerThread
from epochal.state.config.model_table import AdamW, Architecture, ModelSpec
from epochal.state.intervals import BatchId
from epochal.state.model.tensors import Tensors
from epochal.trainers.architectures import open_model
from epochal.trainers.learner_trainer import LearnerTrainer

LOCAL_STEPS = 50
RATE = 3e-4
OPTIMIZER = AdamW(betas=(0.9, 0.95), weight_decay=0.1, eps=1e-8, clip_grad_norm=1.0)
PEAK_FLOPS = {"H100": 989e12, "H200": 989e12, "A100": 312e12, "L40S": 362e12, "RTX 4090": 165e12}
"""Dense bf16 arithmetic per second by the makers' data sheets, by a part of the device's name."""


@dataclass(frozen=True, slots=True)
class Workload:
    """One model and how it is trained.

    Attributes:
        step_rows: samples of a local step.
        micro_batch_rows: samples computed at a time.
        rounds: rounds of each side, in turn; the pair of median ratio is shown.
    """

    device: str
    precision: str
    config: Mapping[str, Any]
    length: int
    step_rows: int
    micro_batch_rows: int
    rounds: int

    @property
    def predicted(self) -> int:
        """Number of tokens predicted in a round."""
        return LOCAL_STEPS * self.step_rows * (self.length - 1)


def _llama(length: int, **sizes: int) -> dict[str, Any]:
    return {"model_type": "llama", "max_position_embeddings": length, "tie_word_embeddings": True, **sizes}


ON_CPU = Workload(
    device="cpu",
    precision="float32",
    config=_llama(
        256,
        vocab_size=512,
        hidden_size=128,
        intermediate_size=352,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
    ),
    length=256,
    step_rows=8,
    micro_batch_rows=4,
    rounds=9,
)
"""A Llama of 0.8 M parameters. One that is larger makes the trainer's own share smaller."""
ON_GPU = Workload(
    device="cuda",
    precision="bf16",
    config=_llama(
        1024,
        vocab_size=32_000,
        hidden_size=1024,
        intermediate_size=2816,
        num_hidden_layers=16,
        num_attention_heads=16,
        num_key_value_heads=8,
    ),
    length=1024,
    step_rows=16,
    micro_batch_rows=16,
    rounds=3,
)
"""A Llama of 222 M parameters."""
NOTES = (
    f"A round of {LOCAL_STEPS} local steps of `--trainer torch` alternates with a loop of torch written by hand, of "
    "the same model, data, order, micro-batch and optimizer.",
)
"""What the page says of the figures."""


def measure() -> list[Figure]:
    """Measure a round of 50 local steps by the trainer and by the loop, in turn, on the CPU and on a GPU if any."""
    import torch

    figures = asyncio.run(_measured(ON_CPU))
    if torch.cuda.is_available():
        return figures + asyncio.run(_measured(ON_GPU))
    return [*figures, Figure(_name(ON_GPU), None, "tokens/s", ">= 0.97 x", None, "no GPU here")]


def _name(workload: Workload) -> str:
    return f"tokens trained in a round of {LOCAL_STEPS} local steps, --trainer torch, {workload.device}"


async def _measured(workload: Workload) -> list[Figure]:
    from epochal.trainers.torch.torch_options import TorchOptions

    count = LOCAL_STEPS * workload.step_rows
    tokens = np.random.default_rng(0).integers(0, workload.config["vocab_size"], count * workload.length).astype("<u2")
    spec = ModelSpec(architecture=Architecture.HF_LLAMA, hf=dict(workload.config))
    options = TorchOptions(device=workload.device, precision=workload.precision, micro_batch=workload.micro_batch_rows)
    model = open_model(spec, options=options)
    start = model.initial_parameters(bytes(32))
    trainer = LearnerTrainer(model, OPTIMIZER, False, WorkerThread("bench-train"), "torch")
    loop = _BareLoop(workload, start)
    plan = RoundPlan(1, (BatchId(0, count - 1),), 1, (RATE,) * LOCAL_STEPS)
    ours: list[float] = []
    bare: list[float] = []
    losses: tuple[float, float] = (0.0, 0.0)
    for _ in range(workload.rounds + 1):  # the first one of each warms up
        begin_s = time.perf_counter()
        trained = await trainer.train(plan, start, _arriving(tokens, workload))
        ours.append(workload.predicted / (time.perf_counter() - begin_s))
        begin_s = time.perf_counter()
        loss = loop.round(tokens)
        bare.append(workload.predicted / (time.perf_counter() - begin_s))
        assert trained.token_count == workload.predicted
        assert trained.loss is not None
        losses = (trained.loss, loss)
    await trainer.aclose()
    pairs = sorted(zip(ours[1:], bare[1:], strict=True), key=lambda pair: pair[0] / pair[1])
    speed, baseline = pairs[len(pairs) // 2]
    return [
        Figure(_name(workload), speed, "tokens/s", ">= 0.97 x", baseline, "a bare loop of torch"),
        Figure("its mean loss", losses[0], "nats", "the same within noise", losses[1], "of the bare loop"),
        *_utilisation(workload, sum(values.size for values in start.values()), speed, baseline),
    ]


def flops_per_token(config: Mapping[str, Any], parameters: int, length: int) -> float:
    """Return the arithmetic of training on one token: 6 for each parameter, and that of attention.

    Source: Chowdhery and others (2022), https://arxiv.org/abs/2204.02311, appendix B.
    """
    layers, width = int(config["num_hidden_layers"]), int(config["hidden_size"])
    return 6.0 * parameters + 12.0 * layers * width * length


def _utilisation(workload: Workload, parameters: int, speed: float, baseline: float) -> list[Figure]:
    """Return the model FLOPs utilisation, where the device's peak is known."""
    import torch

    if workload.device != "cuda":
        return []
    device = torch.cuda.get_device_name()
    peak = next((peak for part, peak in PEAK_FLOPS.items() if part in device), None)
    name = f"model FLOPs utilisation of it, {parameters / 1e6:.0f} M parameters in bf16 on {device}"
    if peak is None:
        return [Figure(name, None, "%", "", None, "the device's peak is not known here")]
    percent = 100 * flops_per_token(workload.config, parameters, workload.length) / peak
    return [Figure(name, percent * speed, "%", "", percent * baseline, "the bare loop")]


async def _arriving(tokens: Tokens, workload: Workload) -> AsyncIterator[TokenBatch]:
    """Yield the samples in answers of a local step's size, as a fetcher does."""
    size = workload.step_rows * workload.length
    for begin in range(0, len(tokens), size):
        yield TokenBatch.fixed_length(tokens[begin : begin + size], workload.length)


class _BareLoop:
    """What a good loop by hand does: the model of transformers, fused AdamW, no waiting for losses within the round."""

    def __init__(self, workload: Workload, start: Tensors) -> None:
        import torch
        from transformers import AutoModelForCausalLM, LlamaConfig

        hf = {key: value for key, value in workload.config.items() if key != "model_type"}
        self._workload = workload
        self._model = AutoModelForCausalLM.from_config(LlamaConfig(**hf), dtype=torch.float32).to(workload.device)
        self._model.config.use_cache = False
        self._start = start

    def round(self, tokens: Tokens) -> float:
        """Train one round from the start, and return its mean loss."""
        import torch

        model, workload = self._model, self._workload
        with torch.no_grad():
            for name, one in model.named_parameters():
                one.copy_(torch.tensor(self._start[name]))
        groups = [
            {"params": [one for one in model.parameters() if one.ndim > 1], "weight_decay": OPTIMIZER.weight_decay},
            {"params": [one for one in model.parameters() if one.ndim <= 1], "weight_decay": 0.0},
        ]
        optimizer = torch.optim.AdamW(groups, lr=RATE, betas=OPTIMIZER.betas, eps=OPTIMIZER.eps, fused=True)
        rows = torch.from_numpy(tokens.astype(np.int64))
        rows = rows.view(LOCAL_STEPS, -1, workload.micro_batch_rows, workload.length)
        targets = torch.nn.functional.pad(rows[..., 1:], (0, 1), value=-100)
        if workload.device == "cuda":
            rows, targets = rows.pin_memory(), targets.pin_memory()
        losses = []
        model.train()
        for inputs_of_step, targets_of_step in zip(rows, targets, strict=True):
            for inputs, wanted in zip(inputs_of_step, targets_of_step, strict=True):
                loss = self._summed_loss(inputs, wanted) / (workload.step_rows * (workload.length - 1))
                loss.backward()
                losses.append(loss.detach())
            torch.nn.utils.clip_grad_norm_(model.parameters(), OPTIMIZER.clip_grad_norm)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return float(torch.stack(losses).sum()) / LOCAL_STEPS

    def _summed_loss(self, inputs: Any, wanted: Any) -> Any:
        import torch

        device = self._workload.device
        with torch.autocast(device, dtype=torch.bfloat16, enabled=self._workload.precision == "bf16"):
            logits = self._model(input_ids=inputs.to(device, non_blocking=True)).logits
        targets = wanted.to(device, non_blocking=True).flatten()
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), targets, reduction="sum")
