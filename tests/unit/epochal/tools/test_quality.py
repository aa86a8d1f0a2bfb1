"""Prices of choices in loss: those of the rows, between two of them, and none where nothing was measured."""

from typing import Any

import pytest

from epochal.state.config.state_file import MergeConfig
from epochal.state.errors import InvalidInput
from epochal.tools import quality
from epochal.tools.critical_batch import critical_batch_tokens
from epochal.tools.init.choices import chosen_codec
from epochal.tools.quality import (
    LARGER,
    MEASURED,
    Measured,
    OptimizerName,
    best_of_codec,
    best_of_delay,
    codec_choices,
    loss_beside_one_machine,
    loss_factor,
    loss_of_local_steps,
    measured_rounds,
    shown_loss,
    smaller_choices,
    source,
)


@pytest.mark.parametrize("optimizer", ["AdamW", "Muon"])
def test_measured_rounds_have_the_price_of_their_row_others_one_between(optimizer: OptimizerName) -> None:
    rows = measured_rounds(optimizer)
    for row in rows:
        assert loss_of_local_steps(row.merge.local_steps, optimizer) == pytest.approx(row.ratio)
    first, last = rows[-2:]
    found = loss_of_local_steps(round((first.merge.local_steps * last.merge.local_steps) ** 0.5), optimizer)
    assert found == pytest.approx((first.ratio + last.ratio) / 2, rel=1e-3)


def test_another_optimizer_is_priced_by_its_own_rounds() -> None:
    before, after = (MergeConfig(local_steps=steps, update="exact") for steps in (30, 100))
    muon, adamw = loss_of_local_steps(100, "Muon"), loss_of_local_steps(30)
    assert muon is not None
    assert adamw is not None
    assert loss_factor(before, after, "AdamW", "Muon") == pytest.approx(muon / adamw)
    assert loss_factor(before, before, "AdamW", "Muon") != 1.0
    assert loss_beside_one_machine(after, "Muon") == pytest.approx(muon)
    assert loss_factor(MergeConfig(local_steps=8), after, "Muon", "AdamW") is None


@pytest.mark.parametrize("optimizer", ["AdamW", "Muon"])
def test_moments_that_begin_anew_have_the_optimizers_price(optimizer: OptimizerName) -> None:
    (row,) = (row for row in MEASURED if row.choice == "inner_state" and row.optimizer == optimizer)
    kept = MergeConfig(local_steps=30, update="exact")
    reset = kept.model_copy(update={"inner_state": "reset"})
    assert row.ratio > 1.02
    assert loss_factor(kept, reset, optimizer) == pytest.approx(row.ratio)
    assert loss_factor(reset, reset, optimizer) == 1.0
    expected = (loss_of_local_steps(30, optimizer) or 0) * row.ratio
    assert loss_beside_one_machine(reset, optimizer) == pytest.approx(expected)


def test_rounds_shorter_or_longer_than_measured_have_no_price() -> None:
    rows = measured_rounds()
    least, most = rows[0].merge.local_steps, rows[-1].merge.local_steps
    assert (loss_of_local_steps(least - 1), loss_of_local_steps(most + 1)) == (None, None)
    for steps in (least - 1, most + 1):
        outside = MergeConfig(local_steps=steps)
        assert shown_loss(loss_factor(MergeConfig(local_steps=most), outside)) == "its loss is not measured"
        assert source(outside).startswith("nearest: a small model (")
    assert source(MergeConfig(local_steps=most)).startswith("measured with a small model (")
    assert source(MergeConfig(outer_lr=5.0)).startswith("nearest: a small model (")


def test_rounds_longer_than_measured_lose_at_least_as_much_as_the_longest() -> None:
    first, *_, last = measured_rounds()
    longer, shorter = MergeConfig(local_steps=2 * last.merge.local_steps), MergeConfig(local_steps=30)
    assert loss_factor(longer, shorter) == loss_factor(last.merge.model_copy(update={"update": "int4"}), shorter)
    assert loss_factor(MergeConfig(local_steps=first.merge.local_steps - 1), shorter) is None
    assert "; longer ones count as these in what to change" in source(longer)
    assert "longer ones" not in source(last.merge)


def test_each_code_of_an_update_has_a_price_beside_each_other() -> None:
    exact, rough, usual = (MergeConfig(local_steps=30, update=update) for update in ("exact", "int8", "int4"))
    (price,) = (row.ratio for row in MEASURED if row.choice == "update" and row.merge.update == "int8")
    assert loss_factor(exact, rough) == pytest.approx(price)
    whole = loss_factor(exact, usual)
    assert whole is not None
    assert loss_factor(rough, usual) == pytest.approx(whole / price)


def test_settings_of_a_codec_are_priced_beside_those_of_the_run() -> None:
    best = best_of_codec("sparse", 100)
    assert best is not None
    assert (best.merge.mean, best.merge.outer_lr, best.merge.outer_momentum) == ("senders", 1.0, 0.0)
    exact = MergeConfig(local_steps=30, codec="float32", update="exact")
    assert loss_factor(exact, best.merge) == pytest.approx(best.ratio)
    assert loss_factor(exact, exact.model_copy(update={"mean": "senders"})) is None


def measured(merge: dict[str, Any], steps: int, ratio: float) -> Measured:
    table = MergeConfig(local_steps=steps, update="exact", **merge)
    return Measured("codec", table, (2.0 * ratio, 2.0 * ratio), (2.0, 2.0), 1000, 4)


def test_codec_is_a_choice_while_it_loses_little_in_every_round() -> None:
    exact, two_bits = {"codec": "float32"}, {"codec": "int2", "error_feedback": True}
    plain = two_bits | {"outer_momentum": 0.0}
    rows = [measured(exact, 30, 1.0), measured(two_bits, 30, 1.009), measured(plain, 30, 1.004)]
    rows.append(measured({"codec": "int8"}, 30, 1.0101))
    assert list(codec_choices(rows)) == ["float32", "int2"]
    assert chosen_codec("int2", rows) == plain
    assert chosen_codec("float32", rows) == exact
    rows.append(measured(plain, 100, 1.02))
    assert chosen_codec("int2", rows) == two_bits
    rows.append(measured(two_bits, 8, 1.011))
    with pytest.raises(InvalidInput, match=r"--codec 'int2', loss \+ 0.4 %; allowed: float32, which lose at most 1 %"):
        chosen_codec("int2", rows)
    with pytest.raises(InvalidInput, match="--codec 'int4', its loss is not measured; allowed: float32"):
        chosen_codec("int4", rows)


def test_settings_are_compared_in_rounds_of_the_same_length() -> None:
    fields, feedback = {"codec": "int4"}, {"codec": "int4", "error_feedback": True}
    rows = [measured(fields, 8, 1.005), measured(fields, 30, 0.999), measured(feedback, 30, 1.001)]
    assert chosen_codec("int4", rows) == fields
    assert chosen_codec("int4", [*rows[:1], measured(feedback, 30, 1.001)]) == feedback
    assert chosen_codec("int4", [*rows, measured(feedback, 8, 0.999)]) == feedback


def test_new_run_has_the_usual_codec_with_its_usual_settings() -> None:
    assert chosen_codec("int4") == {"codec": "int4"}
    assert [merge.codec for merge in smaller_choices("int4")] == ["int2"]


def test_delay_is_priced_with_the_outer_step_that_goes_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = MergeConfig(local_steps=30)
    table = usual.model_copy(update={"delay": 1})
    slower = table.model_copy(update={"outer_lr": 0.5})
    rows = [
        Measured("delay", merge, (2.0 * ratio,), (2.0,), 1000, 4) for merge, ratio in ((table, 1.18), (slower, 1.04))
    ]
    monkeypatch.setattr(quality, "MEASURED", (*(row for row in MEASURED if row.choice != "delay"), *rows))
    assert loss_factor(usual, table) == pytest.approx(1.18)
    assert loss_factor(usual, slower) == pytest.approx(1.04)
    assert loss_factor(table, slower) == pytest.approx(1.04 / 1.18)
    assert loss_factor(usual, table.model_copy(update={"outer_lr": 0.6})) is None
    best = best_of_delay(64)
    assert best is not None
    assert best.merge == slower
    assert loss_factor(usual, slower, "Muon") == pytest.approx(1.04)
    of_muon = Measured("delay", slower, (2.2,), (2.0,), 1000, 4, "Muon")
    monkeypatch.setattr(quality, "MEASURED", (*quality.MEASURED, of_muon))
    assert loss_factor(usual, slower, "Muon") == pytest.approx(1.1)
    assert loss_factor(usual, slower) == pytest.approx(1.04)
    assert best_of_delay(64, "Muon") == of_muon


def test_sparse_is_a_choice_below_the_limit_alone() -> None:
    fields = {"codec": "sparse", "error_feedback": True, "sparse_keep": 32, "mean": "senders"}
    assert codec_choices([measured(fields, 30, 1.04)]) == {}
    assert chosen_codec("sparse", [measured(fields, 30, 0.99)]) == fields


def test_loss_of_a_run_is_that_of_its_rounds_and_its_codec() -> None:
    steps, dense = loss_of_local_steps(30), MergeConfig(local_steps=30, update="exact")
    assert loss_beside_one_machine(dense) == pytest.approx(steps)
    best, same = best_of_codec("sparse", 30), best_of_codec("int4", 30)
    assert best is not None
    assert same is not None
    assert steps is not None
    assert loss_beside_one_machine(best.merge) == pytest.approx(steps * best.ratio / same.ratio)


def test_same_table_costs_nothing() -> None:
    assert shown_loss(loss_factor(MergeConfig(local_steps=512), MergeConfig(local_steps=512))) == "the same loss"
    assert (shown_loss(1.0389), shown_loss(0.96)) == ("loss + 3.9 %", "loss − 4.0 %")


def test_source_says_how_small_the_model_was_and_what_its_seeds_lost() -> None:
    found = source(MergeConfig(local_steps=64))
    assert "small model (0.25 M parameters, 4 clients: docs/benchmarks-quality.md)" in found
    (row,) = (row for row in measured_rounds() if row.merge.local_steps == 100)
    least, most = (100 * (ratio - 1) for ratio in row.spread)
    assert f"rounds of 100: 3 seeds, {least:+.1f} to {most:+.1f} %" in found
    (one,) = (row for row in measured_rounds("Muon") if row.merge.local_steps == 100)
    told = f"1 seed, {100 * (one.ratio - 1):+.1f} %".replace("-", "−")
    assert told in source(MergeConfig(local_steps=100), "Muon")


def test_source_of_muon_says_what_it_loses_beside_its_own_machine() -> None:
    (alone,) = (row for row in MEASURED if row.choice == "machine")
    (one,) = (row for row in measured_rounds("Muon") if row.merge.local_steps == 100)
    assert alone.optimizer == "Muon"
    told = f"beside one machine with Muon 1 seed, {100 * (one.losses[0] / alone.losses[0] - 1):+.1f} %"
    assert told in source(MergeConfig(local_steps=100), "Muon")
    assert "beside one machine" not in source(MergeConfig(local_steps=100))


def test_source_says_what_choices_lost_with_larger_models() -> None:
    assert min(row.parameters for row in LARGER) > max(one.parameters for one in MEASURED)
    told = source(MergeConfig(local_steps=30))
    for row in LARGER:
        price = f"{100 * (row.ratio - 1):+.1f} % at {row.parameters / 1e6:.2g} M".replace("-", "−")
        merge = row.merge if row.choice == "delay" else MergeConfig(local_steps=30)
        is_default = row.choice == "update" or (row.choice == "codec" and row.merge.codec == "int4")
        assert (price in source(merge)) is (is_default or row.choice == "delay")
    assert "; larger models (1 seed): int4 results " in told
    assert "int4 updates" not in source(MergeConfig(local_steps=30, update="exact"))


def test_source_says_what_was_not_measured() -> None:
    best = best_of_codec("sparse", 100)
    assert best is not None
    elsewhere = best.merge.model_copy(update={"local_steps": 100})
    assert "; sparse only in rounds of 30" in source(elsewhere)
    assert "only in" not in source(best.merge)
    assert "only in" not in source(MergeConfig(local_steps=64, delay=1, outer_lr=0.5))


@pytest.mark.parametrize(
    ("parameters", "tokens", "expected"),
    [(85_000_000, None, 752 * 512), (1_200_000_000, None, 2610 * 512), (10**9, 3_072_000_000, 996 * 512)],
)
def test_critical_batch_is_that_of_the_published_fit(parameters: int, tokens: int | None, expected: int) -> None:
    assert critical_batch_tokens(parameters, tokens) == pytest.approx(expected, rel=0.01)
