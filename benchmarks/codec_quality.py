"""`python -m benchmarks codecs`: what clients learn whose results are smaller than float32, beside float32.

The runs are those of `benchmarks/quality.py`, with results encoded and decoded as in a run. They are kept in
`codec_results`; `python -m benchmarks.codec_quality` only makes those that are missing, as `benchmarks.quality` does.
"""

import statistics
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks import quality
from benchmarks.figures import Figure
from benchmarks.quality import CLIENT_LRS, DIGITS, UNIT, Run, clients_setting, make_missing
from benchmarks.quality_training import CLIENTS, Setting
from state.codecs.named import codec_named
from state.tensors import TensorLayout

KEPT = Path(__file__).parent / "codec_results"
SEEDS = (0, 1)
ROUND_STEPS = 30
RATED_VALUES = 1 << 24
"""Size of the tensor of which a codec's bytes a parameter are given."""

NESTEROV = clients_setting(ROUND_STEPS)
"""The defaults of `[merge]`, with float32 results."""
PLAIN = Setting(CLIENT_LRS[ROUND_STEPS], CLIENTS, ROUND_STEPS, outer_lr=1.0, outer_momentum=0.0)
"""The mean of the clients' parameters."""
SPARSE = replace(PLAIN, codec="sparse-64", error_feedback=True)
DENSE = ("int8", "int4")
SETTINGS = (
    *(replace(outer, codec=codec) for outer in (NESTEROV, PLAIN) for codec in ("float32", *DENSE)),
    *(replace(outer, codec="int4", error_feedback=True) for outer in (NESTEROV, PLAIN)),
    *(replace(SPARSE, outer_lr=rate) for rate in (1.0, 2.0)),
    *(replace(SPARSE, outer_lr=rate, mean="senders") for rate in (1.0, 0.7)),
)

NOTES = (
    f"{CLIENTS} clients, {ROUND_STEPS} local steps a round, learning rate {PLAIN.base_lr:g}, {len(SEEDS)} seeds. "
    "Model, text, tokens and held-out bytes are those of the quality bench (`python -m benchmarks quality`). Beside "
    "each codec stand float32 with the defaults of `[merge]` and, in words, float32 with the same momentum and an "
    "outer rate of 0.7 (with momentum) or 1.",
)
"""What the page says of the figures."""


@dataclass(frozen=True, slots=True)
class Row:
    """A setting, with both seeds."""

    setting: Setting

    @property
    def runs(self) -> list[Run]:
        """The runs; those that the quality bench has made are not made again."""
        known = quality.planned()
        return [run if (run := Run(self.setting, seed)) in known else replace(run, folder=KEPT) for seed in SEEDS]

    @property
    def losses(self) -> list[float]:
        """The final held-out losses."""
        return [run.result().loss for run in self.runs]


def planned() -> list[Run]:
    """Return every run, seed by seed."""
    rows = [Row(setting).runs for setting in SETTINGS]
    return [runs[number] for number in range(len(SEEDS)) for runs in rows]


def bytes_a_parameter(codec: str) -> float:
    """Return the size of a large tensor's values in a result, for each of them."""
    return codec_named(codec).encoded(TensorLayout((("w", (RATED_VALUES,)),))).size_bytes / RATED_VALUES


def measure() -> list[Figure]:
    """Return the final held-out losses, the mean of the seeds."""
    return [_figure(setting) for setting in SETTINGS]


def _figure(setting: Setting) -> Figure:
    losses, default = Row(setting).losses, Row(NESTEROV).losses
    twin = Row(replace(PLAIN if setting.outer_momentum == 0 else NESTEROV, codec="float32")).losses
    return Figure(
        _name(setting),
        statistics.fmean(losses),
        UNIT,
        "",
        statistics.fmean(default),
        f"float32 with the defaults; seed by seed {_shown(losses)}; float32 with this momentum {_shown(twin)}",
        DIGITS,
    )


def _name(setting: Setting) -> str:
    feedback = ", error feedback" if setting.error_feedback else ""
    mean = f", mean over {setting.mean}" if setting.codec.startswith("sparse") else ""
    return (
        f"{setting.codec} ({bytes_a_parameter(setting.codec):.4g} bytes a parameter){feedback}{mean}, "
        f"outer rate {setting.outer_lr:g} and momentum {setting.outer_momentum:g}"
    )


def _shown(losses: list[float]) -> str:
    return ", ".join(f"{loss:.4f}" for loss in losses)


if __name__ == "__main__":
    make_missing(planned())
