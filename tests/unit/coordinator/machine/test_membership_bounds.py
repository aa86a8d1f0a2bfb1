"""Bounds of the membership: nonces, members and ejected keys, each up to its number and no further."""

from dataclasses import replace

import pytest

from epochal.coordinator.machine import stimuli
from epochal.coordinator.machine.handle import handle
from epochal.coordinator.machine.membership import MAX_EJECTED, MAX_MEMBERS, MAX_USED_NONCES
from epochal.coordinator.machine.run import Run
from epochal.state.codecs.codecs_by_name import SPOKEN
from epochal.state.messages.requests import PROTOCOL_VERSION, Capabilities, ReadyReport
from epochal.state.phase_names import RunState
from epochal.state.wire import ClientId, Seed
from tests.support.data.states import state_file
from tests.support.drive.machine_driver import Driver, client, digest_of, in_round, in_warmup, refused


def after(run: Run, stimulus: stimuli.Stimulus) -> Run:
    """Return a run after a stimulus, without the checks of a driver, which take long in a large run."""
    return handle(run, stimuli.Stamped(stimulus, run.clock.now_s, Seed(digest_of("seed"))))[0]


def joining(run: Run, number: int, protocol: int = PROTOCOL_VERSION) -> stimuli.ClientJoined:
    key, capabilities = (bytes([number]) * 32).hex(), Capabilities(protocol=protocol, codecs=SPOKEN)
    return stimuli.ClientJoined(client(number), key, capabilities, f"nonce of {number}", run.clock.now_s + 60)


def test_joins_within_the_life_of_a_nonce_are_bounded() -> None:
    run = in_round(1, 2).run
    nonces = {str(number): run.clock.now_s + 1 for number in range(MAX_USED_NONCES)}
    with refused("overloaded"):
        after(run.with_parts(replace(run.members, used_nonces=nonces)), joining(run, 3))
    del nonces["0"]
    assert (
        len(after(run.with_parts(replace(run.members, used_nonces=nonces)), joining(run, 3)).members.used_nonces)
        == MAX_USED_NONCES
    )


def test_nonce_is_forgotten_at_the_moment_when_it_expires() -> None:
    run = in_round(1, 2).run
    run = run.with_parts(
        replace(run.members, used_nonces={"over": run.clock.now_s, "not yet": run.clock.now_s + 0.001})
    )
    assert list(after(run, joining(run, 3)).members.used_nonces) == ["not yet", "nonce of 3"]


def test_run_has_its_maximum_of_members_and_those_may_join_again() -> None:
    run = in_round(1, 2).run
    someone = run.members.by_id[client(1)]
    members = dict(run.members.by_id)
    for number in range(MAX_MEMBERS - 3):
        members[ClientId(f"{number:032x}")] = someone
    run = after(run.with_parts(replace(run.members, by_id=members)), joining(run, 3))
    assert len(run.members) == MAX_MEMBERS
    with refused("run-full"):
        after(run, joining(run, 4))
    assert len(after(run.with_parts(replace(run.members, used_nonces={})), joining(run, 3)).members) == MAX_MEMBERS


def test_ejected_keys_are_bounded_and_ejected_again_without_effect() -> None:
    run = in_round(1, 2, 3).run
    ejected = frozenset(ClientId(f"{number:032x}") for number in range(MAX_EJECTED - 1))
    run = after(run.with_parts(replace(run.members, ejected=ejected)), stimuli.ClientEjected(client(3)))
    assert len(run.members.ejected) == MAX_EJECTED
    with refused("overloaded"):
        after(run, stimuli.ClientEjected(client(2)))
    fewer = run.with_parts(replace(run.members, ejected=frozenset({client(3)})))
    assert after(fewer, stimuli.ClientEjected(client(3))) is fewer
    with refused("not-found"):
        after(fewer, stimuli.ClientEjected(client(9)))


@pytest.mark.parametrize("protocol", [PROTOCOL_VERSION - 1, PROTOCOL_VERSION + 1])
def test_client_of_another_protocol_is_refused(protocol: int) -> None:
    run = Driver(state_file()).run
    with refused("unsupported-protocol"):
        after(run, joining(run, 1, protocol))


@pytest.mark.parametrize(
    ("codec", "codecs", "is_admitted"),
    [
        ("float32", Capabilities().codecs, True),
        ("int8", Capabilities().codecs, False),
        ("int8", ("float32/1", "int8/1"), True),
        ("int8", ("float32/1", "int8/2"), False),
        ("float32", (), False),
    ],
)
def test_client_that_does_not_know_the_codec_is_refused(codec: str, codecs: tuple[str, ...], is_admitted: bool) -> None:
    run = Driver(state_file(merge__codec=codec)).run
    stimulus = replace(joining(run, 1), capabilities=Capabilities(codecs=codecs))
    if is_admitted:
        assert client(1) in after(run, stimulus).members
    else:
        with refused("unsupported-codec"):
            after(run, stimulus)


def test_one_use_of_an_invitation_is_enough_for_its_client() -> None:
    first, second = digest_of("first"), digest_of("second")
    driver = Driver(state_file(access__mode="invitations", access__invitations=[first, second]))
    driver.join(1, invitation_sha256=first)
    driver.join(1, invitation_sha256=second)
    assert driver.run.members.invitations_used == {first: client(1)}
    driver.join(2, invitation_sha256=second)
    assert driver.run.members.invitations_used == {first: client(1), second: client(2)}


def test_invitation_is_not_used_up_where_anybody_may_join() -> None:
    driver = Driver(state_file())
    driver.join(1, invitation_sha256=digest_of("any"))
    assert driver.run.members.invitations_used == {}


def test_member_may_be_ready_one_replica_behind_and_no_further() -> None:
    driver = in_round(1, 2, config__total_steps=9)
    driver.play_round()
    driver.join(3, 4)
    before = ReadyReport(0, digest_of("replica 0"), "data")
    driver.send(stimuli.ClientBecameReady(client(3), before))
    assert driver.run.members.by_id[client(3)].readiness.step == 0
    driver.play_round()
    with refused("behind"):
        driver.send(stimuli.ClientBecameReady(client(4), before))
    with refused("behind"):
        driver.send(stimuli.ClientBecameReady(client(4), ReadyReport(3, digest_of("replica 3"), "data")))


def test_replica_of_a_ready_member_is_compared_with_the_outcomes() -> None:
    driver = in_round(1, 2, config__total_steps=9)
    driver.play_round()
    driver.play_round()
    driver.join(3)
    with refused("replica-differs"):
        driver.send(stimuli.ClientBecameReady(client(3), ReadyReport(1, digest_of("another"), "data")))
    driver.send(stimuli.ClientBecameReady(client(3), ReadyReport(1, digest_of("replica 1"), "data")))
    assert driver.run.members.by_id[client(3)].readiness.step == 1


def test_ready_member_that_reports_again_changes_nothing_and_other_data_do() -> None:
    driver = in_warmup(1, 2, 3)
    driver.ready(client(1))
    before = driver.run
    driver.ready(client(1))
    assert driver.run is before
    driver.ready(client(1), data_fingerprint="other")
    assert driver.run.members.by_id[client(1)].readiness.data_fingerprint == "other"


def test_nobody_is_ready_in_a_finished_run_or_as_a_stranger() -> None:
    driver = in_round(1, 2, config__total_steps=1)
    with refused("unauthorized"):
        driver.ready(client(9))
    driver.play_round()
    driver.make_checkpoint()
    assert driver.in_phase(RunState.FINISHED)
    with refused("not-now"):
        driver.ready(client(1))


@pytest.mark.parametrize(("present", "waits"), [(2, True), (3, False)])
def test_members_have_gathered_when_they_are_as_many_as_needed(present: int, waits: bool) -> None:
    driver = Driver(state_file(config__init_min_clients=3, config__min_clients=2))
    driver.join(*range(1, present + 1))
    assert (driver.run.clock.enough_since_s is None) is waits


@pytest.mark.parametrize(("ready", "waits"), [(1, True), (2, False)])
def test_ready_members_are_enough_when_they_are_as_many_as_needed(ready: int, waits: bool) -> None:
    driver = in_warmup(1, 2, 3, 4, config__min_clients=2)
    driver.ready(*(client(number) for number in range(1, ready + 1)))
    assert (driver.run.clock.enough_since_s is None) is waits
