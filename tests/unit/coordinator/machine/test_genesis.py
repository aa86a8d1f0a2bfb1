"""The run's first checkpoint: the operator provides it before anybody trains; members only where they are trusted."""

from epochal.coordinator.machine import stimuli
from epochal.coordinator.machine.parts.checkpointers import current_checkpointer
from epochal.coordinator.machine.views import blobs_needed, document_of
from epochal.state.documents import CheckpointRef
from epochal.state.messages.requests import CheckpointReport
from epochal.state.model.first_model import model_digest
from epochal.state.phase_names import RunState
from tests.support.data.states import state_file
from tests.support.drive.machine_driver import Driver, client, digest_of, in_warmup, refused

SPEC = state_file().model.LLM.spec


class Awaiting(Driver):
    """A run whose operator has not provided the first checkpoint yet."""

    def provide_genesis(self) -> None:
        """Leave it to the test."""


def provided(step: int = 0, name: str = "blob") -> stimuli.GenesisProvided:
    reference = CheckpointRef(step, digest_of(name), 100, digest_of(f"replica of {name}"))
    return stimuli.GenesisProvided(reference, SPEC)


def test_no_member_is_asked_for_the_operators_first_checkpoint() -> None:
    driver = Awaiting(state_file())
    driver.join(1, 2)
    driver.pass_time(1000)
    assert driver.in_phase(RunState.WAITING_FOR_MEMBERS)
    assert current_checkpointer(driver.run.models, driver.run.members) is None
    assert "waits for its first checkpoint" in driver.run.clock.reason
    with refused("not-now"):
        report = CheckpointReport(0, digest_of("mine"), digest_of("mine"), 9)
        driver.send(stimuli.CheckpointReported(client(1), report))


def test_run_goes_on_as_soon_as_the_operator_provides_its_checkpoint() -> None:
    driver = Awaiting(state_file())
    driver.join(1, 2)
    driver.pass_time(1000)
    driver.send(provided())
    assert driver.in_phase(RunState.WARMUP)
    assert driver.run.models.checkpoint is not None
    assert driver.run.models.checkpoint.blob_sha256 == digest_of("blob")
    assert digest_of("blob") in blobs_needed(driver.run)


def test_first_checkpoint_that_is_provided_again_changes_nothing() -> None:
    driver = Awaiting(state_file())
    driver.send(provided())
    before = driver.run
    assert driver.send(provided()) == ()
    assert driver.run is before


def test_second_first_checkpoint_is_refused() -> None:
    driver = Awaiting(state_file())
    driver.send(provided())
    with refused("not-now"):
        driver.send(provided(name="another"))


def test_first_checkpoint_of_another_step_than_the_runs_is_refused() -> None:
    driver = Awaiting(state_file(progress={"epoch": 1, "step": 5, "epoch_start_data_index": 0}))
    with refused("stale-round"):
        driver.send(provided(step=0))
    driver.send(provided(step=4))
    assert driver.run.models.checkpoint is not None


def test_operator_may_provide_it_while_members_are_elected_for_it() -> None:
    driver = in_warmup(1, 2, access__genesis="members")
    assert current_checkpointer(driver.run.models, driver.run.members) is not None
    driver.send(provided())
    assert driver.run.models.checkpointing is None
    assert driver.run.models.checkpoint is not None


def test_members_are_no_longer_asked_once_the_operator_takes_over() -> None:
    driver = in_warmup(1, 2, access__genesis="members")
    driver.send(stimuli.ConfigChanged(state_file()))
    assert current_checkpointer(driver.run.models, driver.run.members) is None
    driver.pass_time(30)
    driver.pass_time(1000)
    assert driver.in_phase(RunState.WAITING_FOR_MEMBERS)


def test_members_whose_bytes_break_a_rule_are_followed_by_the_next() -> None:
    driver = in_warmup(1, 2, 3, access__genesis="members")
    asked = []
    for _ in range(3):
        writer = driver.checkpointer()
        asked.append(writer)
        report = CheckpointReport(0, digest_of("r"), digest_of("evil"), 9)
        driver.send(stimuli.CheckpointReported(writer, report))
        driver.send(stimuli.CheckpointRejected(writer, 0, digest_of("evil"), "layout"))
    assert len(set(asked)) == 3
    assert current_checkpointer(driver.run.models, driver.run.members) is None


def test_run_that_waits_says_that_the_first_checkpoint_was_provided() -> None:
    waiting = Awaiting(state_file())
    waiting.send(provided())
    assert waiting.run.clock.reason == "the first checkpoint was provided"
    warming_up = in_warmup(1, 2, access__genesis="members")
    reason = warming_up.run.clock.reason
    warming_up.send(provided())
    assert warming_up.run.clock.reason == reason, "it said why this phase began"


def test_members_make_the_first_checkpoint_once_only() -> None:
    driver = in_warmup(1, 2, access__genesis="members")
    driver.make_checkpoint()
    driver.send(stimuli.ClientsFellSilent((client(1), client(2))))
    driver.join(1, 2)
    driver.pass_time(2)
    assert driver.in_phase(RunState.WARMUP)
    assert driver.run.models.checkpointing is None


def test_model_of_the_run_is_known_from_its_first_checkpoint_on() -> None:
    driver = Awaiting(state_file())
    assert document_of(driver.run, 1).model_sha256 is None
    driver.send(provided())
    assert driver.run.models.spec == SPEC
    assert document_of(driver.run, 1).model_sha256 == model_digest(SPEC)
    driver.join(1, 2)
    driver.pass_time(1000)
    assert driver.in_phase(RunState.WARMUP)
    assert driver.run.models.spec == SPEC, "it stays, also in a snapshot"


def test_model_whose_parameters_members_make_is_the_state_files() -> None:
    driver = in_warmup(1, 2, access__genesis="members")
    assert driver.run.models.spec is None
    driver.make_checkpoint()
    assert driver.run.models.spec == SPEC


def test_config_that_the_state_file_leaves_open_is_the_operators() -> None:
    hub = state_file(model__LLM__architecture="HfLlama", model__LLM__checkpoint={"Hub": {"repo_id": "a/b"}})
    driver = Awaiting(hub)
    known = hub.model.LLM.spec.model_copy(update={"hf": {"model_type": "llama", "theta": 1e4, "layers": [1, 2]}})
    reference = CheckpointRef(0, digest_of("blob"), 100, digest_of("replica"))
    driver.send(stimuli.GenesisProvided(reference, known))
    assert driver.run.models.spec == known
    assert driver.run.models.spec_sha256 == model_digest(known)
