"""`python -m benchmarks codecs`: what clients learn whose results are smaller than float32, beside float32.

The runs are those of `benchmarks/training/quality.py`, with results encoded and decoded as in a run. They are kept
in `codec_results`; `python -m benchmarks.training.codec_quality` only makes those that are missing, as
`benchmarks.training.quality` does: with words, those that have one of them in their file's name, such as `update-int4`.
"""

import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import Any

from benchmarks.figures import Figure
from benchmarks.plots import spread_plot
from benchmarks.training import quality
from benchmarks.training.quality import CLIENT_LRS, DIGITS, UNIT, Run, clients_setting, make_missing
from benchmarks.training.quality_text import LENGTH
from benchmarks.training.quality_training import CLIENT_ROWS, CLIENTS, Setting
from epochal.state.codecs.codecs_by_name import codec_named
from epochal.state.model.tensors import TensorLayout

KEPT = Path(__file__).parent / "codec_results"
SEEDS = (0, 1)
ROUND_STEPS = 30
UPDATE_TARGET = "≤ 1.002 x"
DELAY_TARGET = "≤ 1.03 x"
RATED_VALUES = 1 << 24
"""Size of the tensor of which a codec's bytes a parameter are given."""

NESTEROV, FREQUENT, RARE = (replace(clients_setting(steps), codec="float32") for steps in (ROUND_STEPS, 8, 100))
"""The defaults of `[merge]` with float32 results, in rounds of 30, 8 and 100 local steps."""
PLAIN = Setting(CLIENT_LRS[ROUND_STEPS], CLIENTS, ROUND_STEPS, outer_lr=1.0, outer_momentum=0.0)
"""The mean of the clients' parameters."""
SPARSE = replace(PLAIN, codec="sparse-64", error_feedback=True)
SPARSE_NESTEROV = replace(NESTEROV, codec="sparse-64", error_feedback=True)
DENSE = ("int8", "int4")
SETTINGS = (
    *(replace(NESTEROV, codec=codec) for codec in ("float32", *DENSE)),
    replace(NESTEROV, codec="int4", error_feedback=True),
    SPARSE_NESTEROV,
    replace(SPARSE_NESTEROV, mean="senders"),
    *(replace(FREQUENT, codec=codec) for codec in ("float32", *DENSE)),
    *(replace(RARE, codec=codec) for codec in ("float32", "int4")),
    *(replace(PLAIN, codec=codec) for codec in ("float32", *DENSE)),
    replace(PLAIN, codec="int4", error_feedback=True),
    *(replace(SPARSE, outer_lr=rate) for rate in (1.0, 2.0)),
    replace(SPARSE, mean="senders"),
)
TWO_BITS = replace(NESTEROV, codec="int2", error_feedback=True)
TRIED = (TWO_BITS, replace(SPARSE, codec="sparse-256", mean="senders"))
"""Further settings: two bits a value, and more kept with the settings with which `sparse` loses least."""
MORE_SEEDS = (*SEEDS, 2)
NEAREST = (
    *(replace(outer, codec=codec) for outer in (NESTEROV, FREQUENT, RARE) for codec in ("float32", "int4")),
    replace(NESTEROV, codec="int8"),
    TWO_BITS,
)
"""Settings with `MORE_SEEDS`."""
UPDATES = tuple(
    replace(clients_setting(steps), update=codec) for codec in ("int4", "int8") for steps in (ROUND_STEPS, 8, 100)
)
"""The defaults of `[merge]` where everybody takes the mean as a codec leaves it; a row is shown once it is measured."""
EAGER = replace(clients_setting(ROUND_STEPS), delay=1)
"""The defaults of `[merge]` with `delay = 1`."""
EAGER_OUTERS: dict[int, dict[str, Any]] = {
    ROUND_STEPS: {"outer_lr": 0.5, "outer_momentum": 0.9},
    8: {"outer_lr": 0.35, "outer_momentum": 0.9},
    100: {"outer_lr": 0.6, "outer_momentum": 0.8},
}
"""Outer rate and momentum with `delay = 1`, by local steps.

A client starts from an outer step of a part p of its own result, of which all that differs from the mean is noise, made
larger by a = p · η · (1 + μ): above 1 it grows from round to round. With p < 1 the start lags behind the mean, which is
unstable for a small p; the eigenvalues of that recursion say for which. One seed, H = 30, loss by η / μ: with p = 1,
0.7 / 0.8 1.585, 0.5 / 0.8 1.425, 0.25 / 0.9 1.429, 0.35 / 0.9 1.404, 0.5 / 0.9 1.404, 0.2 / 0.95 1.476; with 0.8 and
0.65, 0.5 / 0.85 1.395 and 1.397; with 0.75 and 0.7, 0.5 / 0.9 1.385 and 1.391; with 0.65, 0.6 / 0.9 1.414 and 0.7 / 0.8
1.430. H = 8 and 100, p = 0.75: 0.5 / 0.9 1.527 and 1.511; H = 100: 0.6 / 0.8 1.471, 0.7 / 0.8 1.476, 0.8 / 0.65 1.490.

Tried and given up, one seed: a part of the outer momentum v beside the own result (H = 30, 0.5 / 0.9, p d + q v: 0.75
and 0.025 1.388, 0.6 and 0.04 1.407, 0.5 and 0.05 1.479); and to move to the true replica after a part of the round's
local steps, with p = 1 and 0.7 / 0.8: after half of them 1.380 with H = 30 and 1.459 with H = 100, after a quarter
1.369 with H = 30, where 1.347 and 1.403 are without delay.
"""

MUON_LR = 0.004
"""Better than 0.008 with float32 results and one seed (1.318, 1.367), and than 0.002 after a fifth of the steps."""
MUONS = tuple(
    replace(one, optimizer="Muon", base_lr=MUON_LR)
    for one in (
        *(NESTEROV, replace(NESTEROV, codec="int4"), TWO_BITS),
        *(clients_setting(RARE.local_steps), replace(TWO_BITS, local_steps=RARE.local_steps)),
    )
)
"""The same with Muon in the place of AdamW; a row is shown once it is measured."""
MUON_MACHINE = replace(quality.MACHINE, optimizer="Muon", base_lr=MUON_LR)
"""One machine with Muon."""
MUON_ROUNDS = tuple(one for one in MUONS if one.codec == "int4")
"""Whose lengths a new run may have."""
MUON_EAGER = replace(MUON_ROUNDS[-1], delay=1, **EAGER_OUTERS[RARE.local_steps])
"""Training ahead in long rounds with Muon, as `epochal plan` advises it to whom `init` gives Muon."""
DELAYS = (
    *(replace(clients_setting(steps), delay=1, **outer) for steps, outer in EAGER_OUTERS.items()),
    MUON_EAGER,
    EAGER,
)
"""Training ahead; a row is shown once it is measured."""
RESETS = (replace(NESTEROV, base_lr=0.001, inner_state="reset"), replace(MUON_ROUNDS[0], inner_state="reset"))
"""Moments that begin anew in each round, with AdamW and with Muon; a row is shown once it is measured."""

LARGER = (replace(NESTEROV, size="1 M"), replace(NESTEROV, base_lr=0.001, size="6 M"))
"""The defaults of `[merge]` with float32 results and larger models, which learn from fewer tokens."""
LARGER_CODECS = tuple(
    replace(one, base_lr=larger.base_lr, size=larger.size)
    for larger in LARGER
    for one in (NESTEROV, replace(NESTEROV, codec="int4"), TWO_BITS, replace(SPARSE, mean="senders"))
)
LARGER_UPDATES = tuple(replace(one, codec="int4", update="int4") for one in LARGER)
LARGER_DELAYS = tuple(replace(one, codec="int4", delay=1, **EAGER_OUTERS[ROUND_STEPS]) for one in LARGER)
OF_LARGER = (*LARGER_CODECS, *LARGER_UPDATES, *LARGER_DELAYS)
"""Rows of one seed; each is shown once it is measured."""

FURTHER = (*TRIED, *UPDATES, *DELAYS, *MUONS, MUON_MACHINE, *RESETS, *OF_LARGER)
"""Settings of which the page shows the seeds that there are."""

NOTES = (
    f"{CLIENTS} clients with a learning rate of {PLAIN.base_lr:g} in rounds of H = {ROUND_STEPS} or {RARE.local_steps} "
    f"local steps, of {FREQUENT.base_lr:g} with H = {FREQUENT.local_steps}. The baseline is the same seeds with "
    "float32 results, the defaults and the same H, unless another is named. Model, text and held-out bytes are "
    "[the quality bench's](benchmarks-quality.md). "
    + "; ".join(
        f"{one.size} parameters learn from {CLIENTS * CLIENT_ROWS * LENGTH * one.steps / 1e6:.2g} M tokens, "
        f"at a rate of {one.base_lr:g}"
        for one in LARGER
    )
    + ".",
)
"""What the page says of the figures."""


@dataclass(frozen=True, slots=True)
class Row:
    """A setting, with its seeds."""

    setting: Setting

    @property
    def runs(self) -> list[Run]:
        """The runs; those that the quality bench has or makes are not made again."""
        known = quality.planned()
        runs = [Run(self.setting, seed) for seed in self.seeds]
        return [run if run in known or run.kept() is not None else replace(run, folder=KEPT) for run in runs]

    @property
    def seeds(self) -> tuple[int, ...]:
        """One for what is far worse or was only tried; one more for what comes near to float32."""
        is_dense = not self.setting.codec.startswith("sparse")
        if self.setting in (*TRIED[1:], EAGER, *OF_LARGER) or (self.setting.outer_momentum == 0 and is_dense):
            return SEEDS[:1]
        return MORE_SEEDS if self.setting in (*NEAREST, *UPDATES, *DELAYS, *MUONS, MUON_MACHINE, *RESETS) else SEEDS

    @property
    def losses(self) -> list[float]:
        """The final held-out losses; of what was tried, those of the first seeds that are kept."""
        runs = self.runs
        if self.setting in FURTHER:
            runs = list(takewhile(lambda run: run.kept() is not None, runs))
        return [run.result().loss for run in runs]


def shown() -> list[Setting]:
    """Return the settings of the page's rows of codecs: a further one once a seed of it and of float32 is measured."""
    further = (*TRIED, *LARGER_CODECS)
    return [*SETTINGS, *(setting for setting in further if Row(setting).losses and beside(setting).losses)]


def updates() -> list[Setting]:
    """Return the settings of the page's rows of updates."""
    return [one for one in (*UPDATES, *LARGER_UPDATES) if Row(one).losses]


def delays() -> list[Setting]:
    """Return the settings of the page's rows of training ahead."""
    return [one for one in (*DELAYS, *LARGER_DELAYS) if Row(one).losses]


def planned(settings: Sequence[Setting] = (*SETTINGS, *FURTHER)) -> list[Run]:
    """Return every run of these settings, seed by seed."""
    runs = [run for setting in settings for run in Row(setting).runs]
    return sorted(runs, key=lambda run: run.seed)


def bytes_a_parameter(codec: str) -> float:
    """Return the size of a large tensor's values in a result, for each of them."""
    return codec_named(codec).encoded(TensorLayout((("w", (RATED_VALUES,)),))).size_bytes / RATED_VALUES


def measure() -> list[Figure]:
    """Return the final held-out losses, the mean of the seeds."""
    found = [_figure(setting) for setting in shown()]
    found += [*map(_update, updates()), *map(_delay, delays())]
    found += [_muon(one) for one in (MUON_MACHINE, *MUONS) if Row(one).losses]
    return found + [_reset(one) for one in RESETS if Row(one).losses]


def plots() -> dict[str, str]:
    """Return the plot of the page: each codec's losses beside those of float32, seed by seed."""
    ratios = {}
    for setting in shown():
        if len(Row(setting).losses) > 1 and setting.codec != "float32":
            row = Row(setting)
            pairs = zip(row.losses, beside(setting).losses, strict=False)
            ratios[_short_name(setting)] = [loss / exact for loss, exact in pairs]
    return {"codecs-seeds": spread_plot(ratios, "final held-out loss ÷ that of float32, each seed")}


def beside(setting: Setting) -> Row:
    """Return float32 with the defaults, the same model and rounds of the same length."""
    of = setting.size, setting.local_steps
    return Row(next(one for one in (NESTEROV, FREQUENT, RARE, *LARGER) if (one.size, one.local_steps) == of))


def exact_of(setting: Setting) -> Row:
    """Return the same setting with the exact mean."""
    return Row(replace(setting, update="exact"))


def without_delay(setting: Setting) -> Row:
    """Return the same setting without a delay, with the default outer step."""
    default = clients_setting(setting.local_steps)
    return Row(replace(setting, delay=0, outer_lr=default.outer_lr, outer_momentum=default.outer_momentum))


def _figure(setting: Setting) -> Figure:
    row, default = Row(setting), beside(setting)
    exact = default.losses[: len(row.losses)]
    told = f"seed by seed {_shown(row.losses)}"
    return Figure(_name(setting), statistics.fmean(row.losses), UNIT, "", statistics.fmean(exact), told, DIGITS)


def _update(setting: Setting) -> Figure:
    row, exact = Row(setting), exact_of(setting).losses[: len(Row(setting).losses)]
    told = f"the exact mean; seed by seed {_shown(row.losses)}"
    name = f"{_short_name(setting)}, their mean as {setting.update}, {bytes_a_parameter(setting.update):.4g} bytes down"
    return Figure(name, statistics.fmean(row.losses), UNIT, UPDATE_TARGET, statistics.fmean(exact), told, DIGITS)


def _delay(setting: Setting) -> Figure:
    row, without = Row(setting), without_delay(setting)
    told = f"without delay; seed by seed {_shown(row.losses)}"
    optimizer = "" if setting.optimizer == "AdamW" else f", {setting.optimizer}"
    name, mean = f"{_short_name(setting)}{optimizer}, delay = 1", statistics.fmean(without.losses[: len(row.losses)])
    return Figure(name, statistics.fmean(row.losses), UNIT, DELAY_TARGET, mean, told, DIGITS)


def adamw_machine() -> list[float]:
    """Return the final losses of one machine with AdamW, seed by seed."""
    return [Run(quality.MACHINE, seed).result().loss for seed in MORE_SEEDS]


def _muon(setting: Setting) -> Figure:
    losses, adamw = Row(setting).losses, adamw_machine()
    name = "one machine" if setting == MUON_MACHINE else _short_name(setting)
    told = f"one machine with AdamW; seed by seed {_shown(losses)}"
    if setting != MUON_MACHINE and (alone := Row(MUON_MACHINE).losses):
        both = min(len(losses), len(alone))
        told += f"; {statistics.fmean(losses[:both]) / statistics.fmean(alone[:both]):.4f} x one machine with Muon"
    same = Row(replace(setting, optimizer="AdamW", base_lr=CLIENT_LRS[ROUND_STEPS])) if setting in MUONS[:3] else None
    if same is not None:
        both = min(len(losses), len(same.losses))
        told += f"; {statistics.fmean(losses[:both]) / statistics.fmean(same.losses[:both]):.4f} x the same with AdamW"
    mean = statistics.fmean(adamw[: len(losses)])
    return Figure(f"{name}, Muon", statistics.fmean(losses), UNIT, "", mean, told, DIGITS)


def kept_of(setting: Setting) -> Setting:
    """Return the same with moments that are kept, at the best learning rate tried."""
    rate = MUON_LR if setting.optimizer == "Muon" else CLIENT_LRS[setting.local_steps]
    return replace(setting, inner_state="keep", base_lr=rate)


def _reset(setting: Setting) -> Figure:
    losses, kept = Row(setting).losses, Row(kept_of(setting)).losses
    told = f"moments that are kept; seed by seed {_shown(losses)}"
    name, mean = f"{_short_name(setting)}, {setting.optimizer}, reset each round", statistics.fmean(kept[: len(losses)])
    return Figure(name, statistics.fmean(losses), UNIT, "", mean, told, DIGITS)


def _name(setting: Setting) -> str:
    return f"{_short_name(setting)}, {bytes_a_parameter(setting.codec):.4g} bytes a parameter"


def _short_name(setting: Setting) -> str:
    feedback = ", error feedback" if setting.error_feedback else ""
    mean = f", mean over {setting.mean}" if setting.codec.startswith("sparse") else ""
    outer = f", outer {setting.outer_lr:g} / {setting.outer_momentum:g}"
    size = "" if setting.size == NESTEROV.size else f"{setting.size} parameters, "
    return f"{size}H = {setting.local_steps}: {setting.codec}{feedback}{mean}{outer}"


def _shown(losses: list[float]) -> str:
    return ", ".join(f"{loss:.4f}" for loss in losses)


if __name__ == "__main__":
    words = sys.argv[1:] or [""]
    make_missing([run for run in planned() if any(word in run.path.name for word in words)])
