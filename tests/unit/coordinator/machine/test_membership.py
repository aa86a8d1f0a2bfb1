"""Membership: who may join, be ready and stay, and its effect on rounds."""

import pytest

from epochal.coordinator.machine import stimuli
from epochal.coordinator.machine.instructions import MembershipChanged
from epochal.state.errors import Refused
from epochal.state.messages.requests import ReadyReport
from epochal.state.phase_names import RunState
from tests.support.data.states import state_file
from tests.support.drive.machine_driver import Driver, client, digest_of, in_round, in_warmup, refused


def test_joining_during_a_round_changes_the_next_roster_only() -> None:
    driver = in_round(1, 2)
    driver.join(3)
    driver.ready(client(3))
    assert len(driver.round.tasks.roster.clients) == 2
    driver.play_round()
    assert len(driver.round.tasks.roster.clients) == 3


def test_silent_client_is_not_waited_for_and_leaves_with_the_next_roster() -> None:
    driver = in_round(1, 2, 3)
    driver.deliver(client(1), client(2))
    driver.attest(client(1), client(2))
    assert driver.in_phase(RunState.ROUND_TRAIN)
    driver.send(stimuli.ClientsFellSilent((client(3),)))
    assert driver.in_phase(RunState.ROUND_TRAIN), "the lost client's slot is filled by no later step"
    assert driver.run.progress.step == 2
    assert client(3) not in {entry.client_id for entry in driver.round.tasks.roster.clients}
    assert driver.round.tasks.work.shared[0].start < 12 <= driver.round.tasks.work.shared[-1].end


def test_ready_with_another_replica_is_refused() -> None:
    driver = in_warmup(1, 2)
    with refused("replica-differs"):
        driver.send(stimuli.ClientBecameReady(client(1), ReadyReport(0, digest_of("x"), "data")))


def test_ejected_key_may_not_join_again() -> None:
    driver = Driver(state_file())
    driver.join(1)
    driver.send(stimuli.ClientEjected(client(1)))
    with refused("ejected"):
        driver.join(1)


def test_joining_again_keeps_the_place_and_supersedes_the_session() -> None:
    driver = in_round(1, 2)
    before = driver.run.members.by_id[client(1)].joining.nonce
    driver.join(1)
    assert driver.run.members.by_id[client(1)].joining.nonce != before
    assert client(1) in driver.round.tasks.plan.positions
    assert client(1) in driver.round.missing.pending


def test_access_by_keys_and_by_invitation_refuses_everyone_else() -> None:
    by_key = Driver(state_file(access__mode="keys", access__keys=[(bytes([1]) * 32).hex()]))
    by_key.join(1)
    with pytest.raises(Refused, match="keys"):
        by_key.join(2)
    code = digest_of("code")
    invited = Driver(state_file(access__mode="invitations", access__invitations=[code]))
    with pytest.raises(Refused, match="none was given"):
        invited.join(1)
    with pytest.raises(Refused, match="this invitation is not among"):
        invited.join(1, invitation_sha256=digest_of("a guess"))
    invited.join(1, invitation_sha256=code)
    invited.join(1)
    with pytest.raises(Refused, match="used by another"):
        invited.join(2, invitation_sha256=code)


def test_invitation_of_another_client_cannot_be_taken_over() -> None:
    first, second = digest_of("first"), digest_of("second")
    driver = Driver(state_file(access__mode="invitations", access__invitations=[first, second]))
    driver.join(1, invitation_sha256=first)
    driver.join(2, invitation_sha256=second)
    driver.join(1, invitation_sha256=second)
    driver.join(2, invitation_sha256=second)
    with pytest.raises(Refused, match="used by another"):
        driver.join(3, invitation_sha256=first)


def test_invitation_struck_from_the_file_admits_nobody() -> None:
    first, second = digest_of("first"), digest_of("second")
    invited = {"access__mode": "invitations"}
    driver = Driver(state_file(**invited, access__invitations=[first, second]))
    driver.join(1, invitation_sha256=first)
    driver.send(stimuli.ConfigChanged(state_file(**invited, access__invitations=[second])))
    with pytest.raises(Refused, match="invitation"):
        driver.join(1, invitation_sha256=first)


def test_member_that_ends_after_the_run_did_not_fall_silent() -> None:
    driver = in_round(1, 2, config__total_steps=1)
    driver.play_round()
    driver.make_checkpoint()
    assert driver.in_phase(RunState.FINISHED)
    assert driver.send(stimuli.ClientsFellSilent((client(1),))) == (
        MembershipChanged(client(1), "left the finished run"),
    )
