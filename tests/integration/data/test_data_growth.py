"""Files that are appended to the data of a run that goes on: real processes, each with a folder of its own."""

import signal
from pathlib import Path

import numpy as np
import pytest
import tomli_w

from epochal.coordinator_client.operator import connect_operator
from epochal.data_providers.open_data import run_data
from epochal.data_providers.protocol import DatasetSpec
from epochal.data_providers.providers.local import LocalDataProvider
from epochal.data_providers.sources.renewed_manifest import write_manifest
from epochal.state.config.state_file import StateFile
from epochal.state.generations import DataAppend, SizedDataset
from epochal.state.intervals import DataIds
from epochal.state.phase_names import RunState
from tests.support.bounds import BOUND_S
from tests.support.drive.processes import RealRun, in_training, real_run
from tests.support.servers.ports import free_port

SEQ_LEN = 16
BEFORE, APPENDED = 60, 30
DATA = {"Http": {"location": {"SingleUrl": "http://127.0.0.1:1/x.bin"}, "token_size_in_bytes": "TwoBytes"}}
SHUFFLED = {"Http": DATA["Http"] | {"shuffle": {"Seeded": list(range(32))}}}
ENDLESS = {"config__total_steps": 100_000}


def write_file(folder: Path, name: str, count: int, first: int) -> None:
    """Write sequences whose first two tokens say which one it is."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = (np.arange(count * SEQ_LEN) % 251).reshape(count, SEQ_LEN).astype("<u2")
    rows[:, 0] = first + np.arange(count)
    rows.tofile(folder / name)


def write_before(*folders: Path) -> None:
    for folder in folders:
        write_file(folder, "a.bin", BEFORE, 0)


def write_appended(*folders: Path) -> None:
    for folder in folders:
        write_file(folder, "b.bin", APPENDED, BEFORE)


async def append(run: RealRun, *arguments: str) -> str:
    ran = await run.command_here("data", "append", run.url, *arguments, EPOCHAL_ADMIN_TOKEN=run.admin_token)
    ran.expect(0)
    return ran.out


async def numbers_of(state: StateFile, folder: Path, data_ids: DataIds) -> list[int]:
    """Return which sequence each data index is, as a client of the run reads it."""
    _, spec = run_data(state, str(folder))
    provider = LocalDataProvider.open(folder, spec)
    assert provider.order.follow(state.data_generations) == len(state.data_generations)
    rows: list[int] = (await provider.get_samples(data_ids)).rows()[:, 0].tolist()
    await provider.aclose()
    return rows


async def test_appended_files_count_from_a_pass_of_their_own(tmp_path: Path) -> None:
    folders = [tmp_path / f"data-{number}" for number in range(3)]
    write_before(*folders)
    location = {"model__LLM__data_location": SHUFFLED}
    async with real_run(tmp_path / "run", **ENDLESS, config__init_min_clients=3, **location) as run:
        clients = [await run.start_client("--data", str(folder)) for folder in folders]
        await run.until(in_training(2))
        write_appended(*folders[:2])
        said = await append(run, str(folders[0]))
        assert "samples in 2 files" in said
        document = await run.until(in_training(3))
        state = await run.watch.api.config(document.config_sha256)
        old, new = state.data_generations
        assert (old.sample_count, new.sample_count) == (BEFORE, BEFORE + APPENDED)
        assert new.first_data_index % BEFORE == 0

        # A client that never gets the new files is refused in words once the larger data are near.
        assert await clients[2].wait(BOUND_S) == 1
        assert "the run's data have grown" in clients[2].log_path.read_text()
        assert f"they are {BEFORE + APPENDED} samples in 2 files" in clients[2].log_path.read_text()
        assert run.events(clients[2], "data_are_behind")

        # Nor does it begin to fetch and replay the run when it is started again.
        late = await run.start_client("--data", str(folders[2]))
        assert await late.wait(BOUND_S) == 2
        assert "1 of the files are here: add the others and start" in late.log_path.read_text()

        # One that is killed and started again, with the new folder alone, goes on.
        clients[1].kill()
        assert await clients[1].wait(BOUND_S) == -signal.SIGKILL
        key = str(run.folder / f"{clients[1].name}.key")
        again = await run.start_client("--data", str(folders[1]), "--key", key)
        reached = await run.until(lambda found: found.cursor > new.first_data_index + 2 * new.sample_count)
        assert reached.data_fingerprint == new.fingerprint
        await run.stop_coordinator()
        run.end_soon(**location)
        await run.start_coordinator()
        report = await run.finish(without=(clients[1], clients[2], late))
        assert again.process.returncode == 0
        assert report.unapplied == 0

        first_pass = DataIds(new.first_data_index, new.first_data_index + new.sample_count - 1)
        seen = await numbers_of(state, folders[0], first_pass)
        assert sorted(seen) == list(range(BEFORE + APPENDED)), "every sample of the new pass once"
        before = DataIds(0, new.first_data_index - 1)
        assert max(await numbers_of(state, folders[0], before)) == BEFORE - 1
        assert (await run.status()).data_generations == state.data_generations
        assert (await run.status()).run_state is RunState.FINISHED


@pytest.mark.nightly
async def test_data_server_serves_appended_files_without_a_restart(tmp_path: Path) -> None:
    """The data have a manifest, so that their fingerprint is over contents, before and after. The first is pinned."""
    write_before(tmp_path / "data")
    write_manifest(tmp_path / "data", ["a.bin"])
    config, port = tmp_path / "data.toml", free_port()
    config.write_text(tomli_w.dumps({"dir": "data", "token_size": "TwoBytes", "seq_len": SEQ_LEN}))
    pinned = LocalDataProvider.open(tmp_path / "data", DatasetSpec(2, SEQ_LEN)).fingerprint
    location = {
        "model__LLM__data_location": {"Server": f"127.0.0.1:{port}"},
        "config__data_fingerprint": pinned,
    }
    async with real_run(tmp_path / "run", 2, **ENDLESS, **location) as run:
        server, _ = await run.start_server("data", "data-server", str(config), "--coordinator", run.url)
        await run.until(in_training(2))
        write_appended(tmp_path / "data")
        write_manifest(tmp_path / "data", ["a.bin", "b.bin"])
        await append(run, str(config))
        document = await run.until(in_training(3))
        _, new = (await run.watch.api.config(document.config_sha256)).data_generations
        order = LocalDataProvider.open(tmp_path / "data", DatasetSpec(2, SEQ_LEN)).order
        assert (new.fingerprint, order.identified_by) == (order.fingerprint, "contents")
        reached = await run.until(lambda found: found.cursor > new.first_data_index + new.sample_count)
        assert reached.data_fingerprint == new.fingerprint
        assert (await run.status()).ready_count == 2
        assert run.events(server, "data_have_grown")
        await run.stop_coordinator()
        run.end_soon(**location)
        await run.start_coordinator()
        report = await run.finish()
        assert (report.quarantined, report.unapplied) == (0, 0)


async def test_append_of_what_is_not_the_runs_data_is_refused_in_words(tmp_path: Path) -> None:
    write_before(tmp_path / "data", tmp_path / "before")
    write_file(tmp_path / "before", "Z.bin", APPENDED, BEFORE)  # before a.bin, by code point
    write_before(tmp_path / "theirs")
    np.full(2 * SEQ_LEN, 60_000, "<u2").tofile(tmp_path / "theirs" / "b.bin")
    mix = tmp_path / "mix.json"
    mix.write_text('[{"location": {"Local": "data"}, "weight": 1}]')
    location = {"model__LLM__data_location": {"Local": str(tmp_path / "data")}}
    async with real_run(tmp_path / "run", 1, **ENDLESS, **location) as run:
        await run.until(in_training(2))
        for place, message in (
            (tmp_path / "data", "no file was appended"),
            (tmp_path / "before", "names of appended files must come after those of all others"),
            (mix, "only data in files can grow"),
            (tmp_path / "theirs", "token 60000 at position 0; the model's vocabulary allows 0 to 255"),
            (tmp_path / "nowhere", "No such file or directory"),
        ):
            arguments = ("data", "append", run.url, str(place))
            ran = await run.command_here(*arguments, EPOCHAL_ADMIN_TOKEN=run.admin_token)
            assert ran.code != 0
            assert message in ran.err
        write_appended(tmp_path / "data")
        (await run.command_here("data", "append", run.url, EPOCHAL_ADMIN_TOKEN="wrong")).expect(1, "admin token")
        assert (await run.status()).data_generations == ()
        await append(run, "--from", "100000")
        assert len((await run.status()).data_generations) == 2
        shown = await run.command_here("fingerprint", run.url)
        shown.expect(0, "(append)", f"{BEFORE + APPENDED} samples in 2 files")
        (await run.command_here("status", run.url)).expect(0, f"{BEFORE + APPENDED} samples in 2 files")
        await append(run, "--undo")
        assert (await run.status()).data_generations == ()


async def test_members_do_not_take_appended_files_on_which_nobody_trains(tmp_path: Path) -> None:
    """What the command refuses, said to the coordinator by hand."""
    served, own = tmp_path / "data", tmp_path / "own"
    write_before(served, own)
    config, port = tmp_path / "data.toml", free_port()
    config.write_text(tomli_w.dumps({"dir": "data", "token_size": "TwoBytes", "seq_len": SEQ_LEN}))
    location = {"model__LLM__data_location": {"Server": f"127.0.0.1:{port}"}}
    async with real_run(tmp_path / "run", **ENDLESS, **location) as run:
        server, _ = await run.start_server("data", "data-server", str(config), "--coordinator", run.url)
        client = await run.start_client("--data", str(own))
        document = await run.until(in_training(2))
        for folder in (served, own):
            np.full(2 * SEQ_LEN, 60_000, "<u2").tofile(folder / "b.bin")
        order = LocalDataProvider.open(own, DatasetSpec(2, SEQ_LEN)).order
        before = SizedDataset(order.fingerprint_of_first(1), BEFORE, 1)
        async with await connect_operator(run.url, run.admin_token) as operator:
            await operator.append_data(DataAppend(before, SizedDataset(order.fingerprint, BEFORE + 2, 2), 100_000))
        for member in (server, client):
            refused = await run.until_logged(member, "appended_data_refused", while_answering=False)
            assert "token 60000 at position 0; the model's vocabulary allows 0 to 255" in refused["reason"]
        assert document.data_fingerprint == before.fingerprint
        await append(run, "--undo")
        await run.until(in_training((await run.status()).step + 2))
