"""`epochal client --trainer auto`: the trainer that the run needs."""

from typing import Any

import pytest

from epochal.cli.options.client_trainer import AUTO, ClientTrainer
from epochal.coordinator.serve import ServeOptions, serving
from epochal.coordinator_client.http import CoordinatorClient
from epochal.runtime.http.http_server import Endpoint
from epochal.runtime.retry import RetryPolicy
from epochal.state.errors import InvalidInput
from epochal.trainers.registry import TrainerOptions
from tests.support.data.states import state_file


async def chosen(folder: Any, name: str, **state: Any) -> str:
    options = ServeOptions(str(folder / "run"), Endpoint(port=0))
    async with (
        serving(state_file(**state), options) as served,
        await CoordinatorClient.connect(served.url, RetryPolicy(attempts=1)) as api,
    ):
        try:
            return await ClientTrainer(name, TrainerOptions(), None).choose(api)
        except InvalidInput as error:
            return error.message


@pytest.mark.parametrize(
    ("architecture", "name"), [("EpochalNgram", "numpy"), ("HfLlama", "torch"), ("HfAuto", "torch")]
)
async def test_client_takes_the_trainer_that_the_run_needs(tmp_path: Any, architecture: str, name: str) -> None:
    hf = {} if architecture == "EpochalNgram" else {"model__LLM__hf": {"model_type": "llama"}}
    assert await chosen(tmp_path, AUTO, model__LLM__architecture=architecture, **hf) == name


async def test_trainer_that_is_named_is_kept(tmp_path: Any) -> None:
    assert await chosen(tmp_path, "remote") == "remote"


async def test_trainer_of_a_package_is_never_chosen_by_a_coordinator(tmp_path: Any) -> None:
    custom = {"trainer": "somebodys"}
    said = await chosen(tmp_path, AUTO, model__LLM__architecture="Custom", model__LLM__custom=custom)
    assert "'somebodys', of a package; --trainer names it" in said
