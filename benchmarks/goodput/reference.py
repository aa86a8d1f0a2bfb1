"""The reference run, as `epochal init` and `epochal plan` see it, and the same scaled so that it runs on one machine.

Scaling keeps the proportions of a round. A model of fewer parameters behind links that are slower by as much takes as
long; all times, those of training and of bytes, are then divided by one number. Round trips stay as they are, and what
a message costs a processor, so that a scaled run is never better than its reference.
"""

import asyncio
import json
import math
import re
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w

from epochal.state.config.model_table import NgramConfig
from epochal.state.errors import EpochalError
from epochal.trainers.ngram.model import parameter_shapes

MODEL, VOCABULARY = "llama-1b", 50257
CLIENTS = 16
DOWN_BYTES_PER_S, UP_BYTES_PER_S, ROUND_TRIP_S, TOKENS_PER_S = 12.5e6, 2.5e6, 0.04, 8_000
LINE = f"{CLIENTS} x 100mbit/20mbit 40ms 8k tokens/s"
COMMAND_S = 240.0
"""Maximum time of a command: planning a change of sixteen clients takes some seconds, and six changes are planned."""
WORTH_ADVICE = 0.9
"""Part of a round from which training needs no advice."""
MAX_ADVICE = 2
"""Number of changes that are taken, one after the other, each the most effective one of the plan with those before."""
SMALL = NgramConfig(context=2, embedding=64, hidden=1200)
"""Its results are larger than what travels with its announcement, or in a bundle."""
SAMPLES = 16
"""Batches of a client in a scaled round."""
SEQUENCE = 64
_SETTING = re.compile(r"\[(\w+)\]|\b([a-z]\w*) = (\"[^\"]*\"|true|false|\d+(?:\.\d+)?)")


def parameter_count(model: NgramConfig) -> int:
    """Return the number of a model's parameters."""
    return sum(math.prod(shape) for shape in parameter_shapes(model).values())


@dataclass(frozen=True, slots=True)
class Planned:
    """A state file, and what `epochal plan` says of it.

    Attributes:
        tables: of the state file.
        plan: the JSON of the command.
    """

    tables: Mapping[str, Any]
    plan: Mapping[str, Any]

    @property
    def round_s(self) -> float:
        """Time of a round, in seconds."""
        return float(self.plan["round_s"])

    @property
    def training_s(self) -> float:
        """Time that a client trains in a round, in seconds."""
        return float(self.plan["groups"][0]["parts"]["training"])

    @property
    def training_part(self) -> float:
        """Part of a round that is training."""
        return self.training_s / self.round_s

    @property
    def settings(self) -> str:
        """What decides how long a round trains and sends, in words."""
        merge = self.tables["merge"]
        more = [f"{name} {merge[name]}" for name in ("update", "delay") if name in merge]
        each = self.plan["batches"] / sum(group["group"]["count"] for group in self.plan["groups"])
        return ", ".join([f"{merge['local_steps']} local steps of {each:g} batches", merge["codec"], *more])


@dataclass(frozen=True, slots=True)
class Scaled:
    """A run in the proportions of another one.

    Attributes:
        merge: the table `[merge]`, without local steps.
        down_bytes_per_s, up_bytes_per_s: of each client's link.
        batch_s: seconds for which a client trains on a batch, of which it gets `SAMPLES`.
        longest_s: time limit of a round's training and upload.
        time_scale: what all times are divided by.
    """

    merge: Mapping[str, Any]
    down_bytes_per_s: float
    up_bytes_per_s: float
    batch_s: float
    longest_s: int
    time_scale: float

    def clients(self, count: int) -> str:
        """Return so many of the clients as `epochal plan` takes them."""
        down, up = (rate * 8 / 1000 for rate in (self.down_bytes_per_s, self.up_bytes_per_s))
        tokens_per_s = SEQUENCE / self.batch_s
        return f"{count} x {down:.3f}kbit/{up:.3f}kbit {ROUND_TRIP_S * 1000:g}ms {tokens_per_s:.3f} tokens/s"

    def overrides(self, count: int) -> dict[str, Any]:
        """Return what its state file has instead of a test's: for so many clients."""
        batches = SAMPLES * count
        return {
            "config__init_min_clients": count,
            "config__min_clients": max(1, count // 2),
            "config__max_round_train_time": self.longest_s,
            "config__global_batch_size_start": batches,
            "config__global_batch_size_end": batches,
            "model__LLM__max_seq_len": SEQUENCE,
            "model__LLM__ngram": SMALL.model_dump(),
            **{f"merge__{name}": value for name, value in self.merge.items()},
        }


def scaled(planned: Planned, round_s: float) -> Scaled:
    """Return a run in which a client's round, with as many clients as in the plan, takes about `round_s` seconds."""
    time_scale = planned.round_s / round_s
    rate_scale = parameter_count(SMALL) / planned.plan["sizes"]["parameter_count"] * time_scale
    merge = {name: value for name, value in planned.tables["merge"].items() if name != "local_steps"}
    return Scaled(
        merge=merge,
        down_bytes_per_s=DOWN_BYTES_PER_S * rate_scale,
        up_bytes_per_s=UP_BYTES_PER_S * rate_scale,
        batch_s=planned.training_s / time_scale / SAMPLES,
        longest_s=max(1, math.ceil(planned.tables["config"]["max_round_train_time"] / time_scale)),
        time_scale=time_scale,
    )


def settings_in(change: str) -> dict[str, dict[str, Any]]:
    """Return the settings that an advice names, by table: those written as `[table] name = value, name = value`.

    A setting belongs to the table that was named last; before the first one there is none.
    """
    found: dict[str, dict[str, Any]] = {}
    table = ""
    for named, name, value in _SETTING.findall(change):
        if named:
            table = named
        elif table:
            found.setdefault(table, {})[name] = json.loads(value)
    return found


async def command(*arguments: str) -> str:
    """Return what `epochal ARGUMENTS…` prints. Raise `EpochalError` if it fails, or takes longer than `COMMAND_S`."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "epochal", *arguments),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(COMMAND_S):
            out, errors = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()
        raise EpochalError(f"epochal {' '.join(arguments)} took longer than {COMMAND_S:g} s") from None
    if process.returncode:
        raise EpochalError(f"epochal {' '.join(arguments)} ended with {process.returncode}: {errors.decode()[-500:]}")
    return out.decode()


async def planned(path: Path, *clients: str, advice: bool = False) -> Planned:
    """Return a state file with its plan for these clients, each as `epochal plan` takes it, with or without advice."""
    options = [] if advice else ["--no-advice"]
    for text in clients:
        options += ["--clients", text]
    plan = json.loads(await command("plan", str(path), "--json", *options))
    return Planned(_tables(path), plan)


async def planned_apart(folder: Path, text: str, members: int, link: str = "10gbit/10gbit 0ms") -> Planned:
    """Return a state file with its plan for members whose links and training take next to no time; or with this link.

    Each has a machine of its own, as a plan has it, while a benchmark's members share one.
    """
    path = folder / f"planned-{members}.toml"
    await asyncio.to_thread(path.write_text, text, encoding="utf-8")
    return await planned(path, f"{members} x {link} 1000000k tokens/s")


def _tables(path: Path) -> dict[str, Any]:
    return tomllib.loads(path.read_text(encoding="utf-8"))


def changed(tables: Mapping[str, Any], change: str) -> dict[str, Any]:
    """Return the tables of a state file with the settings that an advice names."""
    found = dict(tables)
    for table, settings in settings_in(change).items():
        found[table] = {**found.get(table, {}), **settings}
    return found


def _write(path: Path, tables: Mapping[str, Any]) -> None:
    path.write_text(tomli_w.dumps(tables), encoding="utf-8")


async def proposed(folder: Path) -> Path:
    """Write the reference as `epochal init` makes it; return its state file."""
    await command("init", str(folder), "--model", MODEL, "--vocabulary", str(VOCABULARY), "--clients", LINE)
    return folder / "state.toml"


async def with_advice(path: Path) -> tuple[Planned, Planned, list[str]]:
    """Change a state file as its plan advises, most effective first.

    Advice that names no settings, such as a faster link, is left out.

    Returns:
        the file as it was and as it is, each with its plan, and the changes.
    """
    changes: list[str] = []
    first: Planned | None = None
    while True:
        may_change = len(changes) < MAX_ADVICE
        found = await planned(path, LINE, advice=may_change)
        first = first or found
        if not may_change or found.training_part >= WORTH_ADVICE:
            return first, found, changes
        advice = [one["change"] for one in found.plan["suggestions"]]
        change = next((one for one in advice if settings_in(one)), None)
        if change is None:
            return first, found, changes
        _write(path, changed(found.tables, change))
        changes.append(change)
