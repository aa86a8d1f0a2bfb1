"""Plans: what they add up to, what they say of the machine's rules, and what changes with thousands of clients."""

import json
import math
from dataclasses import replace
from typing import Any

import pytest

from epochal.coordinator.blobs.room import replays_with_states
from epochal.state.config.blob_place import GcsBlobs
from epochal.state.config.state_file import StateFile
from epochal.state.errors import InvalidInput
from epochal.state.model.tensors import TensorLayout
from epochal.state.round_model import Costs, Link, Links
from epochal.state.shown.join_guide import room_of
from epochal.tools import quality
from epochal.tools.plan.advice import advised
from epochal.tools.plan.plan_text import plan_json, plan_text
from epochal.tools.plan.planner import plan_run
from epochal.tools.plan.plans import Plan, PlanOptions
from epochal.tools.plan.scale import Scale
from epochal.tools.plan.scenario import parse_clients, parse_link
from epochal.tools.quality import loss_factor, loss_of_local_steps
from tests.support.data.states import state_file
from tests.support.models.tiny_llama import LLAMA_STATE
from tests.support.thinned import thinned

ADAMW = {"AdamW": {"betas": [0.9, 0.95], "weight_decay": 0.1, "eps": 1e-8}}
MUON = {"Muon": {"momentum": 0.95, "weight_decay": 0.1}}
LIKE = "100mbit/20mbit 40ms 10k tokens/s"
ROOMY: dict[str, Any] = {
    "config__warmup_time": 3000,
    "config__cooldown_time": 3000,
    "config__max_round_train_time": 3000,
    "config__round_witness_time": 300,
    "config__epoch_time": 30_000,
    "config__data_indices_per_batch": 8,
    "config__total_steps": 1000,
    "model__LLM__max_seq_len": 1024,
}


def run_of(clients: int, batches_each: int = 1, **overrides: Any) -> StateFile:
    sizes = dict.fromkeys(("config__global_batch_size_start", "config__global_batch_size_end"), clients * batches_each)
    return state_file(**(ROOMY | {"config__init_min_clients": clients} | sizes | overrides))


def planned(clients: int, *, parameters: int = 1_000_000, link: str = "1gbit", **overrides: Any) -> Plan:
    options = PlanOptions(Links(parse_link(link)), parameter_count=parameters)
    return plan_run(run_of(clients, **overrides), [parse_clients(f"{clients} x {LIKE}")], options)


def test_parts_of_a_round_add_up_to_it() -> None:
    found = planned(6)
    assert sum(found.parts.values()) == pytest.approx(found.round_s)


def test_training_takes_its_tokens_at_their_speed() -> None:
    found = planned(4, parameters=1000)
    assert found.groups[0].parts["training"] == pytest.approx(8 * 1024 / 10_000, rel=0.03)
    assert (found.kind, found.limit) == ("training", "client")


def test_upload_takes_the_result_at_its_rate() -> None:
    found = planned(2, parameters=40_000_000)
    upload_s = found.sizes.result_bytes / 2_500_000
    assert found.groups[0].parts["upload"] == pytest.approx(upload_s, rel=0.05)
    assert (found.kind, found.limit) == ("upload", "client")


@pytest.mark.parametrize("clients", [4, 16])
def test_each_client_receives_one_update_however_many_there_are(clients: int) -> None:
    found = planned(clients)
    assert found.groups[0].received_bytes < 0.53 * found.sizes.parameter_count
    assert found.groups[0].sent_bytes == pytest.approx(found.sizes.result_bytes, rel=0.02)
    assert found.machines.from_coordinator_bytes == pytest.approx(clients * found.sizes.update_bytes, rel=0.1)


def test_exact_update_is_as_large_as_the_model() -> None:
    assert planned(4, merge__update="exact").groups[0].received_bytes == pytest.approx(4_000_000, rel=0.02)


@pytest.mark.parametrize("inner_state", ["keep", "reset"])
def test_plan_of_a_verified_run_is_that_of_one_whose_results_pass(inner_state: str) -> None:
    found = planned(3, verify={"percent": 50}, merge__inner_state=inner_state)
    assert found.round_s == planned(3, merge__inner_state=inner_state).round_s
    assert found.batches == 3


def test_inner_states_that_are_revealed_take_disk() -> None:
    of = [planned(2, verify={"within": 4}, merge__inner_state=state) for state in ("keep", "reset")]
    kept, without = (plan.sizes.spool_bytes for plan in of)
    assert kept - without == (4 + 3) * 8 * 1_000_000
    state, sizes = run_of(2, verify={"within": 4}, merge__inner_state="keep"), of[0].sizes
    revealed = replays_with_states(state, 2) * (sizes.result_bytes + 2 * 8 * 1_000_000)
    assert of[0].machines.coordinator_disk_bytes - of[1].machines.coordinator_disk_bytes == revealed > 0


@pytest.mark.parametrize("settings", [{}, {"merge__delay": 1, "merge__error_feedback": True}])
def test_client_needs_the_disk_that_the_join_guide_says(settings: dict[str, Any]) -> None:
    layout = TensorLayout((("parameters", (1_000_000,)),))
    guide = room_of(run_of(2, **settings), layout, checkpoint_bytes=1)
    assert planned(2, **settings).sizes.spool_bytes == guide.spool_bytes


def test_coordinator_keeps_checkpoints_results_and_updates() -> None:
    found = planned(4, config__checkpoint_every=3)
    sizes = found.sizes
    round_bytes = 4 * sizes.result_bytes + sizes.update_bytes
    assert found.machines.coordinator_disk_bytes == 3 * sizes.checkpoint_bytes + 8 * round_bytes


@pytest.mark.parametrize(
    ("settings", "scratch"),
    [({}, "20.5 GB"), ({"merge__codec": "sparse", "merge__mean": "senders", "merge__error_feedback": True}, "28.5 GB")],
)
def test_coordinators_room_to_make_updates_is_said(settings: dict[str, Any], scratch: str) -> None:
    found = planned(2, parameters=10**9, **settings)
    assert f"of disk for results and checkpoints, and {scratch} of disk to make updates" in plan_text(found)
    at_store = replace(found, machines=replace(found.machines, coordinator_disk_bytes=0))
    assert f"  needs               {scratch} of disk to make updates" in plan_text(at_store)


def test_narrow_link_of_the_coordinator_is_the_bottleneck() -> None:
    found = planned(8, link="20mbit")
    assert (found.kind, found.limit) == ("download", "server")
    assert found.parts["download"] > 0.9 * 8 * found.sizes.update_bytes / 2_500_000


def test_overloaded_coordinator_sends_no_more_than_its_link_carries() -> None:
    sizes = dict.fromkeys(("config__global_batch_size_start", "config__global_batch_size_end"), 10)
    found = planned(400, parameters=20_000_000, link="100mbit", **sizes)
    assert found.played_count < found.client_count
    assert found.machines.from_coordinator_bytes <= 1.01 * found.round_s * 100e6 / 8  # results, and some messages


def test_same_plan_twice_is_the_same() -> None:
    assert planned(5) == planned(5)


@pytest.mark.nightly
@pytest.mark.parametrize("parameters", [20_000, 1_000_000])
def test_plan_in_which_few_stand_for_many_is_that_of_all(parameters: int) -> None:
    state, groups = run_of(160), [parse_clients(f"160 x {LIKE}")]
    few, all_of_them = (
        plan_run(state, groups, PlanOptions(Links(parse_link("1gbit")), Costs(), parameters, most))
        for most in (48, 160)
    )
    assert (few.played_count, all_of_them.played_count) == (48, 160)
    assert few.round_s == pytest.approx(all_of_them.round_s, rel=0.1)
    assert few.tokens_per_s == pytest.approx(all_of_them.tokens_per_s, rel=0.1)
    assert few.machines.from_coordinator_bytes == pytest.approx(all_of_them.machines.from_coordinator_bytes, rel=0.1)


@pytest.mark.nightly
def test_plan_of_ten_thousand_plays_few_of_each_group() -> None:
    groups = [parse_clients(f"9999 x {LIKE}"), parse_clients("1 x 10mbit 100ms 10k tokens/s")]
    found = plan_run(run_of(10_000), groups, PlanOptions(parameter_count=1000))
    assert found.client_count == 10_000
    assert found.played_count < 400
    assert found.groups[1].group.count == 1
    assert found.machines.processor_part > 0.7
    assert any("% of a core" in warning for warning in found.warnings)


def test_too_few_clients_never_begin() -> None:
    found = plan_run(run_of(8), [parse_clients(f"7 x {LIKE}")], PlanOptions(parameter_count=1000))
    assert (found.kind, found.days, found.tokens_per_s) == ("nothing", math.inf, 0.0)
    assert "init_min_clients = 8" in found.bottleneck
    assert json.loads(plan_json(found))["days"] is None
    assert "bottleneck" in plan_text(found)


def test_model_that_reaches_nobody_in_warmup_never_begins() -> None:
    found = planned(4, parameters=10**9, link="1mbit")
    assert found.kind == "nothing"
    assert any("warmup_time" in warning for warning in found.warnings)


def test_slow_clients_get_as_much_less_and_hold_nobody_up() -> None:
    groups = [parse_clients(f"6 x {LIKE}"), parse_clients("2 x 100mbit/20mbit 40ms 2k tokens/s")]
    found = plan_run(run_of(8, 8), groups, PlanOptions(parameter_count=1000))
    assert found.groups[0].batches == pytest.approx(10, abs=0.5)
    assert found.groups[1].batches == pytest.approx(2, abs=0.5)
    assert not any("come too late" in warning for warning in found.warnings)


def test_object_store_takes_results_off_the_coordinators_link() -> None:
    state = run_of(6)
    stored = state.model_copy(update={"blobs": state.blobs.model_copy(update={"store": GcsBlobs(bucket_name="b")})})
    found = plan_run(stored, [parse_clients(f"6 x {LIKE}")], PlanOptions(parameter_count=1_000_000))
    machines, result_bytes = found.machines, found.sizes.result_bytes
    assert machines.from_coordinator_bytes < 1.1 * result_bytes  # one update, to the store
    assert machines.to_coordinator_bytes == pytest.approx(6 * result_bytes, rel=0.3)  # read, to be checked
    assert machines.from_store_bytes == pytest.approx(12 * result_bytes, rel=0.1)  # an update for each, and the checks
    assert (machines.coordinator_disk_bytes, machines.store_disk_bytes > 0) == (0, True)


def test_days_are_those_of_all_rounds_and_epochs() -> None:
    found = planned(3, parameters=1000)
    assert found.between_epochs_s is not None
    rounds_s = 1000 * found.round_s + (found.epochs - 1) * found.between_epochs_s + found.warm_up_s
    assert found.days * 86_400 == pytest.approx(rounds_s, rel=0.01)


@pytest.mark.parametrize(
    ("days", "shown"), [(10 / 86_400, "10 s:"), (0.1, "2.4 hours:"), (2.5 / 1440, "2.5 minutes:"), (math.inf, "never:")]
)
def test_time_to_the_end_is_shown_in_a_unit_that_is_not_too_large(days: float, shown: str) -> None:
    text = plan_text(replace(planned(1), days=days))
    assert f"to the end            {shown}" in text
    assert "clients               1 client\n" in text


@pytest.mark.parametrize(("part", "shown"), [(1.17, "117 %"), (0.0123, "1.2 %")])
def test_processor_of_the_coordinator_is_shown_without_an_exponent(part: float, shown: str) -> None:
    found = planned(1)
    busy = replace(found, machines=replace(found.machines, processor_part=part))
    assert f"; {shown} of a core" in plan_text(busy)


@pytest.mark.parametrize("count", [0, 20_001])
def test_no_clients_or_too_many_are_refused(count: int) -> None:
    groups = [parse_clients(LIKE)] * count
    with pytest.raises(InvalidInput, match=f"{count} clients; allowed: 1 to 20000"):
        plan_run(run_of(2), groups, PlanOptions(parameter_count=1000))


def test_suggestions_say_what_planning_with_them_gives() -> None:
    state, groups = run_of(6, merge__codec="float32"), [parse_clients(f"6 x {LIKE}")]
    options = PlanOptions(Links(parse_link("100mbit")), parameter_count=2_000_000)
    before = plan_run(state, groups, options)
    found = advised(state, groups, options, before)
    by_change = {suggestion.change: suggestion for suggestion in found.suggestions}
    changed = state.model_copy(update={"merge": state.merge.model_copy(update={"codec": "int4"})})
    after = plan_run(changed, groups, options)
    told = by_change['[merge] codec = "int4"']
    assert told.loss == loss_factor(state.merge, changed.merge)
    assert (told.round_s, told.tokens_per_s) == (after.round_s, after.tokens_per_s)
    assert told.faster == pytest.approx(after.tokens_per_s / before.tokens_per_s)
    faster = [suggestion.faster for suggestion in found.suggestions]
    assert faster == sorted(faster, reverse=True)
    assert all(suggestion.faster >= 1.05 or (suggestion.loss or 2) <= 0.99 for suggestion in found.suggestions)


@pytest.mark.nightly
def test_each_suggestion_says_its_factor_and_its_price() -> None:
    state, groups = run_of(4, merge__local_steps=30), [parse_clients(f"4 x {LIKE}")]
    options = PlanOptions(parameter_count=20_000_000)
    found = advised(state, groups, options, plan_run(state, groups, options))
    losses = {told.change.partition(",")[0]: told.loss for told in found.suggestions}
    assert losses["[merge] local_steps = 100"] == pytest.approx(1.0395, abs=1e-3)
    assert losses['[merge] codec = "sparse"'] == pytest.approx(1.041, abs=1e-3)
    text = " ".join(plan_text(found).split())
    assert "x the tokens/s, loss + 4.0 %," in text
    assert "loss + 1.3 % beside one machine with AdamW and the same tokens; measured with a small model" in text
    (sparse,) = (told.change for told in found.suggestions if "sparse" in told.change)
    assert sparse.endswith('mean = "senders", outer_lr = 1.0, outer_momentum = 0.0')


@pytest.mark.nightly
@thinned("ratio", [1.2, 1.004], kept=1)
def test_smaller_codec_is_advised_once_it_is_measured(ratio: float, monkeypatch: pytest.MonkeyPatch) -> None:
    state, groups = run_of(4, merge__local_steps=30), [parse_clients(f"4 x {LIKE}")]
    options = PlanOptions(parameter_count=20_000_000)
    before = plan_run(state, groups, options)
    rows = tuple(row for row in quality.MEASURED if row.merge.codec != "int2")
    monkeypatch.setattr(quality, "MEASURED", rows)
    assert not any("int2" in told.change for told in advised(state, groups, options, before).suggestions)
    exact = state.merge.model_copy(update={"update": "exact"})
    (int4,) = (row for row in rows if row.choice == "codec" and row.merge == exact)
    merge = exact.model_copy(update={"codec": "int2", "error_feedback": True})
    losses = tuple(ratio * loss for loss in int4.losses)
    monkeypatch.setattr(quality, "MEASURED", (*rows, replace(int4, merge=merge, losses=losses)))
    told = {one.change: one for one in advised(state, groups, options, before).suggestions}
    found = told['[merge] codec = "int2", error_feedback = true']
    assert found.loss == pytest.approx(ratio)
    assert found.faster > 1.2


@pytest.mark.nightly
def test_training_ahead_is_advised_where_much_of_a_round_is_not_training() -> None:
    state, groups = run_of(4, 8), [parse_clients(f"4 x {LIKE}")]
    options = PlanOptions(Links(parse_link("1gbit")), parameter_count=20_000_000)
    before = plan_run(state, groups, options)
    assert 0.4 < before.training_part < 0.7
    (told,) = (one for one in advised(state, groups, options, before).suggestions if "] delay = 1" in one.change)
    ahead = state.model_copy(update={"merge": state.merge.model_copy(update={"delay": 1})})
    after = plan_run(ahead, groups, options)
    assert after.training_part > 0.95
    assert told.faster > 1.4
    assert told.faster == pytest.approx(after.tokens_per_s / before.tokens_per_s)
    assert not any("delay" in one.change for one in advised(ahead, groups, options, after).suggestions)


@pytest.mark.nightly
def test_rounds_that_lose_less_at_the_same_speed_are_told() -> None:
    state, groups = run_of(2, 100, merge__local_steps=100), [parse_clients("2 x 1gbit/1gbit 1ms 10k tokens/s")]
    options = PlanOptions(parameter_count=1000)
    found = advised(state, groups, options, plan_run(state, groups, options))
    (told,) = (told for told in found.suggestions if told.change.startswith("[merge] local_steps = 30,"))
    assert told.loss == pytest.approx(1 / 1.0395, abs=1e-3)


@pytest.mark.nightly
@pytest.mark.parametrize(("optimizer", "is_advised"), [(ADAMW, True), (MUON, False)])
def test_muon_is_advised_with_the_price_of_its_rounds(optimizer: dict[str, Any], is_advised: bool) -> None:
    llama = LLAMA_STATE | {"model__LLM__optimizer": optimizer}
    state, groups = run_of(4, merge__local_steps=30, **llama), [parse_clients(f"4 x {LIKE}")]
    options = PlanOptions(Links(parse_link("1gbit")), parameter_count=20_000_000)
    found = advised(state, groups, options, plan_run(state, groups, options)).suggestions
    told = [one for one in found if one.change.startswith("Muon ")]
    assert len(told) == is_advised
    for one in told:
        assert "[merge] local_steps = 100, [config] global_batch_size_start = " in one.change
        assert one.loss == pytest.approx((loss_of_local_steps(100, "Muon") or 0) / (loss_of_local_steps(30) or 1))
        assert one.faster > 1.2


@pytest.mark.nightly
def test_batch_below_the_critical_one_is_advised_up_to_it() -> None:
    state, groups = run_of(4, merge__local_steps=30), [parse_clients(f"4 x {LIKE}")]
    options = PlanOptions(parameter_count=20_000_000)
    found = advised(state, groups, options, plan_run(state, groups, options))
    (told,) = (told for told in found.suggestions if "critical batch size" in told.change)
    assert told.loss == 1.0
    assert told.faster > 2


@pytest.mark.parametrize(("claim", "is_exceeded"), [(2, True), (4, False)])
def test_share_that_a_round_exceeds_is_named(claim: int, is_exceeded: bool) -> None:
    groups = [parse_clients(f"4 x {LIKE} {claim} batches")]
    found = plan_run(run_of(4, 4), groups, PlanOptions(parameter_count=100_000))
    told = f"each of '4 x {LIKE} {claim} batches' gets 4 batches, more than {claim} (--share)"
    assert any(text.startswith(told) for text in found.warnings) == is_exceeded


@pytest.mark.nightly
def test_change_that_hardly_helps_is_not_told() -> None:
    state, groups = run_of(4, merge__codec="float32"), [parse_clients(f"4 x {LIKE}")]
    options = PlanOptions(Links(parse_link("1gbit")), parameter_count=1000)
    found = advised(state, groups, options, plan_run(state, groups, options))
    assert found.kind == "training"
    assert not any("codec" in told.change for told in found.suggestions)


def test_results_that_come_from_far_away_wait_for_round_trips() -> None:
    groups = [parse_clients("8 x 1gbit/1gbit 900ms 10000k tokens/s")]
    found = plan_run(run_of(8), groups, PlanOptions(Links(parse_link("10gbit")), parameter_count=1_000_000))
    assert (found.kind, found.limit) == ("upload", "latency")
    assert "is the round trip of" in found.bottleneck


def test_text_names_each_group_and_the_bottleneck() -> None:
    found = planned(3)
    text = plan_text(found)
    assert f"each client of        3 x {LIKE}" in text
    assert "bottleneck" in text
    assert max(map(len, text.splitlines())) <= 122


def test_data_from_elsewhere_are_received_too() -> None:
    location = {"Server": "data.example.org:9000"}
    near = planned(2, parameters=1000)
    far = planned(2, parameters=1000, model__LLM__data_location=location)
    assert far.groups[0].received_bytes - near.groups[0].received_bytes == pytest.approx(8 * 1024 * 4, rel=0.01)


def test_unlimited_link_is_never_full() -> None:
    link = Link(math.inf, math.inf)
    options = PlanOptions(Links(coordinator=link), parameter_count=1_000_000)
    found = plan_run(run_of(4), [parse_clients(f"4 x {LIKE}")], options)
    assert found.limit != "server"


@pytest.mark.nightly
@pytest.mark.parametrize("batches", [1, 8])
def test_plan_of_few_batches_for_many_clients_is_that_of_all(batches: int) -> None:
    sizes = dict.fromkeys(("config__global_batch_size_start", "config__global_batch_size_end"), batches)
    state, groups = run_of(300, **sizes), [parse_clients(f"300 x {LIKE}")]
    few, all_of_them = (
        plan_run(state, groups, PlanOptions(Links(parse_link("1gbit")), Costs(), 300_000, most)) for most in (128, 300)
    )
    assert (few.played_count, all_of_them.played_count) == (128, 300)
    assert few.batches == pytest.approx(all_of_them.batches, rel=0.01)
    assert few.tokens_per_s == pytest.approx(all_of_them.tokens_per_s, rel=0.1)
    assert few.machines.from_coordinator_bytes == pytest.approx(all_of_them.machines.from_coordinator_bytes, rel=0.1)


def test_small_group_beside_a_large_one_is_played_too() -> None:
    groups = [parse_clients(f"5000 x {LIKE}"), parse_clients("1 x 1gbit 1ms 10k tokens/s")]
    sizes = dict.fromkeys(("config__global_batch_size_start", "config__global_batch_size_end"), 32)
    scale = Scale.of(run_of(5001, **sizes), groups, 256)
    assert (scale.counts, scale.batches, scale.result_copies) == ((256, 1), 32, (1.0, 1.0))
