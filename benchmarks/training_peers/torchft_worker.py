"""`python -m benchmarks.training_peers.torchft_worker TOKENS NUMBER`: one replica group of torchft's DiLoCo.

Runs under the peers' interpreter. As torchft's own example of DiLoCo: a group of one process over gloo (5 s), a manager
(30 s) with a synchronous quorum, SGD with Nesterov momentum outside. TORCHFT_LIGHTHOUSE names the lighthouse.
TORCHFT_USE_BUCKETIZATION=True reduces all parameters at once.
"""

import os
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch.distributed import TCPStore
from torchft import Manager, ProcessGroupGloo
from torchft.local_sgd import DiLoCo
from transformers import LlamaForCausalLM  # noqa: F401 - its time is that of the imports

from benchmarks.training_peers.workload import (
    LOCAL_STEPS,
    OUTER_MOMENTUM,
    OUTER_RATE,
    TOKENS_PER_STEP,
    LocalTraining,
    tell,
)

HOST = "localhost"
GLOO_TIMEOUT = timedelta(seconds=5)
MANAGER_TIMEOUT = timedelta(seconds=30)


def main() -> None:
    """Train until the process is ended, and tell of each applied step."""
    tell("imported")
    number = int(sys.argv[2])
    training = LocalTraining(Path(sys.argv[1]), number)
    model, inner = training.model, training.optimizer
    outer = torch.optim.SGD(model.parameters(), lr=OUTER_RATE, momentum=OUTER_MOMENTUM, nesterov=True)
    healed = False

    def load_state_dict(state: dict[str, Any]) -> None:
        nonlocal healed
        healed = True
        model.load_state_dict(state["model"])
        inner.load_state_dict(state["inner"])

    def state_dict() -> dict[str, Any]:
        return {"model": model.state_dict(), "inner": inner.state_dict()}

    store = TCPStore(HOST, 0, is_master=True, wait_for_workers=False)
    manager = Manager(
        pg=ProcessGroupGloo(timeout=GLOO_TIMEOUT),
        load_state_dict=load_state_dict,
        state_dict=state_dict,
        min_replica_size=1,
        use_async_quorum=False,
        timeout=MANAGER_TIMEOUT,
        replica_id=f"worker_{number}",
        rank=0,
        world_size=1,
        store_addr=HOST,
        store_port=store.port,
        lighthouse_addr=os.environ["TORCHFT_LIGHTHOUSE"],
        hostname=HOST,
    )
    step = tokens = 0
    with DiLoCo(manager, [model], inner, outer, sync_every=LOCAL_STEPS):
        while True:
            training.gradients()
            inner.step()
            inner.zero_grad()
            if manager.current_step() != step:
                step = manager.current_step()
                # in the step in which it heals, a worker's difference is that of the worker whose state it loaded
                tokens += 0 if healed else LOCAL_STEPS * TOKENS_PER_STEP
                tell("applied", step=step, members=manager.num_participants(), own=not healed, tokens=tokens)
                healed = False


if __name__ == "__main__":
    main()
