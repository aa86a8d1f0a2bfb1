"""Host memory of the `torch` trainer, of a whole client and of its coordinator, in bytes per parameter of the model.

Two models that differ in their number of layers alone are measured in processes of their own. The difference of the
memory divided by the difference in parameters is what a parameter takes: interpreter, libraries and activations are in
both. `python -m benchmarks.training.torch_memory LAYERS DEVICE` is a process that trains without a run, and prints
JSON.
"""

import asyncio
import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.figures import Figure
from benchmarks.process_usage import memory_bytes
from benchmarks.servers import LONG, RUN_ID, coordinator_of
from benchmarks.training.torch_rounds import OPTIMIZER, RATE
from epochal.batching.micro_batches import Example
from epochal.state.config.model_table import Architecture, ModelSpec
from epochal.state.errors import EpochalError
from epochal.state.merging import OuterStep, merge
from epochal.state.model.replica import Replica
from epochal.state.results import ResultHeader, result_of
from epochal.state.wire import ClientId, Sha256
from epochal.tools.testnet.child_processes import Child
from epochal.trainers.architectures import open_model
from epochal.trainers.protocol import TrainedRound
from tests.support.data.states import state_text

LAYERS = (4, 16)
CLIENTS = 2
ROUNDS = 4
LENGTH = 16
TIMEOUT_S = 300.0
MIB = 1024 * 1024
POLL_S = 0.1
HWM, RSS = "VmHWM", "VmRSS"
LIBRARIES = "libraries"
AGAIN = "the next gradient"
REPLICA, MODULE, GRADIENT, MOMENTS, DIFFERENCE, FILE, MERGED, KEPT = STAGES = (
    "replica: parameters and outer momentum",
    "the module's own parameters",
    "gradients",
    "AdamW's two moments",
    "the result, as differences",
    "the result's file, hashed and sent tensor by tensor",
    "the next replica, while both are held",
    "moments kept for the next round (inner_state keep)",
)
EXPECTED = (8, 4, 4, 8, 4, 0, 8, 8)
"""Bytes per parameter of each of `STAGES`: 4 for each float32 array of the model's size."""
UNIT = "B/parameter"
NOTES = (
    f"Memory: the difference between Llamas of {LAYERS[0]} and {LAYERS[1]} layers, divided by that of their "
    "parameters. A row of the trainer is what this stage of a round adds at its peak.",
)
"""What the page says of the figures."""
CLIENT_HOLDS = "all of the above but the gradients; replicas and results are files, of which some pages are resident"
COORDINATOR_HOLDS = "the parameters of step 0, which transformers makes at once"


def config_of(layers: int) -> dict[str, Any]:
    """Return the config of a Llama of so many layers, each of 2.8 M parameters."""
    return {
        "model_type": "llama",
        "vocab_size": 256,
        "hidden_size": 512,
        "intermediate_size": 1376,
        "num_hidden_layers": layers,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "max_position_embeddings": LENGTH,
        "tie_word_embeddings": True,
    }


class _Stages:
    """Resident memory after each stage, and the peak within it."""

    def __init__(self) -> None:
        self.found: dict[str, tuple[int, int]] = {}
        self._reset()

    def end(self, name: str) -> None:
        self.found[name] = (memory_bytes(RSS), memory_bytes(HWM))
        self._reset()

    def _reset(self) -> None:
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew


def _staged(layers: int, device: str) -> dict[str, Any]:
    """Take a round's steps one after the other, and return the model's parameters and the memory of each stage."""
    import torch
    from transformers import LlamaForCausalLM  # imported before the first stage

    from epochal.trainers.torch.torch_options import TorchOptions

    assert LlamaForCausalLM
    spec = ModelSpec(architecture=Architecture.HF_LLAMA, hf=config_of(layers))
    model = open_model(spec, options=TorchOptions(device=device))
    learner = model.learner()
    stages = _Stages()
    stages.end(LIBRARIES)
    parameters = model.initial_parameters(bytes(32))
    replica = Replica(1, parameters, {name: np.full_like(values, RATE) for name, values in parameters.items()})
    stages.end(REPLICA)
    learner.load(replica.parameters)
    stages.end(MODULE)
    example = [Example(np.zeros(LENGTH, "<u2"))]
    loss = learner.accumulate(example)
    stages.end(GRADIENT)
    learner.step(OPTIMIZER, RATE, loss.token_count)
    stages.end(MOMENTS)
    learner.accumulate(example)
    stages.end(AGAIN)
    trained = TrainedRound.between(1, replica.parameters, learner.parameters, loss)
    stages.end(DIFFERENCE)
    header = ResultHeader("r", 1, 1, ClientId("0" * 64), Sha256("0" * 64), Sha256("0" * 64))
    result_of(header, trained.difference).sha256()
    stages.end(FILE)
    merged = merge(replica, trained.difference, OuterStep(0.7, 0.8))
    stages.end(MERGED)
    state = learner.inner_state
    learner.load(merged.parameters)
    stages.end(KEPT)
    assert len(state.tensors)
    found = {"parameters": sum(values.size for values in merged.parameters.values()), "stages": stages.found}
    if device != "cpu":
        found["device_bytes"] = torch.cuda.max_memory_allocated()
    return found


def _per_parameter(small: Mapping[str, Any], large: Mapping[str, Any]) -> list[float]:
    """Return what each of `STAGES` adds to the memory before it, in bytes per parameter."""
    parameters = large["parameters"] - small["parameters"]
    names = list(small["stages"])
    found = []
    for name in STAGES:
        before = names[names.index(name) - 1]
        grown = [peer["stages"][name][1] - peer["stages"][before][0] for peer in (small, large)]
        found.append((grown[1] - grown[0]) / parameters)
    return found


async def _in_process(layers: int, device: str) -> dict[str, Any]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks.training.torch_memory", str(layers), device),
        stdout=asyncio.subprocess.PIPE,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    async with asyncio.timeout(TIMEOUT_S):
        printed, _ = await process.communicate()
    if process.returncode:
        raise EpochalError(f"training a model of {layers} layers failed")
    found: dict[str, Any] = json.loads(printed.splitlines()[-1])
    return found


async def _peak_bytes(child: Child, until: asyncio.Event) -> int:
    """Return the peak of a process, looking at it until it ends or the event is set."""
    peak = 0
    while child.running and not until.is_set():
        with contextlib.suppress(OSError, EpochalError):  # it has just ended
            peak = memory_bytes(HWM, child.process.pid)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(POLL_S):
                await until.wait()
    return peak


def _state(layers: int) -> str:
    config = LONG | {
        "epoch_time": 600,
        "max_round_train_time": 300,
        "waiting_for_members_extra_time": 0.05,
        "init_min_clients": CLIENTS,
        "global_batch_size_start": CLIENTS,
        "global_batch_size_end": CLIENTS,
        "total_steps": ROUNDS,
    }
    overrides: dict[str, Any] = {f"config__{name}": value for name, value in config.items()}
    return state_text(
        run_id=RUN_ID,
        model__LLM__architecture="HfLlama",
        model__LLM__hf=config_of(layers),
        model__LLM__max_seq_len=LENGTH,
        model__LLM__optimizer={"AdamW": OPTIMIZER.model_dump(mode="json")},
        merge__inner_state="keep",
        merge__codec="float32",
        **overrides,
    )


async def _peaks_of_a_run(layers: int, folder: Path) -> tuple[int, int]:
    """Return the peaks of a client, the larger one, and of the coordinator, over a run with a checkpoint at its end."""
    async with coordinator_of(_state(layers), folder) as process:
        ended = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            coordinator = group.create_task(_peak_bytes(process.child, ended))
            clients = [
                await process.children.start(
                    f"client-{number}", *("client", process.url, "--trainer", "torch", "--device", "cpu")
                )
                for number in range(CLIENTS)
            ]
            peaks = [group.create_task(_peak_bytes(client, ended)) for client in clients]
            for client in clients:
                if await client.wait(TIMEOUT_S) != 0:
                    raise EpochalError(f"{client.name} did not finish:\n{client.log_tail()}")
            ended.set()
    return max(peak.result() for peak in peaks), coordinator.result()


async def measure(folder: Path) -> list[Figure]:
    """Measure the memory of a trainer step by step, and of the processes of a run."""
    import torch

    small, large = [await _in_process(layers, "cpu") for layers in LAYERS]
    parameters = large["parameters"] - small["parameters"]
    figures = [
        Figure(f"host memory: {name}", found, UNIT, "", expected, f"{expected // 4} float32")
        for name, found, expected in zip(STAGES, _per_parameter(small, large), EXPECTED, strict=True)
    ]
    peaks = []
    for layers in LAYERS:
        with tempfile.TemporaryDirectory(dir=folder) as run_folder:
            peaks.append(await _peaks_of_a_run(layers, Path(run_folder)))
    client, coordinator = ((after - before) / parameters for before, after in zip(*peaks, strict=True))
    held = sum(
        expected for name, expected in zip(STAGES, EXPECTED, strict=True) if name not in (GRADIENT, REPLICA, MERGED)
    )
    figures += [
        Figure(f"host memory: a whole client of {CLIENTS}, at its peak", client, UNIT, "", held, CLIENT_HOLDS),
        Figure("host memory: their coordinator, at its peak", coordinator, UNIT, "", 4, COORDINATOR_HOLDS),
    ]
    return [*figures, await _on_a_device(torch.cuda.is_available())]


async def _on_a_device(is_there: bool) -> Figure:
    name = "device memory of a client: parameters, gradients and moments"
    if not is_there:
        return Figure(name, None, UNIT, "", 16, "no GPU here; 4 float32")
    small, large = [await _in_process(layers, "cuda") for layers in LAYERS]
    found = (large["device_bytes"] - small["device_bytes"]) / (large["parameters"] - small["parameters"])
    return Figure(name, found, UNIT, "", 16, "4 float32")


def main() -> None:
    """Print the memory of the stages of training a model of so many layers."""
    sys.stdout.write(json.dumps(_staged(int(sys.argv[1]), sys.argv[2])) + "\n")


if __name__ == "__main__":
    main()
