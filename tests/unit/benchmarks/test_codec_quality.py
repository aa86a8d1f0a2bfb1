"""The codec rows of the quality bench: which runs there are, and one round of each kind."""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.training import quality, quality_training
from benchmarks.training.codec_quality import (
    NESTEROV,
    PLAIN,
    SETTINGS,
    SPARSE,
    TRIED,
    TWO_BITS,
    UPDATES,
    Row,
    bytes_a_parameter,
    planned,
)
from benchmarks.training.quality import SWEPT_STEPS, clients_setting
from benchmarks.training.quality_text import LENGTH, Text
from benchmarks.training.quality_training import Setting, train
from tests.support.heavy import need_module


def test_planned_codec_runs_have_results_of_their_own() -> None:
    runs = planned()
    assert len({run.path for run in runs}) == len(runs)
    assert {run.setting.codec for run in runs} == {"float32", "int8", "int4", "int2", "sparse-64", "sparse-256"}


def test_results_of_the_quality_bench_are_used_again() -> None:
    known = {run.path for run in planned() if run.folder == quality.KEPT}
    assert {run.path for run in Row(NESTEROV).runs + Row(clients_setting(SWEPT_STEPS)).runs} <= known
    assert not {run.path for run in Row(SPARSE).runs} & known


def test_setting_has_a_name_of_its_own_for_each_codec() -> None:
    assert replace(SPARSE, mean="senders").name == f"{PLAIN.base_lr}-4-30-1.0-0.0-keep-sparse-64-feedback-senders"
    assert len({setting.name for setting in (*SETTINGS, *TRIED, *UPDATES)}) == len((*SETTINGS, *TRIED, *UPDATES))


def test_bytes_a_parameter_are_those_of_the_formats() -> None:
    assert [round(bytes_a_parameter(codec), 4) for codec in ("float32", "int8", "int4", "int2", "sparse-64")] == [
        4.0,
        1.0156,
        0.5156,
        0.2656,
        0.0293,
    ]


@pytest.mark.nightly
@pytest.mark.parametrize(
    "setting", [PLAIN, replace(NESTEROV, codec="int4"), TWO_BITS, replace(SPARSE, mean="senders"), UPDATES[0]]
)
def test_small_run_of_a_codec_learns(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    need_module("torch")
    need_module("transformers")
    monkeypatch.setattr(quality_training, "LOCAL_STEPS", 60)
    monkeypatch.setattr(quality_training, "WARMUP_STEPS", 5)
    rows = np.random.default_rng(0).integers(97, 100, (quality_training.CLIENTS * 60, LENGTH)).astype(np.uint16)
    assert train(setting, 0, Text(rows, rows[:8])).loss < 5.4  # ln 256 is 5.55
