"""A run whose first model is read from a folder: only the coordinator reads it, everybody else has it from the run."""

import asyncio
import shutil
from pathlib import Path

import pytest

from epochal.runtime.worker_thread import InlineWorker
from epochal.state.model.replica import replica_digest
from epochal.state.phase_names import RunState
from epochal.trainers.first_parameters import make_first_model
from epochal.trainers.registry import open_trainer
from tests.support.data.states import state_file
from tests.support.drive.by_hand import joined_by_hand
from tests.support.drive.processes import SMALL_MODEL, in_phase, prepared_run
from tests.support.heavy import need_module
from tests.support.models.local_training import arriving, plan_of, sequences_of
from tests.support.models.model_files import write_model
from tests.support.models.tiny_llama import LLAMA, LLAMA_STATE

FIRST = make_first_model(state_file(model__LLM__ngram=SMALL_MODEL), 0, seed=7)


@pytest.mark.nightly
async def test_client_trains_with_nothing_but_the_coordinator(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", FIRST.replica.parameters)
    local = {"model__LLM__checkpoint": {"Local": str(folder)}}
    async with prepared_run(tmp_path, config__total_steps=2, **local) as run:
        await run.start_coordinator()
        await asyncio.to_thread(shutil.rmtree, folder)
        async with joined_by_hand(run, 1) as hand:
            document = await hand.first_checkpoint()
            assert document.model_sha256 is not None
            spec = await hand.api.model(document.model_sha256)
            assert spec == FIRST.spec
            replica = await hand.held(document)
            assert replica_digest(replica) == replica_digest(FIRST.replica)
            trainer = open_trainer("numpy", hand.state, spec, InlineWorker())
            trained = await trainer.train(plan_of(2), replica.parameters, arriving(sequences_of(16, 16)))
            assert trained.loss is not None
            await hand.api.withdraw()
        await run.start_client()
        assert (await run.finish()).rounds == 2
        finished = await run.until(in_phase(RunState.FINISHED))
        assert finished.model_sha256 == document.model_sha256
        await run.stop_coordinator()
        copy = tmp_path / "backup"
        (await run.command_here("backup", str(run.run_dir), str(copy))).expect(0)
        shutil.rmtree(run.run_dir)
        shutil.copytree(copy, run.run_dir)
        await run.start_coordinator("--restored")
        assert await run.watch.api.model(document.model_sha256) == FIRST.spec
        (await run.command_here("evaluate", str(run.run_dir), "--samples", "4")).expect(0, "replica 2: loss")


@pytest.mark.nightly
async def test_config_of_a_repository_comes_with_the_delivered_model(tmp_path: Path) -> None:
    need_module("transformers")
    llama = state_file(**LLAMA_STATE)
    folder = write_model(tmp_path / "llama", make_first_model(llama, 0).replica.parameters, config=LLAMA)
    hub = {"model__LLM__architecture": "HfLlama", "model__LLM__checkpoint": {"Hub": {"repo_id": "nobody/asks"}}}
    async with prepared_run(tmp_path, config__total_steps=1, model__LLM__ngram={}, **hub) as run:
        await run.start_coordinator("--no-genesis")
        client = await run.start_client(trainer="torch")
        told = await run.command_here("genesis", run.url, "--file", str(folder), EPOCHAL_ADMIN_TOKEN=run.admin_token)
        told.expect(0, "the run starts from replica 0, digest")
        await asyncio.to_thread(shutil.rmtree, folder)
        assert (await run.finish()).rounds == 1
        assert run.events(client, "round_trained")
        document = await run.until(in_phase(RunState.FINISHED))
        assert document.model_sha256 is not None
        assert (await run.watch.api.model(document.model_sha256)).hf == LLAMA
