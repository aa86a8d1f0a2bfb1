"""Who may join by an operator's commands: invitations with uses and an end, and keys, beside the state file's own."""

import contextlib
from typing import Any

import pytest

from epochal.coordinator.insight.projection import Projection
from epochal.coordinator.machine.parts.admissions import Admissions
from epochal.coordinator.machine.stimuli import (
    ClientEjected,
    ClientWithdrew,
    ConfigChanged,
    InvitationMade,
    InvitationRevoked,
    KeyAdmitted,
    KeyRemoved,
)
from epochal.state.errors import Refused
from epochal.state.wire import Sha256
from tests.support.data.states import state_file
from tests.support.drive.machine_driver import Driver, client, digest_of, played_once, refused

CODE = digest_of("code")


def key(number: int) -> str:
    return (bytes([number]) * 32).hex()


@played_once
def invited(uses: int = 2, expires_s: float | None = None, **overrides: Any) -> Driver:
    driver = Driver(state_file(access__mode="invitations", **overrides))
    driver.send(InvitationMade(CODE, uses, expires_s))
    return driver


@played_once
def keyed(*numbers: int) -> Driver:
    return Driver(state_file(access__mode="keys", access__keys=[key(number) for number in numbers]))


def joins(driver: Driver, number: int, **fields: Any) -> bool:
    """Whether the client may join now."""
    with contextlib.suppress(Refused):
        driver.join(number, **fields)
        return True
    with refused("access-denied"):
        driver.join(number, **fields)
    return False


def test_invitation_admits_as_many_clients_as_it_says() -> None:
    driver = invited(uses=2)
    assert not joins(driver, 1)
    assert [joins(driver, number, invitation_sha256=CODE) for number in (1, 2, 3)] == [True, True, False]
    assert joins(driver, 1, invitation_sha256=CODE), "who is admitted needs no other use"
    assert joins(driver, 2), "nor the code"
    assert driver.run.members.admissions.invitations[CODE].used == 2


def test_used_up_and_expired_invitations_say_so() -> None:
    driver = invited(uses=1, expires_s=2000.0)
    driver.join(1, invitation_sha256=CODE)
    with pytest.raises(Refused, match="used up: it admits one client"):
        driver.join(2, invitation_sha256=CODE)
    driver.now_s = 2000.0
    with pytest.raises(Refused, match="has expired"):
        driver.join(2, invitation_sha256=CODE)
    assert joins(driver, 1), "it was admitted in time"


def test_revoked_invitation_admits_nobody_any_more() -> None:
    driver = invited()
    driver.join(1, invitation_sha256=CODE)
    driver.send(InvitationRevoked(CODE))
    assert client(1) in driver.run.members, "a member stays until it leaves"
    driver.send(ClientWithdrew(client(1)))
    assert [joins(driver, number, invitation_sha256=CODE) for number in (1, 2)] == [False, False]
    with refused("not-found"):
        driver.send(InvitationRevoked(CODE))


def test_invitations_of_the_file_and_of_commands_stand_beside_each_other() -> None:
    listed = digest_of("listed")
    driver = invited(access__invitations=[listed])
    assert joins(driver, 1, invitation_sha256=listed)
    assert not joins(driver, 2, invitation_sha256=listed), "the file's admit one client each"
    assert joins(driver, 2, invitation_sha256=CODE)


@pytest.mark.parametrize("mode", ["open", "keys"])
def test_invitation_is_refused_where_nobody_needs_one(mode: str) -> None:
    driver = Driver(state_file(access__mode=mode))
    with pytest.raises(Refused, match=f'is "{mode}": nobody needs an invitation'):
        driver.send(InvitationMade(CODE, 1, None))


def test_unused_expired_invitations_make_room_for_new_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("epochal.coordinator.machine.access.MAX_INVITATIONS", 2)
    driver = invited(expires_s=1001.0)
    driver.send(InvitationMade(digest_of("other"), 1, None))
    with refused("overloaded"):
        driver.send(InvitationMade(digest_of("third"), 1, None))
    driver.now_s = 1001.0
    driver.send(InvitationMade(digest_of("third"), 1, None))
    assert set(driver.run.members.admissions.invitations) == {digest_of("other"), digest_of("third")}


def test_used_expired_invitation_makes_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("epochal.coordinator.machine.access.MAX_INVITATIONS", 1)
    driver = invited(expires_s=1001.0)
    driver.join(1, invitation_sha256=CODE)
    driver.now_s = 1001.0
    with refused("overloaded"):
        driver.send(InvitationMade(digest_of("other"), 1, None))
    driver.send(ClientWithdrew(client(1)))
    assert joins(driver, 1), "whom it admitted may come back"


def test_key_is_admitted_and_removed_without_the_file() -> None:
    driver = keyed(1)
    assert not joins(driver, 2)
    driver.send(KeyAdmitted(key(2)))
    assert joins(driver, 2)
    driver.send(KeyRemoved(key(2)))
    assert client(2) not in driver.run.members
    assert not joins(driver, 2)
    with refused("not-found"):
        driver.send(KeyRemoved(key(2)))


def test_key_of_the_file_is_removed_and_admitted_again() -> None:
    driver = keyed(1)
    driver.join(1)
    told = driver.send(KeyRemoved(key(1)))
    assert "lost its access" in str(told)
    history = Projection()
    history.take(driver.instructions, 1)
    assert [known.left for known in history.book.gone(10)] == ["lost its access"]
    assert not joins(driver, 1)
    driver.send(KeyAdmitted(key(1)))
    assert joins(driver, 1)
    assert driver.run.members.admissions == Admissions(), "nothing is left to remember"


def edit(driver: Driver, *numbers: int) -> None:
    keys = [key(number) for number in numbers]
    driver.send(ConfigChanged(state_file(access__mode="keys", access__keys=keys)))


def test_last_word_on_a_key_counts_whoever_said_it() -> None:
    driver = keyed(1)
    driver.send(KeyRemoved(key(1)))
    edit(driver, 1, 2)
    assert not joins(driver, 1), "the file says nothing new of it"
    edit(driver, 2)
    edit(driver, 1, 2)
    assert joins(driver, 1), "it was listed anew"
    driver.send(KeyAdmitted(key(3)))
    edit(driver, 1, 2, 3)
    edit(driver, 1, 2)
    assert not joins(driver, 3), "the file listed it, and does so no more"


def test_key_that_a_command_admitted_survives_edits_of_the_file() -> None:
    driver = keyed(1)
    driver.send(KeyAdmitted(key(2)))
    edit(driver, 1, 3)
    assert joins(driver, 2)


def test_ejected_key_is_not_admitted_again() -> None:
    driver = keyed(1)
    driver.join(1)
    driver.send(ClientEjected(client(1)))
    with pytest.raises(Refused, match="was ejected from the run for good"):
        driver.send(KeyAdmitted(key(1)))


def test_key_is_refused_where_nobody_is_asked_for_one() -> None:
    driver = Driver(state_file())
    for stimulus in (KeyAdmitted(key(1)), KeyRemoved(key(1))):
        with refused("not-now"):
            driver.send(stimulus)


def test_admitting_a_key_twice_changes_nothing() -> None:
    driver = keyed(1)
    before = driver.run
    driver.send(KeyAdmitted(key(1)))
    assert driver.run is before


def test_state_file_without_keys_waits_for_the_command() -> None:
    driver = keyed()
    assert not joins(driver, 1)
    driver.send(KeyAdmitted(key(1)))
    assert joins(driver, 1)


def test_digest_of_a_code_is_what_the_journal_has() -> None:
    driver = invited()
    assert CODE in str(driver.instructions)
    assert Sha256("code") not in driver.run.members.admissions.invitations
