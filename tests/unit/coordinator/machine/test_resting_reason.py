"""Why a run waits for members that rest."""

from dataclasses import replace

import pytest

from epochal.coordinator.machine.resting_reason import hold_reason
from epochal.coordinator.machine.run import Run
from epochal.state.documents import MAX_REASON_CHARS
from epochal.state.phase_names import RunState
from tests.support.drive.machine_driver import client, in_round


def run_with(*last_misses: str, members: int, min_clients: int = 1) -> Run:
    """Return a run in which a member rests for each of these reasons, and further ones do not."""
    run = in_round(*range(1, members + 1), config__init_min_clients=members, config__min_clients=min_clients).run
    resting = dict(run.members.by_id)
    for number, miss in enumerate(last_misses, 1):
        member = run.members.by_id[client(number)]
        conduct = replace(member.conduct, rests_until_s=run.clock.now_s + 1, last_miss=miss)
        resting[client(number)] = replace(member, conduct=conduct)
    return run.with_parts(replace(run.members, by_id=resting))


def _reason(run: Run) -> str | None:
    return hold_reason(run.clock, run.members, run.state_file.config)


def test_run_whose_members_all_rest_says_who_failed_with_what() -> None:
    run = run_with("corrupt: token 42749", "it left", "corrupt: token 42749", members=3)
    first, second, third = (client(number)[:12] for number in (1, 2, 3))
    assert _reason(run) == (
        f"0 of 3 members can work, 1 needed; clients {first}, {third} rest: corrupt: token 42749; "
        f"client {second} rests: it left"
    )


def test_clients_beyond_the_third_are_counted_and_the_text_is_bounded() -> None:
    reason = _reason(run_with(*["x" * 300] * 5, members=5)) or ""
    assert " and 2 more rest: xxx" in reason
    assert len(reason) == MAX_REASON_CHARS


@pytest.mark.parametrize(("resting", "members", "min_clients"), [(0, 2, 1), (1, 2, 1), (2, 4, 2)])
def test_run_that_has_enough_members_without_them_does_not_wait(resting: int, members: int, min_clients: int) -> None:
    assert _reason(run_with(*["x"] * resting, members=members, min_clients=min_clients)) is None


def test_run_waits_as_long_as_the_rest_that_it_needs() -> None:
    run = run_with("x", members=2, min_clients=2)
    assert _reason(run) is not None
    assert _reason(run.with_parts(replace(run.clock, now_s=run.clock.now_s + 1))) is None


@pytest.mark.parametrize("phase", [RunState.PAUSED, RunState.FINISHED])
def test_run_that_an_operator_or_its_end_holds_waits_for_nobody(phase: RunState) -> None:
    before = run_with("x", members=1)
    assert _reason(before.with_parts(replace(before.clock, phase=phase))) is None


@pytest.mark.parametrize(("resting", "more"), [(1, ""), (3, ""), (4, " and 1 more")])
def test_clients_are_named_up_to_the_third(resting: int, more: str) -> None:
    named = ", ".join(client(number)[:12] for number in range(1, min(resting, 3) + 1))
    verb = "client {} rests" if resting == 1 else "clients {} rest"
    reason = _reason(run_with(*["late"] * resting, members=resting)) or ""
    assert reason.endswith(f"1 needed; {verb.format(named + more)}: late")
