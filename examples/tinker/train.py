"""Trains the embedded model through the tinker SDK's own client, on the sources of Python's standard library.

epochal trainer-service --tinker --weights-dir weights
python examples/tinker/train.py http://127.0.0.1:8100 [STEPS]

Both read the service's token from EPOCHAL_TRAINER_TOKEN, if it has one.
"""

import os
import sys

import numpy as np
import tinker
from tinker import types

from epochal.tools.testnet.demo_data import stdlib_text

SAMPLE_BYTES = 256
SAMPLES_PER_STEP = 64
DEFAULT_STEPS = 60


def datum_of(text: bytes) -> types.Datum:
    """Return a datum that predicts each byte from those before it."""
    tokens = list(text)
    return types.Datum(
        model_input=types.ModelInput.from_ints(tokens[:-1]),
        loss_fn_inputs={"target_tokens": types.TensorData(data=tokens[1:], dtype="int64")},
    )


def main(url: str, steps: int) -> None:
    text = stdlib_text(2_000_000)
    starts = np.random.default_rng(0).integers(0, len(text) - SAMPLE_BYTES, (steps, SAMPLES_PER_STEP))
    token = os.environ.get("EPOCHAL_TRAINER_TOKEN", "example")  # a service without a token takes any
    client = tinker.ServiceClient(base_url=url, api_key=f"tml-{token}")
    training = client.create_lora_training_client("epochal-ngram:hidden=32", seed=1).result()
    for number, row in enumerate(starts.tolist(), start=1):
        data = [datum_of(text[start : start + SAMPLE_BYTES]) for start in row]
        done = training.forward_backward(data, "cross_entropy")
        step = training.optim_step(types.AdamParams(learning_rate=0.01))
        metrics = done.result().metrics
        step.result()
        if number in (1, steps) or number % 10 == 0:
            print(f"step {number}: {metrics['loss:sum'] / metrics['tokens:sum']:.3f} nats per byte", flush=True)
    print(f"saved as {training.save_state('last').result().path}")
    client.close("success").result()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else DEFAULT_STEPS)
