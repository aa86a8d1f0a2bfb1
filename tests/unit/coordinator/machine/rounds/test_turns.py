"""A turn that a client lets pass without writing the checkpoint: a miss, and a rest if it was one too many."""

from dataclasses import replace

import pytest

from epochal.coordinator.machine.instructions import SentToRest
from epochal.coordinator.machine.parts.member import Member
from epochal.state.wire import ClientId
from tests.support.drive.machine_driver import Driver, in_round


def in_cooldown_with(missed: int, rests_until_s: float | None) -> tuple[Driver, ClientId]:
    """Return a run in Cooldown whose writer has missed so many rounds, and the writer."""
    driver = in_round(1, 2, 3, config__total_steps=1)
    driver.play_round()
    writer = driver.checkpointer()
    member = driver.run.members.by_id[writer]
    conduct = replace(member.conduct, missed=missed, rests_until_s=rests_until_s)
    members: dict[ClientId, Member] = {**driver.run.members.by_id, writer: replace(member, conduct=conduct)}
    driver.run = driver.run.with_parts(replace(driver.run.members, by_id=members))
    return driver, writer


@pytest.mark.parametrize(("missed", "rests_s"), [(0, []), (1, []), (2, [10.0]), (3, [10.0])])
def test_passed_turn_is_a_miss_that_sends_to_rest_with_the_third(missed: int, rests_s: list[float]) -> None:
    driver, writer = in_cooldown_with(missed, None)
    driver.pass_time(6)
    assert driver.checkpointer() != writer
    assert driver.run.members.by_id[writer].conduct.missed == min(missed + 1, 3)
    told = [item for item in driver.instructions if isinstance(item, SentToRest)]
    assert [(item.client_id, item.rest_s) for item in told] == [(writer, rest_s) for rest_s in rests_s]


def test_member_that_rests_already_is_not_sent_to_rest_again() -> None:
    driver, writer = in_cooldown_with(2, rests_until_s=1e9)
    driver.pass_time(6)
    assert driver.checkpointer() != writer
    assert not any(isinstance(item, SentToRest) for item in driver.instructions)
