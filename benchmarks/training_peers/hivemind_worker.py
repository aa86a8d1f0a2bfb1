"""`python -m benchmarks.training_peers.hivemind_worker TOKENS NUMBER`: one peer of hivemind's optimizer.

Runs under hivemind's own interpreter. As in hivemind's quickstart: local updates, and parameters averaged in the
background once all peers together have trained a round's samples. HIVEMIND_PEERS holds addresses of the DHT, separated
by commas; with `bootstrap` instead of arguments, the process only holds the DHT and prints its addresses. A NUMBER of
at least WORKERS is a newcomer's, which loads the others' state first.
MATCHMAKING_S and AVERAGING_TIMEOUT_S set the two time limits of the quickstart.
"""

import logging
import os
import sys
import threading
from pathlib import Path

import hivemind
from transformers import LlamaForCausalLM  # noqa: F401 - its time is that of the imports

from benchmarks.training_peers.workload import LOCAL_STEPS, STEP_ROWS, TOKENS_PER_STEP, WORKERS, LocalTraining, tell

ADDRESS = ["/ip4/127.0.0.1/tcp/0"]
AVERAGED, FAILED, RECEIVED = "Averaged parameters with ", "Averaging failed", "Received parameters"


class _Averaging(logging.Handler):
    """Follows the averaging rounds in the log of hivemind's state averager: it tells of them nowhere else."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.group_size = 0
        self.received_size = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Note with how many peers the last round averaged, and when its parameters were taken over."""
        message = record.getMessage()
        if message.startswith(AVERAGED):
            self.group_size = int(message.removeprefix(AVERAGED).split()[0])
        elif message.startswith(FAILED):
            self.group_size = 0
        elif message.startswith(RECEIVED):
            self.received_size, self.group_size = self.group_size, 0


def _bootstrap() -> None:
    dht = hivemind.DHT(host_maddrs=ADDRESS, start=True)
    tell("listening", addresses=[str(address) for address in dht.get_visible_maddrs()])
    threading.Event().wait()


def main() -> None:
    """Train until the process is ended, and tell of each applied averaging round."""
    if sys.argv[1] == "bootstrap":
        _bootstrap()
    tell("imported")
    number = int(sys.argv[2])
    training = LocalTraining(Path(sys.argv[1]), number)
    dht = hivemind.DHT(host_maddrs=ADDRESS, initial_peers=os.environ["HIVEMIND_PEERS"].split(","), start=True)
    averaging = _Averaging()
    logging.getLogger("hivemind.optim.state_averager").addHandler(averaging)
    optimizer = hivemind.Optimizer(
        dht=dht,
        run_id="peers",
        batch_size_per_step=STEP_ROWS,
        target_batch_size=WORKERS * LOCAL_STEPS * STEP_ROWS,
        optimizer=training.optimizer,
        use_local_updates=True,
        matchmaking_time=float(os.environ["MATCHMAKING_S"]),
        averaging_timeout=float(os.environ["AVERAGING_TIMEOUT_S"]),
        verbose=True,
    )
    if number >= WORKERS:
        optimizer.load_state_from_peers()
    tokens = 0
    while True:
        training.gradients()
        optimizer.step()
        optimizer.zero_grad()
        tokens += TOKENS_PER_STEP
        if averaging.received_size > 1:
            tell("applied", step=optimizer.local_epoch, members=averaging.received_size, own=True, tokens=tokens)
        averaging.received_size = 0


if __name__ == "__main__":
    main()
