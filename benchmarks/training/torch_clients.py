"""A whole round of two `torch` clients on loopback: the share that is not training, and where it goes.

Coordinator and clients are processes of their own, each client with one thread; the run makes checkpoints. The times
are those of the clients' own logs.
"""

import itertools
import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.figures import Figure
from benchmarks.servers import LONG, RUN_ID, coordinator_of
from benchmarks.training.torch_rounds import OPTIMIZER
from epochal.state.errors import EpochalError
from epochal.tools.testnet.child_processes import Child
from epochal.tools.testnet.demo_data import write_demo_data
from tests.support.data.states import state_text

CLIENTS = 2
ROUNDS = 7
FIRST_MEASURED = 2
"""The rounds before it warm the processes up."""
EPOCH_S = 85
"""A checkpoint every three rounds of half a minute."""
LENGTH = 256
LOCAL_STEPS = 20
CLIENT_SAMPLES = 160
MAX_ROUND_TRAIN_S = 80
RUN_TIMEOUT_S = 600.0
CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 512,
    "hidden_size": 256,
    "intermediate_size": 704,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": LENGTH,
    "tie_word_embeddings": True,
}
"""A Llama of 6 M parameters: its results are 24 MB."""
NOTES = (
    f"A whole round: {CLIENTS} clients with `--trainer torch`, of one thread each, train a Llama of 6 M parameters "
    "through a coordinator on loopback; a result is 24 MB (float32), and there is a checkpoint every "
    f"{EPOCH_S} s. The parts are of a client's time from one round's training to the next, by the clients' logs; "
    f"means over both clients and all rounds from {FIRST_MEASURED}.",
)
"""What the page says of the figures."""
PARTS = (
    "training",
    "waiting for samples",
    "encoding and announcing the result",
    "uploading it",
    "waiting for the other client",
    "fetching the other's result, attesting both",
    "from the attestation to the outcome",
    "merging",
    "the new replica's digest, and the next round's start",
    "checkpoint, and the next epoch's start",
)
"""What a client does from the start of a round's training to that of the next, in this order."""
EVENT_LOG = "epochal.cli.output.client_log"
"""The logger of a client's events."""
Line = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Round:
    """One client's round by its log: wall-clock times in seconds.

    Attributes:
        started_s: when training could begin: the step was entered and the replica held.
        train_s: training, waits for samples included.
        data_wait_s: waits for samples.
        upload_s: time in which the result was sent.
        delivered_s: when the result was with the coordinator.
        attested_s: when the client had attested what it holds.
        merge_s: time of the merge.
        merged_s: when the merge ended.
        cooldown_s: when the checkpoint's step began; None in a round without.
    """

    started_s: float
    train_s: float
    data_wait_s: float
    upload_s: float
    delivered_s: float
    attested_s: float
    merge_s: float
    merged_s: float
    cooldown_s: float | None = None

    def parts(self, slowest_s: float, next_started_s: float) -> tuple[float, ...]:
        """Return how long each of `PARTS` took; together they are the time until the next round's start.

        Args:
            slowest_s: when the last client had delivered.
            next_started_s: when training of the next round could begin.
        """
        trained_s = self.started_s + self.train_s
        merge_began_s = self.merged_s - self.merge_s
        ended_s = self.cooldown_s or next_started_s
        fetched_from_s = min(max(slowest_s, self.delivered_s), self.attested_s)
        return (
            self.train_s - self.data_wait_s,
            self.data_wait_s,
            self.delivered_s - trained_s - self.upload_s,
            self.upload_s,
            fetched_from_s - self.delivered_s,
            self.attested_s - fetched_from_s,
            merge_began_s - self.attested_s,
            self.merge_s,
            max(ended_s, self.merged_s) - self.merged_s,
            next_started_s - max(ended_s, self.merged_s),
        )


def rounds_of(lines: Iterable[Line]) -> dict[int, Round]:
    """Return a client's complete rounds by step, from the lines of its log with `--verbose`, in their order."""
    entered: dict[int, float] = {}
    cooldown: dict[int, float] = {}
    upload: dict[int, float] = {}
    by_step: dict[str, dict[int, Line]] = {
        "replica_held": {},
        "round_trained": {},
        "attested": {},
        "outcome_merged": {},
    }
    sent_s = 0.0
    for line in lines:
        if line["logger"] != EVENT_LOG:
            continue
        event = line["event"]
        if event == "step_entered" and line["step_name"] == "Training":
            entered.setdefault(line["run_step"], line["time_s"])
        elif event == "step_entered" and line["step_name"] == "Cooldown":
            cooldown.setdefault(line["run_step"] - 1, line["time_s"])
        elif event == "blob_sent":
            sent_s = line["duration_s"]
        elif event in by_step:
            by_step[event][line["step"]] = line
            if event == "round_trained":
                upload[line["step"]] = sent_s
    held, trained, attested, merged = by_step.values()
    return {
        step: Round(
            started_s=max(entered[step], held[step - 1]["time_s"]),
            train_s=trained[step]["train_s"],
            data_wait_s=trained[step]["data_wait_s"],
            upload_s=upload[step],
            delivered_s=trained[step]["time_s"],
            attested_s=attested[step]["time_s"],
            merge_s=merged[step]["merge_s"],
            merged_s=merged[step]["time_s"],
            cooldown_s=cooldown.get(step),
        )
        for step in sorted(entered)
        if step in trained and step in attested and step in merged and step - 1 in held
    }


def shares(clients: Sequence[Mapping[int, Round]]) -> tuple[float, tuple[float, ...]]:
    """Return the mean time of a round in seconds, and the share of it that each of `PARTS` takes.

    Args:
        clients: each client's rounds by step; the last one only says when the one before it ended.
    """
    steps = sorted(set.intersection(*(set(rounds) for rounds in clients)))
    found = []
    for step, following in itertools.pairwise(steps):
        slowest_s = max(rounds[step].delivered_s for rounds in clients)
        found += [rounds[step].parts(slowest_s, rounds[following].started_s) for rounds in clients]
    means = [statistics.fmean(column) for column in zip(*found, strict=True)]
    return sum(means), tuple(mean / sum(means) for mean in means)


def _lines(child: Child) -> list[Line]:
    return [json.loads(line) for line in child.log_path.read_text(encoding="utf-8").splitlines() if line[:1] == "{"]


def _state(data: Path, rounds: int) -> str:
    batches = CLIENTS * CLIENT_SAMPLES
    config = LONG | {
        "epoch_time": EPOCH_S,
        "max_round_train_time": MAX_ROUND_TRAIN_S,
        "waiting_for_members_extra_time": 0.05,
        "init_min_clients": CLIENTS,
        "min_clients": CLIENTS,
        "global_batch_size_start": batches,
        "global_batch_size_end": batches,
        "total_steps": rounds,
    }
    overrides: dict[str, Any] = {f"config__{name}": value for name, value in config.items()}
    return state_text(
        run_id=RUN_ID,
        model__LLM__architecture="HfLlama",
        model__LLM__hf=CONFIG,
        model__LLM__max_seq_len=LENGTH,
        model__LLM__optimizer={"AdamW": OPTIMIZER.model_dump(mode="json")},
        model__LLM__data_location={"Local": str(data)},
        merge__local_steps=LOCAL_STEPS,
        merge__inner_state="keep",
        merge__codec="float32",
        **overrides,
    )


async def measure(folder: Path) -> list[Figure]:
    """Measure the mean round of two clients, and its parts."""
    data = folder / "data"
    write_demo_data(data)
    async with coordinator_of(_state(data, ROUNDS), folder) as process:
        clients = [
            await process.children.start(
                f"client-{number}", *("client", process.url, "--trainer", "torch", "--device", "cpu", "--verbose")
            )
            for number in range(CLIENTS)
        ]
        for client in clients:
            if await client.wait(RUN_TIMEOUT_S) != 0:
                raise EpochalError(f"{client.name} did not finish:\n{client.log_tail()}")
    measured = [rounds_of(_lines(client)) for client in clients]
    round_s, parts = shares([{s: one for s, one in rounds.items() if s >= FIRST_MEASURED} for rounds in measured])
    checkpoints = sum(one.cooldown_s is not None for one in measured[0].values())
    name = f"a round of {CLIENTS} torch clients, {checkpoints} checkpoints in {ROUNDS} rounds"
    return [
        Figure(name, round_s, "s", "about 30 s"),
        Figure("of it not training", (1 - parts[0]) * 100, "%", "≤ 5 %"),
        *(
            Figure(f"— {part}", share * 100, "%", "", None, f"{share * round_s * 1000:,.0f} ms a round")
            for part, share in zip(PARTS[1:], parts[1:], strict=True)
        ),
    ]
