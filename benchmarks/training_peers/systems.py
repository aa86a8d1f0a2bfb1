"""The systems under measurement: how each one's services and workers are started.

Each system has two settings: `usual`, which are its own defaults or those of its documentation's example, and `quick`,
in which every time limit that decides how soon a lost worker is noticed is as short as this machine allows.
"""

import json
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from string import Template
from types import MappingProxyType

from benchmarks.training_peers.event_lines import EpochalEvents, EventReader
from benchmarks.training_peers.processes import Worker, start
from benchmarks.training_peers.workload import (
    BETAS,
    CLIP_NORM,
    EPS,
    HF,
    LENGTH,
    LOCAL_STEPS,
    OUTER_MOMENTUM,
    OUTER_RATE,
    RATE,
    STEP_ROWS,
    WEIGHT_DECAY,
    WORKERS,
)
from epochal.cli.output.printing import LISTENING
from epochal.state.errors import EpochalError

ROOT = Path(__file__).parents[2]
START_TIMEOUT_S = 120.0
POLL_S = 0.02
USUAL, QUICK = "usual", "quick"
SETTINGS = (USUAL, QUICK)
NO_VARIABLES: Mapping[str, str] = MappingProxyType({})
EPOCHAL, TORCHFT, HIVEMIND = "Epochal", "torchft", "hivemind"


class System(ABC):
    """One system, of which one run is measured. `end` ends every process that it started."""

    def __init__(self, folder: Path, tokens: Path, settings: str) -> None:
        self._folder, self._tokens, self._settings = folder, tokens, settings
        self._started: list[Worker] = []

    @abstractmethod
    def begin(self) -> None:
        """Start what the workers need. Raise `EpochalError` if it does not start."""

    @abstractmethod
    def start_worker(self, number: int) -> Worker:
        """Start a worker; one with a number of at least `WORKERS` is a newcomer."""

    def end(self) -> None:
        """End every process, the newest first."""
        for worker in reversed(self._started):
            worker.kill()

    def _start(
        self,
        name: str,
        command: Sequence[str],
        environment: Mapping[str, str] = NO_VARIABLES,
        reader: EventReader | None = None,
    ) -> Worker:
        log_is_error = reader is not None  # Epochal's log is its standard error
        path = self._folder / f"{name}.log"
        worker = start(command, path, reader or EventReader(), environment, log_is_error=log_is_error)
        self._started.append(worker)
        return worker

    def _printed(self, worker: Worker, text: str) -> str:
        """Return the first line of the worker's standard output that holds this text, once it is there."""
        ends_s = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < ends_s and worker.running:
            for line in worker.log_path.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True):
                if text in line and line.endswith("\n"):
                    return line.strip()
            time.sleep(POLL_S)
        raise EpochalError(f"{worker.name} did not start:\n{worker.log_tail()}")


STATE = Template("""\
run_id = "peers"

[config]
warmup_time = 30
cooldown_time = 30
epoch_time = 60
max_round_train_time = 50
round_witness_time = 10
waiting_for_members_extra_time = 1
min_clients = 1
init_min_clients = $workers
witness_nodes = 0
global_batch_size_start = $batches
global_batch_size_end = $batches
global_batch_size_warmup_tokens = 0
total_steps = 100000
data_indices_per_batch = $rows
client_timeout_s = $client_timeout_s

[model.LLM]
architecture = "HfLlama"
checkpoint = "Ephemeral"
data_type = "Pretraining"
data_location = { Local = "$tokens" }
max_seq_len = $length
hf = $hf

[model.LLM.lr_schedule.Constant]
base_lr = $rate
warmup_init_lr = 0.0
warmup_steps = 0

[model.LLM.optimizer.AdamW]
betas = $betas
weight_decay = $weight_decay
eps = $eps
clip_grad_norm = $clip_norm

[merge]
local_steps = $local_steps
outer_lr = $outer_rate
outer_momentum = $outer_momentum
inner_state = "keep"
""")
CLIENT_TIMEOUT_S = {USUAL: 30, QUICK: 2.5}
"""The default, and that of `epochal up`."""


def epochal_state(tokens: str, settings: str) -> str:
    """Return the state file of Epochal's run."""
    pairs = {"model_type": "llama", **HF}.items()
    return STATE.substitute(
        workers=WORKERS,
        batches=WORKERS * LOCAL_STEPS,
        rows=STEP_ROWS,
        client_timeout_s=CLIENT_TIMEOUT_S[settings],
        tokens=tokens,
        length=LENGTH,
        hf="{ " + ", ".join(f"{name} = {json.dumps(value)}" for name, value in pairs) + " }",
        rate=RATE,
        betas=list(BETAS),
        weight_decay=WEIGHT_DECAY,
        eps=EPS,
        clip_norm=CLIP_NORM,
        local_steps=LOCAL_STEPS,
        outer_rate=OUTER_RATE,
        outer_momentum=OUTER_MOMENTUM,
    )


class Installed(System):
    """A system with an interpreter of its own, for which nothing but the system is installed."""

    environment_name: str

    @classmethod
    def python(cls) -> Path:
        """Return the system's interpreter."""
        return ROOT / cls.environment_name / "bin" / "python"

    @classmethod
    def check_installed(cls, module: str) -> None:
        """Raise `EpochalError` with the reason if the system cannot be imported by its interpreter."""
        if not cls.python().exists():
            raise EpochalError(f"{cls.python()} does not exist; `make bench-peer-training` installs it")
        probe = subprocess.run([str(cls.python()), "-c", f"import {module}"], capture_output=True, text=True)
        if probe.returncode:
            log = cls.python().parents[1] / "install.log"
            lines = log.read_text(errors="replace").splitlines() if log.exists() else []
            installing = [line for line in lines if line.startswith("ERROR")]
            raise EpochalError((installing or probe.stderr.strip().splitlines())[-1])

    def _module(self, name: str, *arguments: str) -> list[str]:
        return [str(self.python()), "-m", f"benchmarks.training_peers.{name}", *arguments]


class Epochal(Installed):
    """A coordinator, and clients with `--trainer torch` that hold the data themselves."""

    environment_name = ".bench-peers-epochal"

    def begin(self) -> None:
        """Start the coordinator."""
        self.check_installed("epochal, torch, transformers")
        path = self._folder / "state.toml"
        path.write_text(epochal_state(str(self._tokens), self._settings), encoding="utf-8")
        command = [str(self.python()), "-m", "epochal", "coordinator", str(path), "--store", str(self._folder / "run")]
        coordinator = self._start("coordinator", [*command, "--port", "0"])
        self._url = self._printed(coordinator, LISTENING).partition(LISTENING)[2].split()[0]

    def start_worker(self, number: int) -> Worker:
        """Start a client."""
        command = [str(self.python()), "-m", "epochal", "client", self._url, "--trainer", "torch"]
        logging = ["--log-format", "json", "--verbose"]
        return self._start(f"worker-{number}", [*command, *logging], reader=EventReader(EpochalEvents()))


class Torchft(Installed):
    """A lighthouse, and one replica group of one process for each worker."""

    environment_name = ".bench-peers-torchft"
    LIGHTHOUSE = ("--min_replicas", "1", "--quorum_tick_ms", "100", "--join_timeout_ms", "10000")
    """The command line of torchft's example of DiLoCo."""
    QUICK_LIGHTHOUSE = ("--heartbeat_timeout_ms", "1000", "--join_timeout_ms", "1000")
    """Ten heartbeats, instead of fifty."""
    PORT = 29510

    def begin(self) -> None:
        """Start the lighthouse."""
        self.check_installed("torchft")
        command = [str(self.python().with_name("torchft_lighthouse")), "--bind", f"127.0.0.1:{self.PORT}"]
        options = [*self.LIGHTHOUSE]
        if self._settings == QUICK:
            options = [*self.LIGHTHOUSE[:4], *self.QUICK_LIGHTHOUSE]
        self._start("lighthouse", [*command, *options])

    def start_worker(self, number: int) -> Worker:
        """Start a replica group."""
        command = self._module("torchft_worker", str(self._tokens), str(number))
        environment = {"TORCHFT_LIGHTHOUSE": f"http://127.0.0.1:{self.PORT}", "GLOO_SOCKET_IFNAME": "lo"}
        if self._settings == QUICK:
            environment["TORCHFT_USE_BUCKETIZATION"] = "True"
        return self._start(f"worker-{number}", command, environment)


class Hivemind(Installed):
    """A process that holds the DHT, and peers that find each other through it."""

    environment_name = ".bench-peers-hivemind"
    LIMITS_S = {USUAL: (3.0, 10.0), QUICK: (1.0, 3.0)}  # noqa: RUF012 - a constant
    """Time for matchmaking and limit of an averaging round: those of hivemind's quickstart, and shorter ones."""

    def begin(self) -> None:
        """Start the process that holds the DHT."""
        self.check_installed("hivemind")
        told = self._printed(self._start("dht", self._module("hivemind_worker", "bootstrap")), "listening")
        self._addresses = ",".join(json.loads(told)["addresses"])

    def start_worker(self, number: int) -> Worker:
        """Start a peer."""
        matchmaking_s, averaging_s = self.LIMITS_S[self._settings]
        environment = {
            "HIVEMIND_PEERS": self._addresses,
            "MATCHMAKING_S": str(matchmaking_s),
            "AVERAGING_TIMEOUT_S": str(averaging_s),
        }
        command = self._module("hivemind_worker", str(self._tokens), str(number))
        return self._start(f"worker-{number}", command, environment)


SYSTEMS: dict[str, type[System]] = {EPOCHAL: Epochal, TORCHFT: Torchft, HIVEMIND: Hivemind}
