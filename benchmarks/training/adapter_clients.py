"""An adapter beside a frozen base: its bytes, its speed beside a loop of `peft`, and its loss beside one machine."""

import asyncio
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.figures import Figure
from benchmarks.training.quality_text import Rows, Text, library_text
from benchmarks.training.quality_training import CLIENTS, OPTIMIZER, Client, Setting, held_out_loss
from epochal.batching.micro_batches import Example
from epochal.batching.round_plan import RoundPlan
from epochal.state.codecs.codecs_by_name import codec_named
from epochal.state.config.adapter_table import Lora
from epochal.state.config.model_table import Architecture, ModelSpec
from epochal.state.config.state_file import MergeConfig
from epochal.state.intervals import BatchId
from epochal.state.merging import OuterStep, merge
from epochal.state.model.replica import Replica, first_replica
from epochal.state.model.tensors import TensorLayout
from epochal.state.results import Difference
from epochal.state.updates import UpdateHeader, UpdateRule, Weight, decode_update, update_bytes
from epochal.trainers.architectures import open_model
from epochal.trainers.first_parameters import model_layout
from epochal.trainers.learner import Model
from epochal.trainers.sources.folder_source import FolderSource
from epochal.trainers.sources.local_model import LocalFolder

ROW_TOKENS = 64
CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 256,
    "hidden_size": 512,
    "intermediate_size": 1408,
    "num_hidden_layers": 11,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": ROW_TOKENS,
    "tie_word_embeddings": False,
}
"""A Llama of 33 M parameters over bytes; its weights are random."""
LORA = Lora(r=16, alpha=32.0)
CODEC = "int4"
RATE = 3e-3
ROUNDS, LOCAL_STEPS = 3, 10
HELD_OUT = 32
SPEED_STEPS, SPEED_PAIRS = 2, 5
NOTES = (
    f"An adapter (r = {LORA.r}, beside every linear layer) of a Llama of 33 M parameters with random weights, on the "
    "CPU in float32, in one thread. A result is what a client sends in a round. `--trainer torch` and a loop of `peft` "
    f"and torch written by hand take {SPEED_STEPS} steps in turn, {SPEED_PAIRS} times: the row is the pair whose ratio "
    f"is the median, so that other programs slow both. The loss is that after {ROUNDS} rounds of {LOCAL_STEPS} local "
    f"steps of {CLIENTS} clients with the codec {CODEC}; one machine takes as many steps on the same samples.",
)
"""What the page says of the figures."""


async def measure(folder: Path) -> list[Figure]:
    """Measure bytes of a result, tokens a second, and held-out loss."""
    import torch

    from epochal.trainers.torch.torch_options import TorchOptions

    torch.set_num_threads(1)
    base = folder / "base"
    spec = _write_base(base)
    model = open_model(spec, options=TorchOptions(device="cpu", base=base))
    found = await asyncio.to_thread(library_text)
    text = Text(found.training[:, :ROW_TOKENS], found.held_out[:, :ROW_TOKENS])
    adapter, whole = (_result_bytes(model_layout(one)) for one in (spec, spec.whole))
    speeds = _Speeds.measured(model, base, text.training)
    swarm, alone = [await _trained(model, clients, text) for clients in (CLIENTS, 1)]
    millions = model_layout(spec.whole).size_bytes / 4e6
    name, speed = f"a result of an adapter, {CODEC}", "tokens trained of an adapter, --trainer torch, cpu"
    loss = f"held-out loss of an adapter, {CLIENTS} clients"
    return [
        Figure(name, adapter / 1e6, "MB", "", whole / 1e6, f"of all {millions:.0f} M parameters"),
        Figure(speed, speeds.ours, "tokens/s", ">= 0.97 x", speeds.bare, "a bare loop of peft"),
        Figure(loss, swarm, "nats", "<= 1.02 x", alone, "one machine"),
    ]


def _write_base(folder: Path) -> ModelSpec:
    """Write the base with random weights, and return the run's model."""
    import torch
    from transformers import AutoModelForCausalLM, LlamaConfig

    torch.manual_seed(0)
    config = LlamaConfig(**{key: value for key, value in CONFIG.items() if key != "model_type"})
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(folder)
    files = FolderSource(LocalFolder(folder)).weight_files()
    return ModelSpec(architecture=Architecture.HF_LLAMA, hf=CONFIG, adapter=LORA, base=files)


def _result_bytes(layout: TensorLayout) -> int:
    return codec_named(CODEC).encoded(layout).size_bytes


@dataclass(frozen=True, slots=True)
class _Speeds:
    """Tokens a second of the pair whose ratio is the median."""

    ours: float
    bare: float

    @classmethod
    def measured(cls, model: Model, base: Path, rows: Rows) -> "_Speeds":
        learner = model.learner()
        learner.load(model.initial_parameters(bytes(32)))
        loop = _BareLoop(base)
        pairs = []
        for number in range(SPEED_PAIRS + 1):  # the first one warms up
            samples = rows[number * CLIENTS * SPEED_STEPS :][: CLIENTS * SPEED_STEPS].reshape(SPEED_STEPS, CLIENTS, -1)
            begun_s = time.perf_counter()
            for step in samples:
                found = learner.accumulate([Example(row) for row in step])
                learner.step(OPTIMIZER, RATE, found.token_count)
            float(found.nats)
            ours_s = time.perf_counter() - begun_s
            begun_s = time.perf_counter()
            loop.train(samples)
            pairs.append((ours_s, time.perf_counter() - begun_s))
        tokens = SPEED_STEPS * CLIENTS * (ROW_TOKENS - 1)
        ours_s, bare_s = sorted(pairs[1:], key=lambda pair: pair[0] / pair[1])[SPEED_PAIRS // 2]
        return cls(tokens / ours_s, tokens / bare_s)


class _BareLoop:
    """What a good loop by hand does: `peft` itself, fused AdamW, and no waiting for losses."""

    def __init__(self, base: Path) -> None:
        import torch
        from peft import LoraConfig, get_peft_model
        from transformers import AutoModelForCausalLM

        whole = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
        config = LoraConfig(r=LORA.r, lora_alpha=LORA.alpha, target_modules="all-linear", task_type="CAUSAL_LM")
        self._model = get_peft_model(whole, config)
        self._model.train()
        self._trained = [one for one in self._model.parameters() if one.requires_grad]
        self._optimizer = torch.optim.AdamW(
            self._trained, lr=RATE, betas=OPTIMIZER.betas, eps=OPTIMIZER.eps, weight_decay=0.1, fused=True
        )

    def train(self, steps: Rows) -> None:
        """Take an optimizer step on each group of samples."""
        import torch

        for rows in torch.from_numpy(steps.astype(np.int64)):
            logits = self._model(input_ids=rows, use_cache=False).logits[:, :-1]
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self._trained, OPTIMIZER.clip_grad_norm or 1.0)
            self._optimizer.step()
            self._optimizer.zero_grad(set_to_none=True)


async def _trained(model: Model, clients: int, text: Text) -> float:
    """Return the held-out loss after a run of so many clients, which pass over the same samples once."""
    setting = Setting(RATE, clients, LOCAL_STEPS, codec=CODEC if clients > 1 else "float32", error_feedback=clients > 1)
    members = [Client(setting, model) for _ in range(clients)]
    replica = first_replica(0, model.initial_parameters(bytes(32)))
    count = CLIENTS * LOCAL_STEPS
    for step in range(1, ROUNDS + 1):
        replica = await _merged(members, replica, text.training[(step - 1) * count : step * count])
    return held_out_loss(model, replica, text.held_out[:HELD_OUT])


async def _merged(members: list[Client], replica: Replica, rows: Rows) -> Replica:
    """Return the replica after a round in which each has an equal part of the samples."""
    part = len(rows) // len(members)
    results: list[tuple[Weight, Difference]] = []
    for number, member in enumerate(members):
        plan = RoundPlan(replica.step + 1, (BatchId(0, part - 1),), 1, (RATE,) * LOCAL_STEPS)
        own = rows[number * part : (number + 1) * part]
        results.append((Weight(part), await member.difference(plan, replica, own)))
    rule = UpdateRule.of(MergeConfig(update="exact"))
    header = UpdateHeader("adapters", replica.step + 1, "", rule.codec)
    update = decode_update(update_bytes(header, rule, replica.layout, results), header, replica.layout)
    return merge(replica, update, OuterStep(1.0, 0.0))
