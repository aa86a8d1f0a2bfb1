"""Data that the run's model cannot take: clients, data servers and commands say so before a round, and end."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w

from epochal.state.phase_names import RunState
from tests.support.bounds import BOUND_S
from tests.support.data.token_files import SEQ_LEN, write_served_tokens, write_tokens
from tests.support.drive.processes import prepared_run, real_run, run_command
from tests.support.models.installed_trainers import register

FOREIGN = "token 42749 at position 0; the model's vocabulary allows 0 to 255"
LONG = {"config__total_steps": 100_000}
ENCODER = """
import numpy as np
from epochal import EncodedSample, TaskEncoder

class Foreign(TaskEncoder):
    def encode_sample(self, sample):
        return EncodedSample(np.array([7, 42749], "<u2"))
"""


def write_foreign(path: Path, dtype: str = "<u2") -> Path:
    """Return a file of tokens of a larger vocabulary than the model's."""
    path.parent.mkdir(parents=True, exist_ok=True)
    np.full(400 * SEQ_LEN, 42_749, dtype).tofile(path)
    return path


def write_records(folder: Path) -> Path:
    """Return a folder with a file of JSON lines, and the module `foreign` with a task encoder beside it."""
    (folder / "data").mkdir(parents=True)
    (folder / "data" / "train.jsonl").write_text('{"text": "Shall I compare thee"}\n' * 40)
    (folder / "foreign.py").write_text(ENCODER)
    register(folder, "foreign-encoders", "epochal.task_encoders", foreign="foreign:Foreign")
    return folder / "data"


def packing(data: Path) -> dict[str, Any]:
    """Return the part of the state file of a run that packs the records of a folder."""
    return {"model__LLM__data_type": "Finetuning", "model__LLM__data_location": {"Local": str(data)}}


async def test_client_whose_data_are_of_another_vocabulary_ends_before_a_round(tmp_path: Path) -> None:
    path = write_foreign(tmp_path / "data" / "gpt.bin")
    async with real_run(tmp_path / "run", 1, model__LLM__data_location={"Local": str(path)}, **LONG) as run:
        (client,) = run.clients
        assert await client.wait(BOUND_S) == 2
        assert FOREIGN in client.log_tail()
        assert "sequence 0 of gpt.bin" in client.log_tail()
        assert run.events(client, "became_ready") == []
        document = await run.watch.next()
        assert (document.step, document.run_state is RunState.ROUND_TRAIN) == (1, False)


@pytest.mark.nightly
async def test_client_whose_encoder_makes_foreign_tokens_ends_before_a_round(tmp_path: Path) -> None:
    data = write_records(tmp_path / "records")
    encoder = {"packing": {"task_encoder": "foreign", "oversized": "truncate"}}
    async with prepared_run(tmp_path / "run", **packing(data), **encoder, **LONG) as run:
        await run.start_coordinator()
        allowed = ("--allow-local", str(data), "--allow-package", "foreign-encoders")
        ran = await run.command("client", run.url, *allowed, PYTHONPATH=str(tmp_path / "records"))
        ran.expect(2, "token 42749; the model's vocabulary allows 0 to 255", "foreign:Foreign")


@pytest.mark.nightly
async def test_client_with_a_little_foreign_data_says_so_and_trains(tmp_path: Path) -> None:
    path = write_tokens(tmp_path / "data", bad_index=0)
    overrides = {"model__LLM__data_location": {"Local": str(path)}, "config__total_steps": 3}
    async with real_run(tmp_path / "run", 1, **overrides) as run:
        (client,) = run.clients
        warned = await run.until_logged(client, "data_look_wrong")
        assert warned["level"] == "warning"
        assert "token 999 at position 3" in warned["reason"]
        await run.until_logged(client, "round_trained")


@pytest.mark.nightly
async def test_data_server_of_foreign_tokens_ends_at_its_start(tmp_path: Path) -> None:
    config, port = write_served_tokens(tmp_path)
    write_foreign(tmp_path / "data" / "tokens.bin")
    async with real_run(tmp_path / "run", model__LLM__data_location={"Server": f"127.0.0.1:{port}"}) as run:
        ran = await run.command("data-server", str(config), "--coordinator", run.url)
        ran.expect(2, str(config), FOREIGN)
        config.write_text(tomli_w.dumps({"dir": "data", "token_size": "TwoBytes", "seq_len": 8}))
        ran = await run.command("data-server", str(config), "--coordinator", run.url)
        ran.expect(2, "seq_len is 8; allowed: 16")


@pytest.mark.nightly
async def test_coordinator_with_a_data_file_of_foreign_tokens_ends(tmp_path: Path) -> None:
    config, port = write_served_tokens(tmp_path)
    write_foreign(tmp_path / "data" / "tokens.bin")
    async with prepared_run(tmp_path / "run", model__LLM__data_location={"Server": f"127.0.0.1:{port}"}) as run:
        assert FOREIGN in await run.refused_start("--data-config", str(config), code=2)


@pytest.mark.nightly
async def test_inspect_for_a_run_shows_the_fingerprint_that_its_clients_have(tmp_path: Path) -> None:
    data = write_records(tmp_path / "records")
    async with real_run(tmp_path / "run", 1, **packing(data), model__LLM__max_seq_len=64) as run:
        document = await run.until(lambda document: document.data_fingerprint is not None)
        assert document.data_fingerprint is not None
        for arguments in ((), (str(data),)):
            ran = await run_command("data", "inspect", *arguments, "--state", str(run.state_path), "--json")
            ran.expect(0, document.data_fingerprint)
