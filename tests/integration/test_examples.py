"""Every state file in `examples/states` is valid, starts, and trains."""

import contextlib
import shutil
from pathlib import Path

import numpy as np
import pytest

from epochal.state.phase_names import RunState
from tests.support.drive.processes import in_training, prepared_run, run_command
from tests.support.servers.data_http import FileServer, http_server
from tests.support.thinned import thinned

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "states"
FOLDERS = sorted(path.parent for path in EXAMPLES.glob("*/state.toml"))
TOKENS = 600_000


def test_examples_are_there() -> None:
    assert {"demo", "http", "local", "tcp"} <= {folder.name for folder in FOLDERS}


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
async def test_example_passes_check(folder: Path) -> None:
    data_config = folder / "data.toml"
    more = ("--data-config", str(data_config)) if data_config.exists() else ()
    (await run_command("check", str(folder / "state.toml"), *more, "--no-files")).expect(0)  # the data are the user's


@pytest.mark.nightly
@thinned("folder", FOLDERS, ids=lambda folder: folder.name, kept=1)
async def test_example_starts_and_trains(tmp_path: Path, folder: Path) -> None:
    async with prepared_run(tmp_path / "run") as run, contextlib.AsyncExitStack() as stack:
        shutil.copytree(folder, run.folder, dirs_exist_ok=True)
        data = run.folder / "data" / "tokens.bin"
        data.parent.mkdir()
        (np.arange(TOKENS) % 251).astype("<u2").tofile(data)
        await run.start_coordinator()
        location = str(data.parent)
        if (run.folder / "data.toml").exists():
            arguments = ("data-server", str(run.folder / "data.toml"), "--coordinator", run.url, "--port", "0")
            location = f"tcp://{(await run.start_server('data-server', *arguments))[1]}"
        elif folder.name == "http":
            location = await stack.enter_async_context(http_server(FileServer(data.parent))) + "/tokens.bin"
        for _ in range(2):
            await run.start_client("--data", location, trainer="null" if folder.name == "demo" else "numpy")
        document = await run.until(in_training(4))
        assert document.run_state is RunState.ROUND_TRAIN
        assert document.quarantined_batches == 0
        await run.stop_coordinator()
        await run.prove()
