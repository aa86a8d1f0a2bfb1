"""Writes the figures of the quality and codec benches where `epochal plan` and `epochal init` read them.

They come from the same kept runs as the pages. A further choice (`update`, `delay`) is a further row.
"""

import json
from collections.abc import Sequence
from typing import Any

from benchmarks.training.codec_quality import (
    MUON_MACHINE,
    MUON_ROUNDS,
    RESETS,
    Row,
    beside,
    delays,
    exact_of,
    kept_of,
    shown,
    updates,
    without_delay,
)
from benchmarks.training.quality import MACHINE, ROUND_STEPS, SEEDS, Run, clients_setting
from benchmarks.training.quality_training import CLIENTS, Setting
from epochal.tools.quality import DATA, Choice
from epochal.trainers.first_parameters import model_layout

FLOAT32_BYTES = 4


def document() -> dict[str, Any]:
    """Return the file's content: how it is made, and a row for each choice."""
    alone = [Run(MACHINE, seed).result().loss for seed in SEEDS]
    rows = []
    for steps in ROUND_STEPS:
        setting = clients_setting(steps)
        rows.append(_row("local_steps", setting, [Run(setting, seed).result().loss for seed in SEEDS], alone))
    rows += [_row("local_steps", setting, Row(setting).losses, alone) for setting in MUON_ROUNDS]
    rows += [_row("codec", setting, Row(setting).losses, beside(setting).losses) for setting in shown()]
    rows += [_row("update", setting, Row(setting).losses, exact_of(setting).losses) for setting in updates()]
    rows += [_row("delay", setting, Row(setting).losses, without_delay(setting).losses) for setting in delays()]
    for setting in RESETS:
        if losses := Row(setting).losses:
            rows.append(_row("inner_state", setting, losses, Row(kept_of(setting)).losses))
    rows.append(_row("machine", MUON_MACHINE, Row(MUON_MACHINE).losses, alone))
    return {"made_by": "python -m benchmarks quality codecs --write PAGE", "unit": "nats per byte", "rows": rows}


def text() -> str:
    """Return the file's text: a line for each row."""
    whole = document()
    rows = ",\n".join(json.dumps(row) for row in whole.pop("rows"))
    return f'{json.dumps(whole)[:-1]}, "rows": [\n{rows}\n]}}\n'


def write() -> None:
    """Write the file."""
    DATA.write_text(text(), encoding="utf-8")


def _row(choice: Choice, setting: Setting, losses: Sequence[float], without: Sequence[float]) -> dict[str, Any]:
    codec, _, keep = setting.codec.partition("-")
    merge = {
        "local_steps": setting.local_steps,
        "codec": codec,
        "error_feedback": setting.error_feedback,
        "mean": setting.mean,
        "outer_lr": setting.outer_lr,
        "outer_momentum": setting.outer_momentum,
        "update": setting.update,
    } | ({"sparse_keep": int(keep)} if keep else {})
    merge |= {"delay": setting.delay} if setting.delay else {}
    merge |= {"inner_state": setting.inner_state} if setting.inner_state == "reset" else {}
    found = {"choice": choice, "merge": merge, "losses": list(losses), "beside": list(without[: len(losses)])}
    parameters = model_layout(setting.spec).size_bytes // FLOAT32_BYTES
    return found | {"optimizer": setting.optimizer, "parameters": parameters, "clients": CLIENTS}
