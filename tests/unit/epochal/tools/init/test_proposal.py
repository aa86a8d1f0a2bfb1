"""Proposed timers, batch sizes and local steps: a run with them goes well, by its own plan."""

import pytest

from epochal.state.errors import InvalidInput
from epochal.state.round_model import Links
from epochal.tools.critical_batch import critical_batch_tokens
from epochal.tools.init.proposal import MOST_LOSS, Proposal, proposed
from epochal.tools.plan.plans import PlanOptions
from epochal.tools.plan.scenario import parse_clients, parse_link
from epochal.tools.quality import loss_beside_one_machine, shown_loss
from tests.support.data.states import state_file
from tests.support.thinned import thinned

CLIENTS = {
    "a few at home": ["5 x 50mbit/10mbit 40ms 20k tokens/s"],
    "many, and some fast ones": ["40 x 100mbit/20mbit 40ms 30k tokens/s", "4 x 1gbit 10ms 300k tokens/s 10 batches"],
    "one": ["1 x 1gbit 1ms 1k tokens/s"],
    "two with fast lines": ["2 x 1gbit/1gbit 1ms 1M tokens/s"],
    "four fast ones with slow lines": ["4 x 10mbit/2mbit 100ms 2000k tokens/s"],
    "two with slow lines": ["2 x 8mbit/1mbit 300ms 20k tokens/s"],
}


def proposal(name: str, parameters: int, total_tokens: int | None = None) -> Proposal:
    draft = state_file(model__LLM__max_seq_len=512, config__data_indices_per_batch=4)
    options = PlanOptions(Links(parse_link("1gbit")), parameter_count=parameters, most_played=16)
    groups = [parse_clients(text) for text in CLIENTS[name]]
    return proposed(draft, groups, options, total_tokens=total_tokens)


@thinned(
    ("name", "parameters"), [("a few at home", 50_000_000), ("many, and some fast ones", 50_000_000), ("one", 100_000)]
)
def test_run_as_proposed_goes_on_without_warnings(name: str, parameters: int) -> None:
    found = proposal(name, parameters)
    assert found.plan.warnings == ()
    assert found.plan.tokens_per_s > 0
    assert all(group.delivered_part == 1.0 for group in found.plan.groups)


def test_rounds_of_a_small_model_are_mostly_training() -> None:
    found = proposal("a few at home", 100_000)
    assert found.plan.parts["training"] > 0.7 * found.plan.round_s
    assert found.notice == ""


def test_batch_of_slow_lines_is_as_large_as_their_uploads_leave_worth_it() -> None:
    found = proposal("four fast ones with slow lines", 10**9)
    assert found.plan.parts["upload"] > 1800
    tokens = found.config["global_batch_size_end"] * 4 * 512
    assert tokens == pytest.approx(found.merge["local_steps"] * critical_batch_tokens(10**9), rel=0.01)


@pytest.mark.nightly
def test_client_trains_at_most_half_an_hour_in_a_round() -> None:
    found = proposal("two with slow lines", 50_000_000, total_tokens=10**12)
    assert 900 < found.plan.parts["training"] <= 1800


REFERENCE = {
    "home machines and a model of 1 B": (["16 x 100mbit/20mbit 40ms 8k tokens/s"], 10**9),
    "unequal machines": (["4 x 1gbit/1gbit 20ms 80k tokens/s", "4 x 1gbit/1gbit 20ms 20k tokens/s"], 90_000_000),
}


@pytest.mark.nightly
@pytest.mark.parametrize("name", REFERENCE)
def test_reference_runs_lose_little_and_have_at_most_the_critical_batch(name: str) -> None:
    clients, parameters = REFERENCE[name]
    draft = state_file(model__LLM__max_seq_len=1024)
    options = PlanOptions(parameter_count=parameters, most_played=16)
    found = proposed(draft, [parse_clients(text) for text in clients], options)
    steps = found.merge["local_steps"]
    assert steps <= 100
    assert (loss_beside_one_machine(found.state.merge) or 2) <= 1.02
    tokens = found.config["global_batch_size_end"] * 1024
    assert tokens <= steps * critical_batch_tokens(parameters) < 1.1 * tokens or found.plan.parts["training"] > 0.8
    assert found.plan.training_part > 0.4
    assert (found.notice == "") == (found.plan.training_part >= 0.5)


@pytest.mark.parametrize(("merge", "is_told"), [({}, False), ({"merge__inner_state": "reset"}, True)])
def test_run_that_loses_more_than_little_says_so(merge: dict[str, str], is_told: bool) -> None:
    draft = state_file(model__LLM__max_seq_len=512, config__data_indices_per_batch=4, **merge)
    options = PlanOptions(parameter_count=1000, most_played=16)
    found = proposed(draft, [parse_clients("2 x 1gbit 1ms 1M tokens/s")], options)
    assert found.plan.loss is not None
    assert (found.plan.loss > MOST_LOSS) == is_told
    told = f"this run loses more than 2 %: {shown_loss(found.plan.loss)} beside one machine with AdamW"
    assert found.notice == (told if is_told else "")


def test_local_steps_that_are_asked_for_are_taken() -> None:
    draft = state_file(model__LLM__max_seq_len=512, config__data_indices_per_batch=4)
    options = PlanOptions(parameter_count=1000, most_played=16)
    assert proposed(draft, [parse_clients("2 x 1gbit 1ms 1M tokens/s")], options, local_steps=500).merge == {
        "local_steps": 500
    }


@pytest.mark.nightly
def test_run_that_trains_less_than_half_of_the_time_says_so_first() -> None:
    found = proposal("two with slow lines", 50_000_000)
    assert found.plan.training_part < 0.5
    first, second, *changes = found.notice.splitlines()
    assert first.startswith(f"clients of this run train {100 * found.plan.training_part:.0f} % of the time: ")
    assert second.startswith("what would change it (losses are a small model's, ")
    assert any("local_steps = 100" in change and "x the tokens/s, loss + 4.0 %" in change for change in changes)


@pytest.mark.nightly
def test_slow_lines_get_longer_timers_than_fast_ones() -> None:
    fast, slow = (proposal(f"two with {lines} lines", 50_000_000).state.config for lines in ("fast", "slow"))
    assert slow.warmup_time > fast.warmup_time
    assert slow.max_round_train_time > fast.max_round_train_time


def test_steps_are_those_that_the_tokens_take() -> None:
    found = proposal("one", 100_000, total_tokens=10**7)
    config = found.state.config
    tokens = config.total_steps * config.global_batch_size_end * 4 * 512
    assert 10**7 <= tokens < 10**7 + config.global_batch_size_end * 4 * 512


def test_run_of_no_tokens_is_refused() -> None:
    with pytest.raises(InvalidInput, match="0 tokens; allowed: at least 1"):
        proposal("one", 1000, total_tokens=0)
