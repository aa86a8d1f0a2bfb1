"""Trainers from other packages: found by entry point or as `module:Class`, and refused by name."""

from pathlib import Path

import numpy as np
import pytest

from epochal.runtime.permissions import Permissions
from epochal.runtime.worker_thread import InlineWorker
from epochal.state.config.model_table import Architecture, ModelSpec
from epochal.state.config.state_file import StateFile
from epochal.state.errors import InvalidInput
from epochal.trainers.architectures import open_model
from epochal.trainers.first_parameters import make_first_model, model_layout
from epochal.trainers.protocol import Trainer
from epochal.trainers.registry import TrainerOptions, check_trainer_name, open_trainer
from tests.support.data.states import state_file
from tests.support.models.installed_trainers import CUSTOM, LAB_TRAINER, install
from tests.support.models.local_training import arriving, plan_of, sequences_of

SPEC = ModelSpec(architecture=Architecture.CUSTOM, custom=CUSTOM)


def custom_state(trainer: str = "lab") -> StateFile:
    return state_file(model__LLM__architecture="Custom", model__LLM__custom=CUSTOM | {"trainer": trainer})


def opened(name: str, state: StateFile) -> Trainer:
    options = TrainerOptions(permissions=Permissions.of_volunteer(packages=["Lab_Trainer"]))
    return open_trainer(name, state, state.model.LLM.spec, InlineWorker(), options)


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch)


@pytest.mark.usefixtures("lab")
@pytest.mark.parametrize("name", ["lab", "lab_trainer:LabTrainer"])
async def test_trainer_is_opened_by_entry_point_or_class(name: str) -> None:
    check_trainer_name(name)
    trainer = opened(name, custom_state())
    assert trainer.name == name
    trained = await trainer.train(plan_of(4), {"w": np.ones(3, np.float32)}, arriving(sequences_of(*[5] * 4)))
    assert trained.token_count == 20


@pytest.mark.usefixtures("lab")
def test_trainer_is_told_the_run_and_its_model() -> None:
    setup = vars(opened("lab", custom_state()))["setup"]
    assert (setup.name, setup.spec, setup.state.run_id) == ("lab", SPEC, "test-run")


@pytest.mark.usefixtures("lab")
def test_trainer_of_a_package_may_train_a_model_that_is_not_its_own() -> None:
    assert vars(opened("lab", state_file()))["setup"].spec.architecture is Architecture.EPOCHAL_NGRAM


@pytest.mark.usefixtures("lab")
def test_first_replica_of_a_custom_model_comes_from_its_class() -> None:
    state = custom_state()
    assert model_layout(SPEC).entries == (("w", (3,)),)
    first = make_first_model(state, 0, seed=7)
    assert first.spec == SPEC
    assert first.replica.layout == model_layout(SPEC)


@pytest.mark.usefixtures("lab")
@pytest.mark.parametrize("name", ["numpy", "lab_trainer:OnlyTrains"])
def test_run_of_a_custom_model_takes_its_own_trainer_only(name: str) -> None:
    with pytest.raises(InvalidInput, match=r"has a model of the trainer 'lab'; allowed: --trainer lab$"):
        opened(name, custom_state())


@pytest.mark.usefixtures("lab")
def test_unknown_trainer_is_told_which_ones_are_installed() -> None:
    with pytest.raises(InvalidInput, match=r"no trainer 'lib'; allowed: null, numpy, .*lab; or module:Class"):
        check_trainer_name("lib")


@pytest.mark.usefixtures("lab")
def test_trainer_whose_name_no_message_can_hold_is_refused() -> None:
    with pytest.raises(InvalidInput, match="more than 64 characters; register it as an entry point"):
        check_trainer_name(f"lab_trainer:{'L' * 60}")


@pytest.mark.usefixtures("lab")
def test_class_without_a_model_is_refused_where_it_needs_one() -> None:
    with pytest.raises(InvalidInput, match=r"'lab_trainer:OnlyTrains' has no open_model\(spec, options\)"):
        open_model(SPEC.model_copy(update={"custom": {"trainer": "lab_trainer:OnlyTrains"}}))


def test_model_of_a_package_that_is_not_installed_is_named() -> None:
    with pytest.raises(InvalidInput, match=r"model\.LLM\.custom\.trainer 'lab' is not installed: no package registers"):
        open_model(SPEC)


def test_custom_model_without_a_table_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"without a table \[model\.LLM\.custom\]"):
        open_model(ModelSpec(architecture=Architecture.CUSTOM))


def test_two_packages_with_trainers_of_one_name_are_both_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("lab", "rival"):
        (tmp_path / package).mkdir()
        install(tmp_path / package, monkeypatch, LAB_TRAINER, package)
    with pytest.raises(
        InvalidInput, match=r"several packages register 'lab' in epochal.trainers: .*rival-trainer 1\.0"
    ):
        check_trainer_name("lab")
    check_trainer_name("rival_trainer:LabTrainer")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("import absent_module", r"cannot be imported: ModuleNotFoundError: .*absent_module"),
        ("1 / 0", r"cannot be imported: ZeroDivisionError"),
        ("other = 1", r"cannot be imported: AttributeError"),
        ("LabTrainer = 7", r"is 7; allowed: a subclass of epochal\.TorchTask, or a class with open\(setup\)"),
        ("class LabTrainer:\n    pass", r"is <class .*>; allowed: a subclass of epochal\.TorchTask, or a class with"),
    ],
)
def test_class_that_is_no_trainer_is_named(
    source: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, monkeypatch, source)
    with pytest.raises(InvalidInput, match=rf"^trainer 'lab' \(lab_trainer:LabTrainer\) {message}"):
        check_trainer_name("lab")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("return 1 / 0", "cannot be opened: ZeroDivisionError"),
        ("return [setup]", "opened a list without name, vocabulary, loads_data, computed, initial_parameters, train"),
        (
            "from epochal.state.errors import InvalidInput\n        raise InvalidInput('closed on Sundays')",
            "^closed on Sundays$",
        ),
    ],
)
def test_trainer_that_cannot_be_opened_is_named(
    body: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, monkeypatch, f"class LabTrainer:\n    @staticmethod\n    def open(setup):\n        {body}\n")
    with pytest.raises(InvalidInput, match=message):
        opened("lab", custom_state())
