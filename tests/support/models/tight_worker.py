"""A mesh's worker whose second process has a device with room for two rows; a process of its own."""

import asyncio
from typing import Any

import torch
import torch.distributed as dist
from transformers import LlamaForCausalLM

from epochal.trainers.mesh.worker import main

ROOM = 2

if __name__ == "__main__":
    forward = LlamaForCausalLM.forward

    def tight(self: Any, input_ids: torch.Tensor, **named: Any) -> Any:
        is_second = dist.is_initialized() and dist.get_rank() == 1  # before, the model is only tried out
        if is_second and len(input_ids) > ROOM:
            raise torch.OutOfMemoryError(f"room for {ROOM} rows, not for {len(input_ids)}")
        return forward(self, input_ids=input_ids, **named)

    LlamaForCausalLM.forward = tight
    asyncio.run(main())
