"""The model, the data and the local steps that every system trains.

Imported by the workers of the peers, under their own interpreters: it needs NumPy, torch and transformers alone.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

WORKERS = 4
LENGTH = 256
STEP_ROWS = 2
LOCAL_STEPS = 30
RATE = 3e-4
BETAS = (0.9, 0.95)
WEIGHT_DECAY = 0.1
EPS = 1e-8
CLIP_NORM = 1.0
OUTER_RATE = 0.7
OUTER_MOMENTUM = 0.9
HF: dict[str, Any] = {
    "vocab_size": 512,
    "hidden_size": 128,
    "intermediate_size": 352,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": LENGTH,
    "tie_word_embeddings": True,
}
"""A Llama of 0.8 M parameters."""
TOKENS_PER_STEP = STEP_ROWS * LENGTH
TOKENS_PER_ROUND = WORKERS * LOCAL_STEPS * TOKENS_PER_STEP


def tell(event: str, **fields: Any) -> None:
    """Print one event as a line of JSON, with its time."""
    sys.stdout.write(json.dumps({"time_s": time.time(), "event": event, **fields}) + "\n")
    sys.stdout.flush()


class LocalTraining:
    """A peer's worker: the model, its AdamW, and rows of the token file in an order of its own."""

    def __init__(self, tokens: Path, number: int) -> None:
        import torch
        from transformers import AutoModelForCausalLM, LlamaConfig

        torch.set_num_threads(1)
        torch.manual_seed(0)  # every worker starts from the same parameters
        self.model = AutoModelForCausalLM.from_config(LlamaConfig(**HF), dtype=torch.float32)
        self.model.config.use_cache = False
        self.model.train()
        groups = [
            {"params": [one for one in self.model.parameters() if one.ndim > 1], "weight_decay": WEIGHT_DECAY},
            {"params": [one for one in self.model.parameters() if one.ndim <= 1], "weight_decay": 0.0},
        ]
        self.optimizer = torch.optim.AdamW(groups, lr=RATE, betas=BETAS, eps=EPS, fused=True)
        self._rows = np.fromfile(tokens, dtype="<u2").reshape(-1, LENGTH)
        self._order = np.random.default_rng(number)

    def gradients(self) -> None:
        """Compute the clipped gradients of the next step's rows."""
        import torch

        chosen = self._rows[self._order.integers(0, len(self._rows), STEP_ROWS)]
        inputs = torch.from_numpy(chosen.astype(np.int64))
        targets = torch.nn.functional.pad(inputs[:, 1:], (0, 1), value=-100)
        logits = self.model(input_ids=inputs).logits
        torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten()).backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), CLIP_NORM)
