"""`make bench-peers`: Epochal beside torchft's DiLoCo and hivemind's optimizer, on the same model, data and machine.

Each system runs by itself, one after the other, with real processes over loopback (`benchmarks/training_peers/`).
"""

import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.figures import Figure
from benchmarks.training_peers.loopback import apart
from benchmarks.training_peers.systems import EPOCHAL, HIVEMIND, QUICK, ROOT, SETTINGS, TORCHFT, USUAL, epochal_state
from benchmarks.training_peers.trial import WAIT_BOUND_S, Trial
from benchmarks.training_peers.workload import LENGTH, LOCAL_STEPS, STEP_ROWS, TOKENS_PER_ROUND, WORKERS
from epochal.state.errors import EpochalError
from epochal.tools.testnet.demo_data import SHARD_TOKENS, write_demo_data

TRIAL_TIMEOUT_S = 600.0
"""A run that takes longer is ended; one without load takes a minute or two."""
END_TIMEOUT_S = 60.0
PEERS = (TORCHFT, HIVEMIND)
DISTRIBUTIONS = {TORCHFT: "torchft 0.2.0", HIVEMIND: "hivemind 1.1.12"}
Trials = dict[tuple[str, str], Trial]


@dataclass(frozen=True, slots=True)
class _Row:
    """One figure: its name, unit and target, and how it comes from a trial (None: it was not measured)."""

    name: str
    unit: str
    target: str
    of: Callable[[Trial], float | None]
    settings: str = USUAL


def median(values: Sequence[float]) -> float | None:
    """Return the median, or None without values."""
    return statistics.median(values) if values else None


def since_imported(trial: Trial) -> list[float]:
    """Return the seconds from each newcomer's imported modules to its first applied step."""
    return [whole - imported for whole, imported in zip(trial.newcomers_s, trial.imported_s, strict=True)]


ROWS = (
    _Row(f"tokens trained by {WORKERS} workers", "tokens/s", "≥ 1 x", lambda trial: trial.tokens_per_s),
    _Row("bytes sent per token", "bytes", "", lambda trial: trial.bytes_per_token),
    _Row("SIGKILL of a worker to the next applied step", "s", "a factor below", lambda trial: median(trial.kills_s)),
    _Row("the same, quick settings", "s", "a factor below", lambda trial: median(trial.kills_s), QUICK),
    _Row("start of a newcomer to a step with its work", "s", "a factor below", lambda trial: median(trial.newcomers_s)),
    _Row("the same without its imports", "s", "a factor below", lambda trial: median(since_imported(trial))),
    _Row(
        "the same without its imports, quick settings",
        "s",
        "a factor below",
        lambda trial: median(since_imported(trial)),
        QUICK,
    ),
)


def measure() -> tuple[list[Figure], str]:
    """Measure every system; return the figures, and the text that explains them."""
    trials: Trials = {}
    namespace = apart()
    with tempfile.TemporaryDirectory(prefix="epochal-bench-") as name:
        folder = Path(name)
        write_demo_data(folder / "data", SHARD_TOKENS)
        (tokens,) = (folder / "data").iterdir()
        for settings in SETTINGS:
            for system in (EPOCHAL, *PEERS):
                place = folder / f"{system}-{settings}"
                place.mkdir()
                trials[system, settings] = _trial(namespace, system, settings, (tokens, place))
                sys.stderr.write(f"{system}, {settings}: {trials[system, settings]}\n")
    ours = trials[EPOCHAL, USUAL]
    if ours.error:
        raise EpochalError(f"Epochal's own run failed: {ours.error}")
    return figures_of(trials), text_of(trials, is_apart=bool(namespace))


def _trial(namespace: Sequence[str], system: str, settings: str, places: tuple[Path, Path]) -> Trial:
    """Run `benchmarks.training_peers.trial`; its failure is a result, too."""
    module = [sys.executable, "-m", "benchmarks.training_peers.trial", system, settings, *map(str, places)]
    command = [*namespace, *module, *(["apart"] if namespace else [])]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            printed, errors = process.communicate(timeout=TRIAL_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.terminate()  # it ends its workers
            process.communicate(timeout=END_TIMEOUT_S)
            return Trial(error=f"it took longer than {TRIAL_TIMEOUT_S:.0f} s")
    if process.returncode:
        return Trial(error=errors.strip()[-1000:])
    return Trial(**json.loads(printed.splitlines()[-1]))


def figures_of(trials: Trials) -> list[Figure]:
    """Return each row beside each peer; a peer that has no such figure is named with its error."""
    figures = []
    for row in ROWS:
        ours = row.of(trials[EPOCHAL, row.settings])
        for peer in PEERS:
            trial = trials[peer, row.settings]
            theirs = row.of(trial)
            name = DISTRIBUTIONS[peer] if theirs is not None else f"{DISTRIBUTIONS[peer]}: {_last_line(trial.error)}"
            if ours is not None:
                figures.append(Figure(row.name, ours, row.unit, row.target, theirs, name))
    return figures


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1].replace("|", "\\|") if lines else "not measured"


TEXT = """\
## What is compared

Each system trains the same Llama of 0.8 M parameters on the same tokens, {workers} workers of one thread each, \
{local_steps} local
steps of {rows} rows of {length} tokens with AdamW: {round_tokens:,} tokens a round. The workers are processes of one
machine, whose cores they share, over loopback. Each system is installed in an environment of its own, with the same
torch and transformers.

| figure | how it is measured |
|---|---|
| tokens/s | over undisturbed rounds of the whole protocol |
| bytes sent | {counter}; TCP/IP headers are counted |
| SIGKILL to the next applied step | a worker is killed with all of its child processes, each time at another part of \
a round, and time runs until the first remaining worker holds the model after the next step that is applied |
| start of a newcomer | from the start of its process until it holds the model after the first step in which its own \
training is |
| without its imports | from the moment at which torch and everything else is imported (for Epochal: at which its \
trainer is open; it has joined and fetched the model meanwhile, so that these are not in the row) |

A wait that reaches {bound_s:.0f} s counts as {bound_s:.0f} s.

| system | usual settings | quick settings |
|---|---|---|
| Epochal | the state file below: `client_timeout_s` has its default of 30; epochs are short, so that a newcomer has \
few outcomes to merge after the last checkpoint | `client_timeout_s = 2.5`, as in `epochal up` |
| torchft 0.2.0, `DiLoCo` | those of its example of DiLoCo: `torchft_lighthouse --min_replicas 1 --quorum_tick_ms 100 \
--join_timeout_ms 10000` (heartbeats expire after 5 s), gloo with 5 s, `Manager` with 30 s | `--heartbeat_timeout_ms \
1000 --join_timeout_ms 1000`, all parameters reduced at once (`TORCHFT_USE_BUCKETIZATION`) |
| hivemind 1.1.12, `Optimizer` | those of its quickstart: `use_local_updates=True`, `matchmaking_time=3.0`, \
`averaging_timeout=10.0`; a round's parameters are averaged, there is no outer optimizer | `matchmaking_time=1.0`, \
`averaging_timeout=3.0` |

The length of a round matters. If a worker is lost, torchft goes on when the others have trained their round and the
lost worker's last heartbeat has expired; Epochal when the others have trained theirs and the lost client's connections
have been closed for 2 s (with the quick settings for 0.5 s, a fifth of `client_timeout_s`). So with rounds that are
much longer than 5 s neither is seen beside the round itself.

What is sent and merged in a round does not depend on how long it is trained for, so all tokens/s are nearer to each
other with longer rounds. In torchft and hivemind the workers add up their differences in a ring or in parts, each
sending about twice the model's size as float32; in Epochal each sends its difference to the coordinator, as int4 (the
default), and gets every other one.

In torchft a newcomer first trains a round from its own parameters, is given the others' in the quorum after it, and
contributes its own training one round later. In Epochal it gets the model at once and works from the next round on.

## Every measurement

Medians, and in parentheses the smallest and the largest of the repetitions.

{table}

## Epochal's state file

```toml
{state}```
"""
APART = "by the loopback interface of a network namespace in which the system runs alone"
SHARED = "by the loopback interface of the whole machine, because no network namespace could be made"


def text_of(trials: Trials, *, is_apart: bool) -> str:
    """Return the page's text about the settings, and the table of every measurement."""
    heads = (
        "system",
        "settings",
        "round, s",
        "tokens/s",
        "bytes/token",
        "kill, s",
        "newcomer, s",
        "without imports, s",
    )
    rows = [
        (
            system,
            settings,
            *map(_shown, (trial.round_s, trial.tokens_per_s, trial.bytes_per_token)),
            *map(spread, (trial.kills_s, trial.newcomers_s, since_imported(trial))),
        )
        for (system, settings), trial in trials.items()
    ]
    ended = [
        f"\nThe run of {system} with {settings} settings ended early: {_last_line(trial.error)}"
        for (system, settings), trial in trials.items()
        if trial.error
    ]
    table = "\n".join([_line(heads), _line("---" for _ in heads), *map(_line, rows), *ended])
    return TEXT.format(
        workers=WORKERS,
        local_steps=LOCAL_STEPS,
        rows=STEP_ROWS,
        length=LENGTH,
        round_tokens=TOKENS_PER_ROUND,
        counter=APART if is_apart else SHARED,
        bound_s=WAIT_BOUND_S,
        table=table,
        state=epochal_state("stdlib-000.bin", USUAL),
    )


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _shown(value: float | None) -> str:
    return "" if value is None else f"{value:,.1f}"


def spread(values: Sequence[float]) -> str:
    """Return the median, and the smallest and largest value, as the page shows them."""
    if not values:
        return ""
    return f"{statistics.median(values):.1f} ({min(values):.1f}–{max(values):.1f}, {len(values)} times)"
