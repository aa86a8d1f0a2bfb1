"""What an operator does is told with its name, arguments and time, and without secrets."""

from epochal.coordinator.insight.projection import Projection
from epochal.coordinator.machine import stimuli
from epochal.coordinator.machine.stimuli import AuditReported, FinishRequested, InvitationMade, KeyAdmitted
from epochal.state.messages.audit_reports import AuditRecord
from epochal.state.shown.operator_actions import OperatorAction
from tests.support.data.states import state_file
from tests.support.drive.machine_driver import Driver, client, digest_of, in_round

AUDIT = AuditRecord(3, 6, 0, 0, 0, 0, True, digest_of("a"), digest_of("b"), 4, 0, None, None, (), ())


def actions_of(driver: Driver, version: int = 7) -> list[OperatorAction]:
    history = Projection()
    history.take(driver.instructions, version)
    assert list(Projection.decoded(history.encoded()).actions) == list(history.actions)
    return list(history.actions)


def test_each_action_is_told_once_with_its_arguments_and_time() -> None:
    driver = in_round(1, 2, config__total_steps=10)
    began = len(actions_of(driver))
    driver.now_s += 5
    driver.send(stimuli.PauseRequested())
    driver.send(stimuli.PauseRequested())
    driver.send(stimuli.ResumeRequested())
    driver.send(FinishRequested(4))
    driver.send(stimuli.ClientEjected(client(2)))
    driver.send(stimuli.DataFingerprintSet("data"))
    driver.send(AuditReported(AUDIT))
    found = actions_of(driver)[began:]
    assert [(action.name, dict(action.arguments)) for action in found] == [
        ("pause", {}),
        ("resume", {}),
        ("finish", {"after_step": 4}),
        ("eject", {"client_id": client(2)}),
        ("pin data", {"data_fingerprint": "data"}),
        ("audit", {"verdict": "passed", "rounds": 3}),
    ]
    assert [action.number for action in found] == list(range(began, began + 6))
    assert {action.at_s for action in found} == {driver.now_s}
    assert {action.version for action in found} == {7}


def test_first_checkpoint_is_the_operators_first_action() -> None:
    driver = Driver(state_file())
    (genesis,) = actions_of(driver)
    assert (genesis.name, genesis.arguments["step"]) == ("genesis", 0)


def test_access_is_told_with_the_key_or_the_digest_of_the_code() -> None:
    driver = Driver(state_file(access__mode="invitations"))
    driver.send(InvitationMade(digest_of("code"), 3, None))
    assert actions_of(driver)[-1].arguments == {"invitation": digest_of("code"), "uses": 3, "expires_s": None}
    driver = Driver(state_file(access__mode="keys"))
    driver.send(KeyAdmitted("ab" * 32))
    assert actions_of(driver)[-1].arguments == {"public_key": "ab" * 32}


def test_edit_of_the_file_shows_values_of_the_config_alone() -> None:
    driver = Driver(state_file(config__total_steps=3))
    hook = {"url": "https://hooks.example/SECRET", "secret": "env:SECRET"}
    driver.send(stimuli.ConfigChanged(state_file(config__total_steps=4, notify__webhooks=[hook])))
    action = actions_of(driver)[-1]
    assert action.name == "edit state file"
    assert action.arguments == {"config.total_steps": "3 → 4", "others": "notify.webhooks"}
    assert "SECRET" not in repr(action)


def test_members_and_rounds_are_no_actions() -> None:
    driver = in_round(1, 2, config__total_steps=10)
    began = len(actions_of(driver))
    driver.play_round()
    driver.send(stimuli.ClientWithdrew(client(2)))
    assert len(actions_of(driver)) == began


def test_last_actions_are_kept_with_their_numbers() -> None:
    driver = in_round(1, 2, config__total_steps=10)
    history = Projection()
    history.take(driver.instructions, 1)
    began = history.next_action
    acted = next(one for one in driver.instructions if type(one).__name__ == "OperatorActed")
    history.take([acted] * 1_200, 1)
    assert len(history.actions) == 1_000
    assert history.next_action == began + 1_200
