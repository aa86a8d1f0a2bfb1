"""`python -m benchmarks trust`: attacks × defences × false alarms, on a transformer, through the whole protocol.

Results of runs are kept in `trust_results`, one file for each setting and seed, in the repository. The page shows those
that are there. `python -m benchmarks.training.trust [WORD…]` makes the runs that are missing and whose names contain
every word (all without one); several of it at a time divide them among themselves (with `OMP_NUM_THREADS=1`). One that
was broken off repeats no training.
"""

import dataclasses
import hashlib
import json
import logging
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.figures import Figure
from benchmarks.plots import band_plot, spread_plot
from benchmarks.training import trust_keys
from benchmarks.training.quality import SEEDS, Run
from benchmarks.training.quality_text import library_text
from benchmarks.training.quality_training import WORKLOAD
from benchmarks.training.trust_attacks import ATTACKS, HARMFUL
from benchmarks.training.trust_run import (
    BASE_LR,
    CALIBRATED,
    HONEST_PART,
    LIARS,
    MEMBERS,
    NORM_LIMIT,
    PRECISIONS,
    Bench,
    Judged,
    Played,
    Setting,
)
from epochal.state.wire import canonical_json

KEPT = Path(__file__).parent / "trust_results"
DIGITS = 4
ALONE = Setting(members=MEMBERS - LIARS, percent=0)
"""The honest ones alone."""
SOON, LATE = 30, 60
"""Rounds from the first lie within which members are to be convicted: 95 % of them, and all."""
SOON_PART, HONEST_WANTED = 0.95, 3000
UNVERIFIED = Setting(percent=0)
FIRST = ("sign-flip", "permuted-labels", "common-direction")
ROWS = (
    Setting(),
    *(Setting(name) for name in FIRST),
    *(Setting(name) for name in ATTACKS if name not in ("none", "backdoor", *FIRST)),
    Setting("backdoor", local_steps=20),
    Setting("backdoor", local_steps=100, is_mixed=True),
    Setting(is_mixed=True),
    UNVERIFIED,
    *(Setting(name, percent=0) for name in FIRST),
    *(Setting(name, inner_state="keep") for name in ("none", "sign-flip")),
    Setting("times-10", percent=0),
    *(Setting(name, percent=0, norm_limit=0.0) for name in ("times-10", "sign-flip")),
)
"""The rows of the table."""
WITH_KEYS = Setting(keys=trust_keys.NEW_KEYS)
"""The run with new keys; `ROWS[0]` is the one without."""
NOTES = (
    f"The [quality bench's](benchmarks-quality.md) Llama of 0.25 M parameters, its text and its held-out bytes. "
    f"{MEMBERS} members take {ALONE.rounds} rounds of {ALONE.local_steps} local steps of one sample; learning rate "
    f'{BASE_LR}, results in int4, `inner_state = "reset"` unless moments are kept. {LIARS} of them work honestly for '
    f"one in {HONEST_PART} of the rounds, so that they have full shares, and lie in every round from then on. "
    "Coordinator, clients and verifiers are real, in one process and virtual time, without a wire "
    "([verification](verification.md)).",
    "With verification `verify.percent` is 10, and two verifiers, of float32 and of bf16, take replays as they come. "
    f"Both calibrate with {CALIBRATED} pieces of work at the beginning, and with one 1, 2, 4, … rounds later. They ask "
    "for one every 2 to 20 s; beside 1,000 new keys one after the other, and train on a sample as fast as members. "
    f"`norm_limit` is {NORM_LIMIT} except without norms.",
    f'"Alone" is a run of the {ALONE.members} honest members without verification: '
    f"{ALONE.members * ALONE.local_steps} samples a round. The others keep {MEMBERS * ALONE.local_steps}: once "
    f"{LIARS} are ejected, the {ALONE.members} have {MEMBERS * ALONE.local_steps / ALONE.members:.0f} each.",
    "Members compute in float32. In rows with bf16 every third one also computes one sample at a time, which differs "
    "only in steps of several. Threads are not varied: at this size two compute the same bits as one. Secrets of the "
    "comparison are drawn anew in each run, so that flags near a threshold differ when it is made again.",
)
"""What the page says of the figures."""


ABOUT_KEYS = (
    "New keys: the machine alone, in virtual time, without training. They have a quarter of a round's batches: as "
    "exams beside those that count, and later, as no verifier is there, of these."
)
"""What the figures of `trust_keys` are."""


@dataclass(frozen=True, slots=True)
class TrustRun(Run):
    """A setting of this bench and a seed, and the folder in which the result is kept."""

    setting: Setting  # type: ignore[assignment]
    folder: Path = KEPT

    @property
    def path(self) -> Path:
        workload = {**WORKLOAD, "lr": BASE_LR, "members": MEMBERS, "liars": LIARS, "honest": HONEST_PART}
        digest = hashlib.sha256(canonical_json(workload)).hexdigest()[:8]
        return self.folder / f"{digest}-{self.setting.name}-seed-{self.seed}.json"

    def kept(self) -> Played | None:  # type: ignore[override]
        try:
            found = json.loads(self.path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        fields = {field.name: found[field.name] for field in dataclasses.fields(Played)}
        for name in ("convicted", "flagged", "ended", "applied"):
            fields[name] = {int(number): value for number, value in fields[name].items()}
        fields["curve"] = [(step, loss) for step, loss in fields["curve"]]
        for name in ("drawn", "dropped"):
            fields[name] = [tuple(one) for one in found[name]]
        fields["judged"] = [Judged(*one) for one in fields["judged"]]
        return Played(**fields)

    def make(self) -> Played:  # type: ignore[override]
        logging.disable(logging.WARNING)
        begin_s, bench = time.monotonic(), Bench(self.setting, self.seed, library_text())
        found = bench.play()
        self.keep(found)
        bench.forget_work()
        minutes = (time.monotonic() - begin_s) / 60
        sys.stderr.write(f"{self.path.stem}: {found.loss:.4f}, convicted {found.convicted}, {minutes:.1f} minutes\n")
        return found

    def keep(self, found: Played) -> None:
        """Keep a result."""
        judged = [dataclasses.astuple(one) for one in found.judged]
        document = {**asdict(self.setting), "seed": self.seed, **asdict(found), "judged": judged}
        new = self.path.with_suffix(".new")
        new.write_text(json.dumps(document, separators=(",", ":")) + "\n", encoding="utf-8")
        new.replace(self.path)


def planned() -> list[TrustRun]:
    """Return every run of the page, seed by seed."""
    settings = tuple(dict.fromkeys((ROWS[0], ALONE, *ROWS[1:], *map(alone_of, ROWS), WITH_KEYS)))
    return [TrustRun(setting, seed) for seed in SEEDS for setting in settings]


def alone_of(setting: Setting) -> Setting:
    """Return the run of the honest ones alone that a row is compared with."""
    return dataclasses.replace(ALONE, inner_state=setting.inner_state)


def make_missing(words: Sequence[str]) -> None:
    """Make the runs that are missing, that no other process makes now, and whose names contain all of the words."""
    for run in planned():
        if all(word in run.path.stem for word in words):
            with run.claimed(waits=False) as is_free:
                if is_free and run.kept() is None:
                    run.make()


def kept_of(setting: Setting) -> dict[int, Played]:
    """Return the kept results of a setting, by seed."""
    found = {seed: TrustRun(setting, seed).kept() for seed in SEEDS}
    return {seed: one for seed, one in found.items() if one is not None}


def title(setting: Setting) -> str:
    """Return what a row is called."""
    attack = "nobody lies" if setting.attack == "none" else setting.attack.replace("-", " ")
    steps = "" if setting.local_steps == ALONE.local_steps else f", H = {setting.local_steps}"
    mixed = ", half in bf16" if setting.is_mixed else ""
    kept = ", moments kept" if setting.inner_state == "keep" else ""
    bare = ", unverified" if setting.norm_limit else ", unverified, without norms"
    return f"{attack}{steps}{mixed}{kept}{'' if setting.percent else bare}"


def measure() -> tuple[list[Figure], dict[str, str], str]:
    """Return the final losses, the plots and the table of what is kept."""
    compared = [setting for setting in ROWS if setting.local_steps == ALONE.local_steps]
    pairs = [(setting, kept_of(setting), kept_of(alone_of(setting))) for setting in compared]
    figures = [_loss(setting, found, alone) for setting, found, alone in pairs if found.keys() & alone.keys()]
    keys, beside = kept_of(WITH_KEYS), kept_of(ROWS[0])
    of_keys = [_loss_with_keys(keys, beside)] if keys.keys() & beside.keys() else []
    return [*figures, *of_keys, *_new_keys()], _plots(), _table()


def _loss_with_keys(found: dict[int, Played], beside: dict[int, Played]) -> Figure:
    seeds = sorted(found.keys() & beside.keys())
    out = sum(number > MEMBERS for seed in seeds for number in found[seed].convicted)
    name = f"{WITH_KEYS.keys:,} new keys that send noise from round {WITH_KEYS.first_lie} on"
    of = f"of {len(seeds)} of {len(SEEDS)} seeds; {out:,} of the keys are convicted"
    value, baseline = (statistics.fmean(one[seed].loss for seed in seeds) for one in (found, beside))
    return Figure(name, value, "nats/byte", "≤ 1.005 x", baseline, f"the {MEMBERS} members without them; {of}", DIGITS)


def _loss(setting: Setting, found: dict[int, Played], alone: dict[int, Played]) -> Figure:
    seeds, most = sorted(found.keys() & alone.keys()), ATTACKS[setting.attack].most
    target = f"≤ {1 + most:g} x" if most is not None and setting.percent else ""
    losses, others = [found[seed].loss for seed in seeds], [alone[seed].loss for seed in seeds]
    beside = f"the {ALONE.members} honest ones alone; of {len(seeds)} of {len(SEEDS)} seeds"
    value, baseline = statistics.fmean(losses), statistics.fmean(others)
    return Figure(title(setting), value, "nats/byte", target, baseline, beside, DIGITS)


def _new_keys() -> list[Figure]:
    found, keys = trust_keys.play(), f"{trust_keys.NEW_KEYS:,} new keys"
    before = f"the {trust_keys.MEMBERS} members alone"
    exams = f"exams among them, which count for nothing; each had {found.most} of {trust_keys.BATCHES} at most"
    (rounds_0, rounds), (merged_0, merged), (cpu_0, cpu) = found.rounds_per_hour, found.merged_per_s, found.cpu_s
    return [
        Figure(f"rounds with {keys}, the machine alone", rounds, "per hour", "≥ 0.8 x", rounds_0, before),
        Figure(f"merged batches with {keys}, the machine alone", merged, "per s", "", merged_0, before),
        Figure(f"machine's processor, a round with {keys}", 1000 * cpu, "ms", "", 1000 * cpu_0, before),
        Figure(f"largest part of a round's batches, all {keys}", 100 * found.given, "%", "", None, exams),
        Figure(f"largest part of what a round merges, all {keys}", 100 * found.merged, "%", "≤ 25 %"),
    ]


def _plots() -> dict[str, str]:
    shown = {title(setting): found for setting in ROWS if (found := kept_of(setting))}
    curves = {f"the {ALONE.members} alone": kept_of(ALONE)} | shown
    others = {title(setting): kept_of(alone_of(setting)) for setting in ROWS}
    lines = {
        name: [
            (points[0][0], min(losses), statistics.fmean(losses), max(losses))
            for points in zip(*(one.curve for one in found.values()), strict=True)
            for losses in [[loss for _, loss in points]]
        ]
        for name, found in curves.items()
        if found
    }
    ratios = {
        name: [one.loss / others[name][seed].loss for seed, one in found.items() if seed in others[name]]
        for name, found in shown.items()
    }
    distances: dict[str, list[float]] = {}
    for found in shown.values():
        for one in (each for run in found.values() for each in run.judged if not each.is_lie):
            classes = " by ".join(one.classes.split())
            distances.setdefault(classes, []).append(one.excess / one.tolerance)
    plots = {"trust-curves": band_plot(lines, "rounds", "held-out loss (nats per byte)")} if lines else {}
    if ratios:
        plots["trust-losses"] = spread_plot(ratios, "final held-out loss ÷ that of the honest ones alone, each seed")
    if distances:
        plots["trust-distances"] = spread_plot(distances, "honest results: excess distance ÷ its tolerance")
    return plots


HEADINGS = (
    "what three of ten do",
    "seeds",
    "loss ÷ alone",
    "target",
    "rounds from the first lie to each conviction",
    f"convicted within {SOON} / {LATE}",
    "honest convicted ÷ honest results replayed",
    "largest honest distance ÷ tolerance",
    "replays in float32 / bf16",
    "verifiers' ÷ members' processor (of it training)",
    "verifiers' bytes ÷ applied results' bytes",
    "coordinator's processor, ms a member and round",
    "backdoor",
)


def _table() -> str:
    shown = {setting: found for setting in ROWS if (found := kept_of(setting))}
    lines = [ABOUT_KEYS, "", "## Attacks × defences × false alarms", ""]
    lines += [f"| {' | '.join(HEADINGS)} |", "|" + "---|" * len(HEADINGS)]
    lines += [
        f"| {' | '.join(cells(setting, found, kept_of(alone_of(setting))))} |" for setting, found in shown.items()
    ]
    lines += ["", *_explained(shown)]
    return "\n".join(lines)


def cells(setting: Setting, found: dict[int, Played], alone: dict[int, Played]) -> list[str]:
    """Return a row of the table: of a setting with results."""
    most, is_backdoor = ATTACKS[setting.attack].most, ATTACKS[setting.attack].is_backdoor
    target = f"≤ +{most:.1%}" if most is not None and setting.percent else ""
    if most == HARMFUL and setting.percent:
        target += f"; {SOON_PART:.0%} / all convicted"
    if is_backdoor:
        target = "none: may stay undetected" if setting.is_mixed else "backdoor < 0.2, all convicted"
    runs = list(found.values())
    is_convicting = setting.liars > 0 and setting.percent > 0
    soon, late, lied = in_time(setting, found)
    replayed, accused = false_alarms(setting, found)
    farthest = max((one.excess / one.tolerance for run in runs for one in run.judged if not one.is_lie), default=None)
    ratios = [one.loss / alone[seed].loss - 1 for seed, one in found.items() if seed in alone]
    if setting.local_steps != ALONE.local_steps:
        ratios = []
    return [
        title(setting),
        f"{len(runs)}",
        ", ".join(f"{ratio:+.1%}" for ratio in ratios) if ratios else "–",
        target,
        "; ".join(_convictions(setting, run) for run in runs) if is_convicting else "",
        f"{soon} / {late} of {lied}" if is_convicting else "",
        f"{accused} ÷ {replayed}" if setting.percent else "",
        "" if farthest is None else f"{farthest:.2f}",
        _by_precision(runs) if setting.percent else "",
        f"{_mean(runs, _verifiers_part)} ({_mean(runs, _replayed_part)})" if setting.percent else "",
        _mean(runs, lambda run: run.verifier_bytes / run.result_bytes) if setting.percent else "",
        _mean(runs, lambda run: 1000 * run.spent_s["coordinator"] / sum(run.applied.values())),
        _mean(runs, lambda run: run.backdoor) if is_backdoor else "",
    ]


def in_time(setting: Setting, found: dict[int, Played]) -> tuple[int, int, int]:
    """Return how many members that lie were convicted within `SOON` and within `LATE` rounds, and how many lied."""
    after = [
        step - setting.first_lie
        for run in found.values()
        for number, step in run.convicted.items()
        if number <= setting.liars
    ]
    return sum(one <= SOON for one in after), sum(one <= LATE for one in after), setting.liars * len(found)


def false_alarms(setting: Setting, found: dict[int, Played]) -> tuple[int, int]:
    """Return how many honest results were replayed, each once, and how many honest members convicted."""
    honest = {(seed, one.step, one.member) for seed, run in found.items() for one in run.judged if not one.is_lie}
    accused = sum(setting.attack_of(number) is None for run in found.values() for number in run.convicted)
    return len(honest), accused


def _convictions(setting: Setting, run: Played) -> str:
    after = sorted(step - setting.first_lie for number, step in run.convicted.items() if number <= setting.liars)
    free = setting.liars - len(after)
    return ", ".join([*map(str, after), *([f"{free} not"] if free else [])])


def _mean(runs: Iterable[Played], figure: Callable[[Any], float]) -> str:
    return f"{statistics.fmean(map(figure, runs)):.2f}"


def _by_precision(runs: Sequence[Played]) -> str:
    of = [one.classes.split()[1].partition("/")[0] for run in runs for one in run.judged]
    return " / ".join(f"{of.count(precision)}" for precision in PRECISIONS)


def _verifiers_part(run: Played) -> float:
    return run.spent_s["verifiers"] / run.spent_s["members"]


def _replayed_part(run: Played) -> float:
    return run.trained_s["verifiers"] / run.spent_s["members"]


def _sums(shown: dict[Setting, dict[int, Played]]) -> str:
    verified = {setting: found for setting, found in shown.items() if setting.percent}
    timed = [in_time(*one) for one in verified.items() if ATTACKS[one[0].attack].most == HARMFUL]
    soon, late, lied = (sum(one[index] for one in timed) for index in range(3))
    replayed, accused = (sum(false_alarms(*one)[index] for one in verified.items()) for index in range(2))
    return (
        f"Rows with that target together: {soon} / {late} of {lied} convicted within {SOON} / {LATE} rounds of the "
        f"first lie (wanted: {SOON_PART:.0%} / all). All rows: {replayed:,} honest results replayed "
        f"(wanted: ≥ {HONEST_WANTED:,}), {accused} honest members convicted (wanted: 0)."
    )


def _explained(shown: dict[Setting, dict[int, Played]]) -> list[str]:
    done, wanted = sum(run.kept() is not None for run in planned()), len(planned())
    missing = [title(setting) for setting in ROWS if setting not in shown]
    return [
        *([_sums(shown), ""] if shown else []),
        *([f"Not measured yet: {'; '.join(missing)}.", ""] if missing else []),
        f"{done} of {wanted} runs are measured. `OMP_NUM_THREADS=1 python -m benchmarks.training.trust` makes the "
        "others.",
        "",
        "A conviction's round is the one under way when it came. An honest result counts once, however often it was "
        "replayed. Merging counts as the members' processor time, rebuilding replicas and calibrating as the "
        "verifiers'; the machine was shared.",
    ]


if __name__ == "__main__":
    make_missing(sys.argv[1:])
