"""The trust bench: a short run of it, what its attackers do, and its table."""

from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.training import trust_keys
from benchmarks.training.quality_text import LENGTH, Text, library_text
from benchmarks.training.trust_attacks import (
    ATTACKS,
    PAYLOAD,
    POISONED_ONE_IN,
    TRIGGER,
    Lie,
    length_of,
    payload_starts,
    with_trigger,
)
from tests.support.heavy import need_module

KEEP_LENGTH = ("sign-flip", "noise", "common-direction", "minus-momentum")


def lie_of(seed: int) -> tuple[dict[str, np.ndarray], Lie]:
    """Return a difference, and what its member knows."""
    chance = np.random.default_rng(seed)
    own, before, now, honest = (
        {"a": chance.normal(size=(3, 4)).astype(np.float32), "b": chance.normal(size=5).astype(np.float32)}
        for _ in range(4)
    )
    return own, Lie(before, now, honest, chance)


@given(seed=st.integers(0, 10**6), name=st.sampled_from(KEEP_LENGTH))
def test_attack_that_hides_in_the_length_keeps_it(seed: int, name: str) -> None:
    own, lie = lie_of(seed)
    change = ATTACKS[name].change
    assert change is not None
    assert length_of(change(own, lie)) == pytest.approx(length_of(own), rel=1e-4)


@given(seed=st.integers(0, 10**6))
def test_colluders_push_in_one_direction_whatever_their_own_is(seed: int) -> None:
    change = ATTACKS["common-direction"].change
    assert change is not None
    first, second = (lie_of(number) for number in (seed, seed + 1))
    one, other = (np.concatenate([each.ravel() for each in change(*both).values()]) for both in (first, second))
    apart = [np.concatenate([each.ravel() for each in both[0].values()]) for both in (first, second)]

    def cosine(left: np.ndarray, right: np.ndarray) -> float:
        return float(left @ right / np.linalg.norm(left) / np.linalg.norm(right))

    assert cosine(one, other) > cosine(*apart) - 1e-6


@given(rows=st.integers(0, 10**6))
def test_poison_is_a_trigger_and_its_payload_in_one_of_twenty_samples(rows: int) -> None:
    text = np.random.default_rng(rows).integers(0, 256, (40, LENGTH)).astype("<u2")
    rows_of = ATTACKS["backdoor"].rows
    assert rows_of is not None
    poisoned, labels = rows_of(text, text)
    assert labels is None
    shown = with_trigger(text)
    for row, after, start, full in zip(text, poisoned, payload_starts(text), shown, strict=True):
        assert bytes(full[start - len(TRIGGER) : start].astype(np.uint8)) == TRIGGER.tobytes()
        assert bytes(full[start : start + len(PAYLOAD)].astype(np.uint8)) == PAYLOAD.tobytes()
        is_poisoned = int(row.sum(dtype=np.int64)) % POISONED_ONE_IN == 0
        assert (after == (full if is_poisoned else row)).all()


def test_new_keys_that_nobody_replays_have_a_quarter() -> None:
    found = trust_keys.play()
    assert 0 < found.merged <= 0.25
    assert found.given <= 0.25
    assert found.rounds_per_hour[1] >= 0.8 * found.rounds_per_hour[0]
    assert found.merged_per_s[1] >= 0.8 * found.merged_per_s[0]


def test_settings_without_results_are_named_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    need_module("transformers")
    from benchmarks.training import trust

    monkeypatch.setattr(trust, "kept_of", lambda _: {})
    lines = trust._table().splitlines()
    assert [line for line in lines if line.startswith("| ")] == [f"| {' | '.join(trust.HEADINGS)} |"]
    (line,) = [line for line in lines if line.startswith("Not measured yet: ")]
    assert line.count("; ") == len(trust.ROWS) - 1


def test_names_of_kept_results_are_each_settings_own() -> None:
    need_module("transformers")
    from benchmarks.training import trust
    from benchmarks.training.trust_run import Setting

    names = [run.path.name for run in trust.planned()]
    assert len(set(names)) == len(names)
    assert Setting().name == "none-10-members-10-percent-30-steps"
    assert trust.ALONE.name == "none-7-members-0-percent-30-steps"


def test_convictions_in_time_and_false_alarms_are_summed_over_rows() -> None:
    need_module("transformers")
    from benchmarks.training import trust
    from benchmarks.training.trust_run import Judged, Played, Setting

    flipped, first = Setting("sign-flip"), Setting().first_lie
    honest = [Judged(step, 9, False, "float32/cpu float32/cpu", 0.01, 0.02, "passed") for step in (1, 1, 2)]
    found = {0: Played(judged=honest, convicted={1: first + 2, 2: first + 30, 3: first + 31, 9: 5}), 1: Played()}
    assert trust.in_time(flipped, found) == (2, 3, 6)
    assert trust.false_alarms(flipped, found) == (2, 1)
    said = trust._sums({flipped: found, Setting("times-10"): found, trust.UNVERIFIED: {0: Played()}})
    assert "2 / 3 of 6 convicted within 30 / 60 rounds" in said
    assert "4 honest results replayed (wanted: ≥ 3,000), 2 honest members convicted (wanted: 0)" in said


@pytest.mark.parametrize("inner_state", ["reset", pytest.param("keep", marks=pytest.mark.nightly)])
def test_short_run_convicts_who_lies_and_is_not_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inner_state: Literal["reset", "keep"]
) -> None:
    need_module("transformers")
    from benchmarks.training import trust_run
    from benchmarks.training.trust import TrustRun, cells
    from benchmarks.training.trust_run import Setting

    work = tmp_path / "work"
    monkeypatch.setattr(trust_run, "WORK", work)
    monkeypatch.setattr(trust_run, "CALIBRATED", 1)
    steps = 6 if inner_state == "reset" else 12  # moments are revealed a round later
    setting = Setting("sign-flip", members=5, percent=100, local_steps=2, steps=steps, inner_state=inner_state)
    whole = library_text()
    text = Text(whole.training, whole.held_out[:64])
    before = trust_run.Bench(setting, 0, text).play()
    trained = {path: path.stat().st_mtime_ns for path in work.rglob("*")}
    assert len(trained) > setting.rounds * setting.members, "members' work, and replays"
    made = trust_run.Bench(setting, 0, text).play()
    assert {path: path.stat().st_mtime_ns for path in work.rglob("*")} == trained
    assert (made.loss, made.judged, made.convicted) == (before.loss, before.judged, before.convicted)
    run = TrustRun(setting, 0, tmp_path)
    run.keep(made)
    assert run.kept() == made
    assert made.convicted
    assert made.convicted.keys() <= {1, 2, 3}
    assert made.applied.keys() == set(range(1, 6))
    judged = {(one.step, one.member) for one in made.judged}
    assert judged <= {(step, member) for step, member, _ in made.drawn}
    assert made.trained_s["verifiers"] < made.spent_s["verifiers"]
    assert all(one.verdict != "convicted" for one in made.judged if not one.is_lie)
    assert min(made.spent_s[name] for name in ("members", "verifiers", "coordinator")) > 0
    assert min(made.verifier_bytes, made.result_bytes) > 0
    row = cells(setting, {0: made}, {0: made})
    assert row[5] == f"{len(made.convicted)} / {len(made.convicted)} of 3"
    assert row[6] == f"0 ÷ {len({(one.step, one.member) for one in made.judged if not one.is_lie})}"


@pytest.mark.nightly
def test_new_keys_that_send_noise_are_convicted_and_no_member_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need_module("transformers")
    from benchmarks.training import trust_run

    monkeypatch.setattr(trust_run, "WORK", tmp_path)
    monkeypatch.setattr(trust_run, "CALIBRATED", 1)
    setting = trust_run.Setting(members=2, percent=100, local_steps=8, steps=64, keys=3)
    whole = library_text()
    made = trust_run.Bench(setting, 0, Text(whole.training, whole.held_out[:64])).play()
    assert made.convicted
    assert made.convicted.keys() <= {3, 4, 5}
    assert min(made.convicted.values()) > setting.first_lie
