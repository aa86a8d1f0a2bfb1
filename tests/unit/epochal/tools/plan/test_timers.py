"""Timers that cannot hold, each with what to write; what is proposed holds."""

import math
from dataclasses import replace
from typing import Any

import pytest

from epochal.state.round_model import Links
from epochal.tools.plan.plans import PlanOptions
from epochal.tools.plan.scenario import parse_clients, parse_link
from epochal.tools.plan.sizes import round_model
from epochal.tools.plan.timers import TimerNote, timer_notes
from tests.support.data.states import state_file

ROOMY = {
    "config__warmup_time": 3000,
    "config__cooldown_time": 3000,
    "config__max_round_train_time": 3000,
    "config__epoch_time": 30_000,
    "config__client_timeout_s": 30,
}
PARAMETERS = 100_000_000
CLIENTS = "8 x 100mbit/20mbit 40ms 10k tokens/s"


def notes(link: str = "10gbit", clients: str = CLIENTS, /, **overrides: Any) -> tuple[TimerNote, ...]:
    state = state_file(**(ROOMY | overrides))
    groups = [parse_clients(clients)]
    options = PlanOptions(Links(parse_link(link)), parameter_count=PARAMETERS)
    return timer_notes(state, round_model(state, groups, options), groups)


def test_roomy_timers_are_not_named() -> None:
    assert notes() == ()


@pytest.mark.parametrize(
    ("name", "too_short"),
    [
        ("warmup_time", 50),
        ("warmup_time", 100),
        ("cooldown_time", 200),
        ("cooldown_time", 400),
        ("max_round_train_time", 15),
        ("max_round_train_time", 20),
        ("client_timeout_s", 1),
    ],
)
def test_timer_that_is_too_short_is_named_and_the_proposed_one_holds(name: str, too_short: int) -> None:
    (found,) = notes(**{f"config__{name}": too_short})
    assert found.name == name
    assert found.text.startswith(f"config.{name} is {too_short} s")
    assert found.text.endswith(f"write `{name} = {found.proposed}`")
    assert notes(**{f"config__{name}": found.proposed}) == ()


def test_wait_for_an_update_that_takes_longer_is_named() -> None:
    (found,) = notes(merge__update_wait_s=1)
    assert found.name == "update_wait_s"
    assert found.text.startswith("merge.update_wait_s is 1 s: the coordinator needs 1.")
    assert found.text.endswith(f"write `update_wait_s = {found.proposed}`")
    assert notes(merge__update_wait_s=found.proposed) == ()


def test_timer_that_would_be_longer_than_an_epoch_says_so() -> None:
    (found,) = notes(config__warmup_time=50, config__max_round_train_time=99, config__epoch_time=100)
    assert found.text.endswith(f"write `warmup_time = {found.proposed}` and an epoch_time above it, which is 100")


def test_warmup_of_all_over_one_link_is_named() -> None:
    (found,) = notes("100mbit", config__warmup_time=200)
    assert "needs 513 s to download a checkpoint of 800 MB beside all others" in found.text
    assert notes("100mbit", config__warmup_time=found.proposed) == ()


def test_round_is_as_long_as_its_tokens_take() -> None:
    slow = CLIENTS.replace("10k", "0.001k")
    (found,) = notes("10gbit", slow, config__max_round_train_time=30)
    assert "train 32 tokens, and upload a result" in found.text


def test_clients_that_train_in_no_time_need_none_for_it() -> None:
    group = replace(parse_clients(CLIENTS), tokens_per_s=math.inf)
    state = state_file(**ROOMY)
    model = round_model(state, [group], PlanOptions(parameter_count=PARAMETERS))
    sizes = replace(model.sizes, tokens_per_batch=10**12)
    assert timer_notes(state, replace(model, sizes=sizes), [group]) == ()
