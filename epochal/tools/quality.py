"""What choices of `[merge]` cost in loss, as the project's bench has measured it with a small model.

`quality.json` is written by the benches `quality` and `codecs`, from the same runs as the pages
`docs/benchmarks-quality.md` and `docs/benchmarks-codecs.md`; a test compares them. Each row is one choice: the fields
of `[merge]` with which it was measured, and the final held-out losses of its seeds beside those of the same seeds
without it. A choice of which there is no row has no price here: it is said to be not measured.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from epochal.state.codecs.codecs_by_name import codec_named
from epochal.state.config.model_table import Muon
from epochal.state.config.state_file import MergeConfig, StateFile
from epochal.state.model.tensors import TensorLayout
from epochal.state.text.amounts import counted

DATA = Path(__file__).with_suffix(".json")
PAGE = "docs/benchmarks-quality.md"
Choice = Literal["local_steps", "codec", "update", "delay", "inner_state", "machine"]
OptimizerName = Literal["AdamW", "Muon"]
MOST_OF_CODEC = 1.01
"""Multiple of the loss with float32 up to which a codec is a choice of a new run."""
OF_CODEC = ("codec", "sparse_keep", "error_feedback", "mean", "outer_lr", "outer_momentum")
"""The fields that are chosen together with a codec."""
OF_DELAY = ("delay", "outer_lr", "outer_momentum")
"""The fields that are chosen together with a delay."""

RATED = TensorLayout((("w", (1 << 20,)),))
"""Values of which the sizes of codecs are compared."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A choice, and what it costs.

    Attributes:
        choice: what was chosen: `local_steps`, with an optimizer and results as int4, beside one machine with AdamW;
            `codec` beside float32, `update` beside an exact one, `delay` beside none, `inner_state`, with an optimizer,
            reset beside kept; `machine`, one machine with an optimizer beside one with AdamW.
        merge: the table with which it was measured.
        losses, beside: final held-out losses in nats, with it and without it, seed by seed.
        parameters: of the model.
        clients: their number.
    """

    choice: Choice
    merge: MergeConfig
    losses: tuple[float, ...]
    beside: tuple[float, ...]
    parameters: int
    clients: int
    optimizer: OptimizerName = "AdamW"

    @property
    def ratio(self) -> float:
        """The loss as a multiple of that without the choice: of the seeds' means."""
        return fmean(self.losses) / fmean(self.beside)

    @property
    def spread(self) -> tuple[float, float]:
        """The least and the largest such multiple of a seed."""
        ratios = [loss / other for loss, other in zip(self.losses, self.beside, strict=True)]
        return min(ratios), max(ratios)


def read_measured() -> tuple[Measured, ...]:
    """Return the rows of a file that the bench has written."""
    rows: list[dict[str, Any]] = json.loads(DATA.read_text(encoding="utf-8"))["rows"]
    return tuple(
        Measured(
            row["choice"],
            MergeConfig.model_validate_json(json.dumps(row["merge"])),
            tuple(row["losses"]),
            tuple(row["beside"]),
            row["parameters"],
            row["clients"],
            row["optimizer"],
        )
        for row in rows
    )


_ROWS = read_measured()
MEASURED = tuple(row for row in _ROWS if row.parameters == min(one.parameters for one in _ROWS))
"""The rows of the smallest model, of the most seeds, from which prices are."""
LARGER = tuple(row for row in _ROWS if row not in MEASURED)
"""Those of larger models, which are told beside the prices."""


def optimizer_of(state: StateFile) -> OptimizerName:
    """Return the optimizer whose prices are a run's: Muon's, or AdamW's for any other."""
    return "Muon" if isinstance(state.model.LLM.optimizer, Muon) else "AdamW"


def measured_rounds(optimizer: OptimizerName = "AdamW") -> list[Measured]:
    """Return the rounds that were measured with an optimizer, those of the fewest local steps first."""
    rows = (row for row in MEASURED if row.choice == "local_steps" and row.optimizer == optimizer)
    return sorted(rows, key=lambda row: row.merge.local_steps)


def loss_of_local_steps(steps: int, optimizer: OptimizerName = "AdamW") -> float | None:
    """Return the loss, in rounds of so many local steps, beside one machine's with AdamW.

    Between two measured it is in proportion; None outside of what was measured.
    """
    rows = measured_rounds(optimizer)
    for one, next_one in zip(rows, [*rows[1:], *rows[-1:]], strict=True):
        first, last = one.merge.local_steps, next_one.merge.local_steps
        if first <= steps <= last:
            part = math.log(steps / first) / math.log(last / first) if last > first else 0.0
            return one.ratio + part * (next_one.ratio - one.ratio)
    return None


def measured_codecs() -> list[str]:
    """Return the names of the codecs of which the price is known."""
    return list(dict.fromkeys(row.merge.codec for row in MEASURED if row.choice == "codec"))


def best_of_codec(
    codec: str, local_steps: int, *, is_repeatable: bool = False, is_delayed: bool = False
) -> Measured | None:
    """Return the settings with which a codec lost least, in rounds that are nearest to so many local steps.

    Args:
        codec: its name.
        local_steps: of a round.
        is_repeatable: whether verifiers compute results again, which error feedback makes impossible.
        is_delayed: whether the run's outer step is that of a delay, so that there are no settings with another one.
    """
    rows = [row for row in MEASURED if row.choice == "codec" and row.merge.codec == codec]
    rows = [row for row in rows if not (is_repeatable and row.merge.error_feedback)]
    best = min(rows, key=lambda row: (_apart(row, local_steps), row.ratio), default=None)
    return None if is_delayed and best is not None and best.merge != _with_usual_step(best.merge) else best


def best_of_delay(local_steps: int, optimizer: OptimizerName = "AdamW") -> Measured | None:
    """Return the settings with which training ahead lost least, in rounds that are nearest to so many local steps."""
    return min(_delays(optimizer), key=lambda row: (_apart(row, local_steps), row.ratio), default=None)


def costly_delay(state: StateFile) -> str | None:
    """Return the warning that a run trains ahead with another outer step than the one measured for it; None if not."""
    for step in (0, *(change.at_step for change in state.changes)):
        then = state.at(step)
        merge, optimizer = then.merge, optimizer_of(then)
        best = best_of_delay(merge.local_steps, optimizer) if merge.delay else None
        if best is not None and _of_delay(merge) != _of_delay(best.merge):
            price, least = shown_loss(_delay_loss(merge, optimizer)), best.merge
            return (
                f"merge.delay is 1 with outer_lr = {merge.outer_lr:g} and outer_momentum = {merge.outer_momentum:g}: "
                f"{price}; write `outer_lr = {least.outer_lr:g}` and `outer_momentum = {least.outer_momentum:g}`, with "
                f"which a small model lost least: {shown_loss(best.ratio)}"
            )
    return None


def codec_choices(rows: Sequence[Measured] = MEASURED) -> dict[str, Measured]:
    """Return the codecs that lose at most `MOST_OF_CODEC` of float32's loss in each of the rounds measured, by name.

    Each has the settings with which it lost least in rounds of the same length, and the round in which it lost most.
    """
    settings: dict[tuple[Any, ...], dict[int, Measured]] = {}
    for row in rows:
        if row.choice == "codec":
            settings.setdefault(_of_codec(row.merge), {})[row.merge.local_steps] = row
    found: dict[str, dict[int, Measured]] = {}
    for measured in settings.values():
        codec = _worst(measured).merge.codec
        if _worst(measured).ratio <= MOST_OF_CODEC and (codec not in found or _loses_less(measured, found[codec])):
            found[codec] = measured
    return {codec: _worst(measured) for codec, measured in found.items()}


def _worst(measured: Mapping[int, Measured]) -> Measured:
    return max(measured.values(), key=lambda row: row.ratio)


def _loses_less(one: Mapping[int, Measured], other: Mapping[int, Measured]) -> bool:
    """Whether settings lose less than others: in the rounds in which both were measured, else in the worst of each."""
    if both := one.keys() & other.keys():
        return fmean(one[steps].ratio for steps in both) < fmean(other[steps].ratio for steps in both)
    return _worst(one).ratio < _worst(other).ratio


def rated_bytes(merge: MergeConfig) -> int:
    """Return the size of the values of `RATED` as results of this table have them."""
    return codec_named(merge.codec_name).encoded(RATED).size_bytes


def smaller_choices(codec: str, rows: Sequence[Measured] = MEASURED) -> list[MergeConfig]:
    """Return those of `codec_choices` with smaller results than a codec of them, the largest first."""
    choices = codec_choices(rows)
    most = rated_bytes(choices[codec].merge)
    smaller = [choice.merge for choice in choices.values() if rated_bytes(choice.merge) < most]
    return sorted(smaller, key=rated_bytes, reverse=True)


def settings_of(merge: MergeConfig) -> dict[str, Any]:
    """Return the fields that are chosen together with a codec, as far as they are not the defaults; the codec first."""
    default = MergeConfig()
    names = [name for name in OF_CODEC if name == "codec" or getattr(merge, name) != getattr(default, name)]
    return {name: getattr(merge, name) for name in names}


def loss_factor(
    before: MergeConfig, after: MergeConfig, optimizer: OptimizerName = "AdamW", then: OptimizerName | None = None
) -> float | None:
    """Return the loss with one table as a multiple of that with another; None if a difference was not measured.

    Rounds before that are longer than measured ones count as the longest of these, which lose less.

    Args:
        before, after: the tables.
        optimizer: with the first.
        then: with the other; None for the same.
    """
    pairs: list[tuple[float | None, float | None]] = []
    then = then or optimizer
    if (after.local_steps, then) != (before.local_steps, optimizer):
        longest = measured_rounds(optimizer)[-1].merge.local_steps
        lost = loss_of_local_steps(min(before.local_steps, longest), optimizer)
        pairs.append((lost, loss_of_local_steps(after.local_steps, then)))
    codecs = _without_delay(before), _without_delay(after)
    if _of_codec(codecs[0]) != _of_codec(codecs[1]):
        pairs.append((_codec_loss(codecs[0]), _codec_loss(codecs[1])))
    if after.update != before.update:
        pairs.append((_update_loss(before), _update_loss(after)))
    if (_of_delay(after), then) != (_of_delay(before), optimizer):
        pairs.append((_delay_loss(before, optimizer), _delay_loss(after, then)))
    resets = _reset_loss(before, optimizer), _reset_loss(after, then)
    if resets[0] != resets[1]:
        pairs.append(resets)
    factor = 1.0
    for lost, loses in pairs:
        if lost is None or loses is None:
            return None
        factor *= loses / lost
    return factor


def loss_beside_one_machine(merge: MergeConfig, optimizer: OptimizerName = "AdamW") -> float | None:
    """Return the loss as a multiple of that of one machine with AdamW and the same tokens; None if it is not known.

    A codec and an update cost with Muon what they cost with AdamW, and so does a delay with an outer step that was not
    measured with Muon.
    """
    steps = loss_of_local_steps(merge.local_steps, optimizer)
    factor = loss_factor(MergeConfig(local_steps=merge.local_steps, update="exact"), merge, optimizer)
    return None if steps is None or factor is None else steps * factor


def shown_loss(factor: float | None) -> str:
    """Return a multiple of a loss in words, such as `loss + 1.2 %`."""
    if factor is None:
        return "its loss is not measured"
    percent = 100 * (factor - 1)
    return "the same loss" if abs(percent) < 0.05 else f"loss {'+' if percent > 0 else '−'} {abs(percent):.1f} %"


def source(merge: MergeConfig, optimizer: OptimizerName = "AdamW") -> str:
    """Return how the loss of a table was measured, as a sentence's end: with what, and what of it was not."""
    millions = " and ".join(f"{count / 1e6:.2g} M" for count in sorted({row.parameters for row in MEASURED}))
    clients = " or ".join(str(count) for count in sorted({row.clients for row in MEASURED}))
    how = "nearest:" if loss_beside_one_machine(merge, optimizer) is None else "measured with"
    parts = [f"{how} a small model ({millions} parameters, {clients} clients: {PAGE})"]
    parts.append("yours may lose less or more")
    nearest = min(measured_rounds(optimizer), key=lambda row: _apart(row, merge.local_steps))
    parts.append(f"rounds of {nearest.merge.local_steps}: {_shown_seeds(nearest)}")
    alone = [row for row in MEASURED if row.choice == "machine" and row.optimizer == optimizer]
    if alone:
        beside_own = replace(nearest, losses=nearest.losses[: len(alone[0].losses)], beside=alone[0].losses)
        parts[-1] += f", beside one machine with {optimizer} {_shown_seeds(beside_own)}"
    if merge.local_steps > measured_rounds(optimizer)[-1].merge.local_steps:
        parts.append("longer ones count as these in what to change")
    of_codec = _without_delay(merge)
    rounds = sorted(row.merge.local_steps for row in _codec_rows(of_codec))
    if _of_codec(of_codec) != _of_codec(MergeConfig()) and rounds and merge.local_steps not in rounds:
        parts.append(f"{merge.codec} only in rounds of {' or '.join(map(str, rounds))}")
    return "; ".join([*parts, *_of_larger(merge)])


def _of_larger(merge: MergeConfig) -> list[str]:
    """Return what a table's choices cost with larger models than that of the prices, as far as it was measured."""
    without = _without_delay(merge)

    def name_of(row: Measured) -> str:
        match row.choice:
            case "codec" if _of_codec(row.merge) == _of_codec(without):
                return f"{merge.codec} results"
            case "update" if row.merge.update == merge.update:
                return f"{merge.update} updates"
            case "delay" if _of_delay(row.merge) == _of_delay(merge):
                return "delay"
        return ""

    found: dict[str, list[str]] = {}
    for row in LARGER:
        if name := name_of(row):
            found.setdefault(name, []).append(f"{_percent(row.ratio)} at {row.parameters / 1e6:.2g} M")
    told = ", ".join(f"{name} {' and '.join(each)}" for name, each in found.items())
    return [f"larger models ({counted(min(len(row.losses) for row in LARGER), 'seed')}): {told}"] if told else []


def _shown_seeds(row: Measured) -> str:
    least, most = (_percent(ratio) for ratio in row.spread)
    return f"{counted(len(row.losses), 'seed')}, {least if least == most else f'{least[:-2]} to {most}'}"


def _percent(ratio: float) -> str:
    return f"{100 * (ratio - 1):+.1f} %".replace("-", "−")


def _of_codec(merge: MergeConfig) -> tuple[Any, ...]:
    return tuple(getattr(merge, name) for name in OF_CODEC if name != "sparse_keep" or merge.codec == "sparse")


def _apart(row: Measured, local_steps: int) -> float:
    return abs(math.log(row.merge.local_steps / local_steps))


def _codec_loss(merge: MergeConfig) -> float | None:
    rows = _codec_rows(merge)
    return min(rows, key=lambda row: _apart(row, merge.local_steps)).ratio if rows else None


def _codec_rows(merge: MergeConfig) -> list[Measured]:
    """Return the rows of a table's codec with its settings."""
    return [row for row in MEASURED if row.choice == "codec" and _of_codec(row.merge) == _of_codec(merge)]


def _update_loss(merge: MergeConfig) -> float:
    """Return what an update's encoding costs beside an exact one."""
    if merge.update == "exact":
        return 1.0
    rows = [row for row in MEASURED if row.choice == "update" and row.merge.update == merge.update]
    return min(rows, key=lambda row: _apart(row, merge.local_steps)).ratio


def _reset_loss(merge: MergeConfig, optimizer: OptimizerName) -> float | None:
    """Return what it costs that an optimizer's moments begin anew in each round, in rounds of about this length."""
    if merge.inner_state == "keep":
        return 1.0
    rows = [row for row in MEASURED if row.choice == "inner_state" and row.optimizer == optimizer]
    return min(rows, key=lambda row: _apart(row, merge.local_steps)).ratio if rows else None


def _of_delay(merge: MergeConfig) -> tuple[Any, ...]:
    return tuple(getattr(merge, name) for name in OF_DELAY) if merge.delay else ()


def _with_usual_step(merge: MergeConfig) -> MergeConfig:
    """Return a table without delay and with the usual outer step."""
    default = MergeConfig()
    return merge.model_copy(update={name: getattr(default, name) for name in OF_DELAY})


def _without_delay(merge: MergeConfig) -> MergeConfig:
    """Return the table beside which that of a run with delay was measured: its outer step is part of that choice."""
    return _with_usual_step(merge) if merge.delay else merge


def _delays(optimizer: OptimizerName, merge: MergeConfig | None = None) -> list[Measured]:
    """Return the rows of training ahead, with a table's outer step or any: of an optimizer, else of all of them."""
    rows = [
        row for row in MEASURED if row.choice == "delay" and (not merge or _of_delay(row.merge) == _of_delay(merge))
    ]
    return [row for row in rows if row.optimizer == optimizer] or rows


def _delay_loss(merge: MergeConfig, optimizer: OptimizerName) -> float | None:
    if not merge.delay:
        return 1.0
    rows = _delays(optimizer, merge)
    return min(rows, key=lambda row: _apart(row, merge.local_steps)).ratio if rows else None
