"""`python -m benchmarks quality`: what clients learn beside one machine with the same tokens and total batch.

A small Llama learns the bytes of Python's standard library. The results of runs are kept in `quality_results`, one
file for each setting and seed, in the repository: a run that is there is not repeated. `python -m
benchmarks.training.quality` only makes the runs that are missing; several of it at a time divide them among
themselves (with `OMP_NUM_THREADS=1`).
"""

import contextlib
import fcntl
import hashlib
import json
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from benchmarks.figures import Figure
from benchmarks.plots import Band, band_plot, spread_plot
from benchmarks.training.quality_text import HELD_OUT_SEQUENCES, LENGTH, library_text
from benchmarks.training.quality_training import (
    CLIENT_ROWS,
    CLIENTS,
    LOCAL_STEPS,
    TOKENS,
    WORKLOAD,
    Setting,
    Trained,
    train,
)
from epochal.state.config.state_file import MergeConfig
from epochal.state.wire import canonical_json

KEPT = Path(__file__).parent / "quality_results"
SEEDS = (0, 1, 2)
ROUND_STEPS = (8, 30, 100)
SWEPT_STEPS = 30
TARGET = "≤ 1.02 x"
UNIT = "nats/byte"
MILLION = 1e6
DIGITS = 4

MACHINE_LRS = (0.001, 0.002, 0.004)
"""Learning rates of which one machine has the best."""
MACHINE = Setting(base_lr=0.002)
"""One machine, at its best learning rate."""
SWEEP = (
    Setting(0.002, CLIENTS, 8, 0.7, 0.8),
    *(
        replace(clients, clients=CLIENTS, local_steps=SWEPT_STEPS)
        for clients in (
            Setting(0.001, outer_lr=0.7, outer_momentum=0.8, inner_state="reset"),
            Setting(0.001, outer_lr=0.7, outer_momentum=0.8),
            Setting(0.0015, outer_lr=0.7, outer_momentum=0.8),
            Setting(0.002, outer_lr=0.7, outer_momentum=0.8),
            Setting(0.003, outer_lr=0.7, outer_momentum=0.8),
            Setting(0.002, outer_lr=1.0, outer_momentum=0.0),
            Setting(0.004, outer_lr=1.0, outer_momentum=0.0),
            Setting(0.001, outer_lr=1.0, outer_momentum=0.8),
            Setting(0.002, outer_lr=1.0, outer_momentum=0.5),
            Setting(0.0005, outer_lr=1.0, outer_momentum=0.9),
        )
    ),
)
"""Settings with one seed among which the defaults of `[merge]` and the clients' learning rate were chosen."""
CLIENT_LRS = {8: 0.001, 30: 0.002, 100: 0.002}
"""The clients' learning rate by local steps of a round: the best of those tried."""
FASTER_LR = 0.003
"""A higher rate for rounds of `SWEPT_STEPS`, with which a single seed does better, and all of them worse."""
FASTER = Setting(FASTER_LR, CLIENTS, SWEPT_STEPS, 0.7, 0.8)

NOTES = (
    f"A Llama of 0.25 M parameters learns the bytes of Python's standard library in {TOKENS / MILLION:.2f} M tokens. "
    f"{HELD_OUT_SEQUENCES * LENGTH:,} bytes of whole files, chosen by a hash of their names, are held out. "
    f"One machine takes {LOCAL_STEPS:,} steps of {CLIENTS * CLIENT_ROWS} samples of {LENGTH} bytes; "
    f"{CLIENTS} clients take as many local steps, each of {CLIENT_ROWS}. "
    "Both have AdamW, the same warm-up and cosine, and the best of the learning rates tried (rows of one "
    f"seed; at {SWEPT_STEPS} local steps {FASTER_LR} is better with one seed, and worse with all three). "
    "Trainer, schedule, codec and merge are those of a client; nothing goes over a wire. "
    "Results are float32 unless the row says otherwise.",
)
"""What the page says of the figures."""


@dataclass(frozen=True, slots=True)
class Run:
    """A setting and a seed, and the folder in which the result is kept."""

    setting: Setting
    seed: int = SEEDS[0]
    folder: Path = KEPT

    @property
    def path(self) -> Path:
        """Where the result is kept. Results of another workload have other paths."""
        workload = hashlib.sha256(canonical_json(WORKLOAD)).hexdigest()[:8]
        return self.folder / f"{workload}-{self.setting.name}-seed-{self.seed}.json"

    def kept(self) -> Trained | None:
        """Return the result, if there is one."""
        try:
            found = json.loads(self.path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        return Trained(found["loss"], [(tokens, loss) for tokens, loss in found["curve"]])

    def make(self) -> Trained:
        """Train, and keep the result."""
        begin_s = time.process_time()
        found = train(self.setting, self.seed, library_text())
        document = {**asdict(self.setting), "seed": self.seed, "cpu_s": time.process_time() - begin_s, **asdict(found)}
        new = self.path.with_suffix(".new")
        new.write_text(json.dumps(document), encoding="utf-8")
        new.replace(self.path)
        sys.stderr.write(f"{self.setting.name}, seed {self.seed}: {found.loss:.4f} {UNIT}\n")
        return found

    @contextlib.contextmanager
    def claimed(self, *, waits: bool) -> Iterator[bool]:
        """Claim the run for this process within the block; yield whether it was free."""
        self.folder.mkdir(exist_ok=True)
        with self.path.with_suffix(".lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB))
            except BlockingIOError:
                yield False
                return
            yield True

    def result(self) -> Trained:
        """Return the result; make it if it is missing, or wait for the process that makes it."""
        with self.claimed(waits=True):
            return self.kept() or self.make()


def clients_setting(local_steps: int) -> Setting:
    """Return how clients train in rounds of so many local steps, with the defaults of `[merge]`."""
    merge = MergeConfig()
    return Setting(
        CLIENT_LRS[local_steps],
        CLIENTS,
        local_steps,
        merge.outer_lr,
        merge.outer_momentum,
        merge.inner_state,
        merge.codec_name,
        merge.error_feedback,
        merge.mean,
    )


def planned() -> list[Run]:
    """Return every run of the page: seed by seed, then those with one seed."""
    single = [*(replace(MACHINE, base_lr=rate) for rate in MACHINE_LRS), *SWEEP]
    each = [MACHINE, *(clients_setting(steps) for steps in sorted(ROUND_STEPS, key=lambda one: one != SWEPT_STEPS))]
    each.append(FASTER)
    runs = [Run(setting, seed) for seed in SEEDS for setting in each] + [Run(setting) for setting in single]
    return list(dict.fromkeys(runs))


def make_missing(runs: Sequence[Run]) -> None:
    """Make those of the runs that are missing and that no other process makes now."""
    for run in runs:
        with run.claimed(waits=False) as is_free:
            if is_free and run.kept() is None:
                run.make()


def measure() -> list[Figure]:
    """Return the final held-out losses: of the seeds' means, and of the settings with one seed."""
    machine = [Run(MACHINE, seed).result().loss for seed in SEEDS]
    name, told = f"one machine, rate {MACHINE.base_lr:g}", f"seed by seed {_losses(machine)}"
    figures = [Figure(name, statistics.fmean(machine), UNIT, baseline_name=told, digits=DIGITS)]
    chosen = [clients_setting(steps) for steps in ROUND_STEPS]
    for setting in (*chosen, FASTER):
        losses = [Run(setting, seed).result().loss for seed in SEEDS]
        name = (
            f"{CLIENTS} clients, {setting.local_steps} local steps, rate {setting.base_lr:g}, "
            f"results as {setting.codec}"
        )
        beside = f"one machine; seed by seed {_losses(losses)}"
        target = TARGET if setting.local_steps == SWEPT_STEPS and setting is not FASTER else ""
        mean, alone = statistics.fmean(losses), statistics.fmean(machine)
        figures.append(Figure(name, mean, UNIT, target, alone, beside, DIGITS))
    figures += [
        _single(f"one seed: one machine, rate {rate:g}", Run(replace(MACHINE, base_lr=rate))) for rate in MACHINE_LRS
    ]
    for setting in SWEEP:
        outer = f"outer {setting.outer_lr:g} / {setting.outer_momentum:g}, {setting.inner_state}"
        name = f"one seed: {CLIENTS} clients, {setting.local_steps} steps, rate {setting.base_lr:g}, "
        figures.append(_single(name + outer, Run(setting)))
    return figures


def plots() -> dict[str, str]:
    """Return the plots of the page: losses while training, and the final ones seed by seed."""
    settings = {"one machine": MACHINE} | {
        f"{CLIENTS} clients, {steps} local steps": clients_setting(steps) for steps in ROUND_STEPS
    }
    results = {name: [Run(setting, seed).result() for seed in SEEDS] for name, setting in settings.items()}
    curves = {name: band([one.curve for one in found]) for name, found in results.items()}
    machine = [one.loss for one in results["one machine"]]
    ratios = {
        name: [one.loss / alone for one, alone in zip(found, machine, strict=True)] for name, found in results.items()
    }
    return {
        "quality-curves": band_plot(curves, "tokens trained on (millions)", f"held-out loss ({UNIT})"),
        "quality-seeds": spread_plot(ratios, "final held-out loss ÷ that of one machine, each seed"),
    }


def band(curves: Sequence[Sequence[tuple[int, float]]]) -> Band:
    """Return the lowest, mean and highest loss of several curves at the same numbers of tokens (in millions)."""
    return [
        (points[0][0] / MILLION, min(losses), statistics.fmean(losses), max(losses))
        for points in zip(*curves, strict=True)
        for losses in [[loss for _, loss in points]]
    ]


def _single(name: str, run: Run) -> Figure:
    alone = Run(MACHINE, run.seed)
    return Figure(name, run.result().loss, UNIT, "", alone.result().loss, "one machine", DIGITS)


def _losses(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.4f}" for value in values)


if __name__ == "__main__":
    make_missing(planned())
