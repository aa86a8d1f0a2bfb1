"""Files of a volunteer: a run opens those below folders that he named, and a client writes where the page says."""

import asyncio
import hashlib
import io
import json
import os
import sys
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from epochal.coordinator_client.client_key import ClientKey
from epochal.data_providers import open_data
from epochal.data_providers.locations import parse_location
from epochal.data_providers.open_data import OpenOptions, open_location, open_provider
from epochal.data_providers.protocol import CorruptData, DataProvider, DatasetSpec
from epochal.data_providers.providers.local_places import allowed_path
from epochal.data_providers.sources.cache import MIN_CACHE_BYTES, BlockCache
from epochal.data_providers.sources.manifest import MANIFEST_NAME
from epochal.data_providers.sources.renewed_manifest import write_manifest
from epochal.runtime.permissions import OWNERS, Permissions
from epochal.state.errors import InvalidInput, NotAllowed
from epochal.state.intervals import DataIds
from epochal.trainers.sources.folder_source import INDEX_FILE
from epochal.trainers.sources.local_model import local_source
from tests.support.bounds import BOUND_S
from tests.support.data.states import state_file, state_text
from tests.support.data.token_files import SEQ_LEN, write_tokens
from tests.support.drive.processes import RealRun, prepared_run, run_command
from tests.support.drive.watched_client import watching
from tests.support.servers.data_http import FileServer, http_server
from tests.support.thinned import thinned

SECRET = '{"text": "what I asked my assistant last night"}\n'
PAGE = Path(__file__).parents[3] / "docs" / "volunteer-safety.md"
WRITES = """
import json, os, sys
from tests.support.thinned import thinned
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT

def seen(event, arguments):
    if event == "open" and isinstance(arguments[0], (str, bytes)):
        mode, flags = arguments[1], arguments[2]
        if (isinstance(mode, str) and set(mode) & set("wax+")) or (isinstance(flags, int) and flags & WRITING):
            note(os.fsdecode(arguments[0]))
    elif event in ("os.rename", "os.symlink", "os.link"):
        note(os.fsdecode(arguments[1]))
    elif event in ("os.mkdir", "tempfile.mkdtemp"):
        note(os.fsdecode(arguments[0]))

def note(path):
    os.write(LOG, (json.dumps(os.path.abspath(path)) + "\\n").encode())

LOG = os.open(os.environ["WRITES_LOG"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
sys.addaudithook(seen)
from epochal.cli.main import main
main()
"""


def finetuning(place: str) -> dict[str, Any]:
    return {"model__LLM__data_type": "Finetuning", "model__LLM__data_location": {"Local": place}}


async def refused(run: RealRun, *arguments: str) -> str:
    """Run a client that must end because of what the run names, and return what it says."""
    ran = await run.command("client", run.url, *arguments)
    ran.expect(2, "see: epochal explain not-allowed")
    return ran.err


@thinned("kind", ["chats", "file", "rows", "local_mix"])
async def test_file_that_a_run_names_is_not_opened_unasked(tmp_path: Path, kind: str) -> None:
    secret = tmp_path / "home" / ".assistant" / "history.jsonl"
    secret.parent.mkdir(parents=True)
    secret.write_text(SECRET * 40)
    tokens = write_tokens(tmp_path / "home" / "tokens")
    (tmp_path / "home" / "mix.json").write_text('[{"location": {"Local": "tokens"}, "weight": 1}]')
    overrides = {
        "chats": finetuning(str(secret)),
        "file": {"model__LLM__data_location": {"Local": str(tokens)}},
        "rows": {"model__LLM__data_location": {"Preprocessed": str(tmp_path / "home")}},
        "local_mix": {"model__LLM__data_location": {"WeightedHttp": str(tmp_path / "home" / "mix.json")}},
    }[kind]
    (tmp_path / "elsewhere").mkdir()
    async with prepared_run(tmp_path / "run", **overrides) as run:
        await run.start_coordinator()
        for arguments in ((), ("--allow-local", str(tmp_path / "elsewhere"))):
            message = await refused(run, *arguments)
            assert "the run names" in message
            assert "--allow-local" in message
            assert "--data" in message


@pytest.mark.nightly
async def test_file_below_an_allowed_folder_is_trained_on(tmp_path: Path) -> None:
    tokens = write_tokens(tmp_path / "home" / "tokens")
    location = {"model__LLM__data_location": {"Local": str(tokens)}}
    async with prepared_run(tmp_path / "run", **location, config__total_steps=2) as run:
        await run.start_coordinator()
        await run.start_client("--allow-local", str(tmp_path / "home"))
        await run.start_client("--data", str(tokens))
        await run.start_client("--own-run")
        assert (await run.finish()).rounds == 2


async def test_mix_from_elsewhere_names_no_path(tmp_path: Path) -> None:
    """Neither the mix of a run, whoever allows its folder, nor one that the owner of the machine named himself."""
    tokens = write_tokens(tmp_path / "home" / "tokens")
    text = json.dumps([{"location": {"Local": str(tokens)}, "weight": 1}])
    (tmp_path / "www").mkdir()
    (tmp_path / "www" / "mix.json").write_text(text)
    async with http_server(FileServer(tmp_path / "www")) as url:
        pinned = f"{url}/mix.json#sha256={hashlib.sha256(text.encode()).hexdigest()}"
        permissions = Permissions.of_volunteer(folders=[tmp_path], networks=["127.0.0.0/8"])
        state = state_file(model__LLM__data_location={"WeightedHttp": pinned})
        with pytest.raises(NotAllowed, match="a mix from elsewhere names URLs only"):
            await open_provider(state, lambda: "", permissions)
        with pytest.raises(NotAllowed, match="a mix from elsewhere names URLs only"):
            await open_provider(state_file(), lambda: "", permissions, f"{url}/mix.json")


async def test_mix_that_changed_since_it_was_pinned_is_refused(tmp_path: Path) -> None:
    old, new = (json.dumps([{"location": "Dummy", "weight": weight}]) for weight in (1, 2))
    (tmp_path / "mix.json").write_text(new)
    async with http_server(FileServer(tmp_path)) as url:
        permissions = Permissions.of_volunteer(networks=["127.0.0.0/8"])

        async def opened(text: str) -> DataProvider:
            pinned = f"{url}/mix.json#sha256={hashlib.sha256(text.encode()).hexdigest()}"
            state = state_file(model__LLM__data_location={"WeightedHttp": pinned})
            return await open_provider(state, lambda: "", permissions)

        with pytest.raises(CorruptData, match="the run's is"):
            await opened(old)
        await (await opened(new)).aclose()


async def test_mix_that_nobody_pinned_is_refused_with_the_line_to_write(tmp_path: Path) -> None:
    text = '[{"location": "Dummy", "weight": 1}]'
    (tmp_path / "www").mkdir()
    (tmp_path / "www" / "mix.json").write_text(text)
    async with http_server(FileServer(tmp_path / "www")) as url:
        place = f"{url}/mix.json"
        path = tmp_path / "state.toml"
        path.write_text(state_text(model__LLM__data_location={"WeightedHttp": place}))
        line = f'WeightedHttp = "{place}#sha256='
        (await run_command("check", str(path), "--network")).expect(2, line)
        (await run_command("coordinator", str(path), "--store", str(tmp_path / "run"), "--port", "0")).expect(2, line)
        state = state_file(model__LLM__data_location={"WeightedHttp": place})
        with pytest.raises(NotAllowed, match="#sha256=SHA-256-IN-HEX"):
            await open_provider(state, lambda: "", Permissions.of_volunteer())


def allowed(folder: Path, packs: bool = False) -> OpenOptions:
    return OpenOptions("run", None, Permissions.of_volunteer(folders=[folder]), packs=packs)


async def open_in(folder: Path, place: Path) -> Any:
    return await open_location(parse_location(str(place)), DatasetSpec(2, SEQ_LEN), allowed(folder))


@pytest.mark.parametrize("name", ["a.bin", "below/a.bin"])
async def test_link_in_an_allowed_folder_does_not_lead_out_of_it(tmp_path: Path, name: str) -> None:
    secret = write_tokens(tmp_path / "secret")
    folder = tmp_path / "data"
    write_tokens(folder)
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).symlink_to(next(secret.glob("*")) if secret.is_dir() else secret)
    for place in (folder, folder / name):
        with pytest.raises(NotAllowed, match="the run names"):
            await open_in(folder, place)


@pytest.mark.parametrize("name", ["a.idx", "epochal-manifest.json"])
async def test_link_beside_an_allowed_file_does_not_lead_out(tmp_path: Path, name: str) -> None:
    (tmp_path / "secret").write_bytes(bytes(64))
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "a.bin").write_bytes(bytes(4 * SEQ_LEN))
    (folder / name).symlink_to(tmp_path / "secret")
    with pytest.raises(NotAllowed, match="the run names"):
        await open_in(folder, folder / "a.bin")


async def test_link_of_the_owners_own_data_leads_where_it_likes(tmp_path: Path) -> None:
    elsewhere, folder = write_tokens(tmp_path / "elsewhere"), tmp_path / "data"
    folder.mkdir()
    (folder / "a.bin").symlink_to(next(elsewhere.glob("*")) if elsewhere.is_dir() else elsewhere)
    state = state_file(model__LLM__data_location={"Local": "/of/somebody/else"})
    provider = await open_provider(state, lambda: "", Permissions.of_volunteer(), str(folder))
    assert (await provider.get_samples(DataIds(0, 0))).sample_count == 1


async def test_link_within_an_allowed_folder_keeps_its_name(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    np.arange(SEQ_LEN * 4, dtype="<u2").tofile(folder / ".stored")
    (folder / "a.bin").symlink_to(folder / ".stored")
    provider = await open_in(folder, folder)
    assert (await provider.get_samples(DataIds(0, 0))).sample_count == 1
    np.arange(SEQ_LEN * 4, dtype="<u2").tofile(tmp_path / "a.bin")
    assert provider.fingerprint == (await open_in(tmp_path, tmp_path / "a.bin")).fingerprint


@pytest.mark.parametrize("place", ["../secret", "/etc"])
async def test_data_file_in_an_allowed_folder_names_no_other(tmp_path: Path, place: str) -> None:
    write_tokens(tmp_path / "secret")
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "data.toml").write_text(f'dir = "{place}"\ntoken_size = 2\nseq_len = {SEQ_LEN}\n')
    with pytest.raises(NotAllowed, match="the run names"):
        await open_in(folder, folder / "data.toml")


async def test_link_that_moves_after_it_was_checked_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, link = tmp_path / "data", tmp_path / "data" / "via"
    for number, place in enumerate((folder / "own" / "t", tmp_path / "secret" / "t")):
        place.mkdir(parents=True)
        np.full(SEQ_LEN * 4, number, "<u2").tofile(place / "a.bin")
    link.symlink_to(folder / "own")
    (folder / "data.toml").write_text(f'dir = "via/t"\ntoken_size = 2\nseq_len = {SEQ_LEN}\n')

    def checked(path: Path, permissions: Permissions) -> Path:
        found = allowed_path(path, permissions)
        if path.name == "t":
            link.unlink()
            link.symlink_to(tmp_path / "secret")
        return found

    monkeypatch.setattr(open_data, "allowed_path", checked)
    provider = await open_in(folder, folder / "data.toml")
    assert not (await provider.get_samples(DataIds(0, 0))).input_ids.any()


async def test_path_of_a_mix_in_an_allowed_folder_stays_in_it(tmp_path: Path) -> None:
    tokens, folder = write_tokens(tmp_path / "secret"), tmp_path / "data"
    folder.mkdir()
    (folder / "mix.json").write_text(json.dumps([{"location": {"Local": str(tokens)}, "weight": 1}]))
    with pytest.raises(NotAllowed, match=f"the run names {tokens}"):
        await open_in(folder, folder / "mix.json")


async def test_manifest_opens_no_file_elsewhere(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    for place in (folder, tmp_path / "secret"):
        place.mkdir()
        (place / "a.bin").write_bytes(bytes(4 * SEQ_LEN))
    write_manifest(folder, ["a.bin"])
    entries = json.loads((folder / MANIFEST_NAME).read_text())
    entries["files"]["../secret/a.bin"] = entries["files"]["a.bin"]
    (folder / MANIFEST_NAME).write_text(json.dumps(entries))
    with watching() as watched, pytest.raises(CorruptData, match=r"\.\./secret/a\.bin"):
        await open_in(folder, folder)
    assert not [path for path in watched.read if "secret" in path]


async def test_archive_writes_nothing_under_its_own_names(tmp_path: Path) -> None:
    served = tmp_path / "served"
    served.mkdir()
    with tarfile.open(served / "a.tar.gz", "w:gz") as archive:
        for name in ("../../evil.json", f"{tmp_path}/evil.json", "plain.json"):
            member = tarfile.TarInfo(name)
            member.size = len(SECRET)
            archive.addfile(member, io.BytesIO(SECRET.encode()))
    cache = tmp_path / "cache" / "blocks"
    location = parse_location(str(served / "a.tar.gz"))
    options = OpenOptions("run", None, OWNERS, packs=True, cache=BlockCache(cache, MIN_CACHE_BYTES))
    with watching() as watched:
        await (await open_location(location, DatasetSpec(2, SEQ_LEN), options)).aclose()
    assert [path for path in watched.written if Path(path).is_relative_to(tmp_path)], "something was unpacked"
    assert not [path for path in watched.written if "evil" in path or "plain" in path]


def test_hidden_link_that_the_index_of_a_model_names_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / ".s.safetensors").symlink_to(tmp_path.parent / "secret.safetensors")
    (tmp_path / INDEX_FILE).write_text(json.dumps({"weight_map": {"w": ".s.safetensors"}}))
    with pytest.raises(InvalidInput, match="not hidden"):
        list(local_source(tmp_path).tensors({"w": (1,)}))


@pytest.mark.nightly
async def test_client_writes_only_where_the_page_says(tmp_path: Path) -> None:
    places = {name: tmp_path / name for name in ("cache", "spool", "home", "here", "temp", "keys")}
    for folder in places.values():
        folder.mkdir()
    tokens = write_tokens(tmp_path / "data")
    log = tmp_path / "writes"
    more: dict[str, Any] = {"merge__codec": "int8", "merge__error_feedback": True, "config__total_steps": 3}
    more["model__LLM__ngram"] = {"context": 4, "embedding": 64, "hidden": 256}  # too large for memory alone
    location = {"model__LLM__data_location": {"Local": str(tokens)}}
    async with prepared_run(tmp_path / "run", **location, **more) as run:
        await run.start_coordinator()
        command = (
            *("client", run.url, "--allow-local", str(tmp_path / "data"), "--key", str(places["keys"] / "me.key")),
            *("--new-key", "--cache", str(places["cache"]), "--spool", str(places["spool"])),
        )
        uncounted = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_")}
        environment = uncounted | {
            "HOME": str(places["home"]),
            "TMPDIR": str(places["temp"]),
            "WRITES_LOG": str(log),
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONPATH": str(Path(__file__).parents[3]),
        }
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", WRITES, *command), cwd=places["here"], env=environment
        )
        await run.start_client()
        async with asyncio.timeout(BOUND_S):
            assert await process.wait() == 0
    written = {Path(json.loads(line)) for line in log.read_text().splitlines()}
    expected = [places[name] for name in ("cache", "spool", "keys", "temp")]
    elsewhere = {path for path in written if not any(path.is_relative_to(place) for place in expected)}
    assert {path for path in elsewhere if not path.is_relative_to("/dev")} == set()
    for name in ("cache", "spool", "keys"):
        assert any(path.is_relative_to(places[name]) for path in written), name
    assert list(places["home"].iterdir()) + list(places["here"].iterdir()) == []
    text = PAGE.read_text(encoding="utf-8")
    for option in ("--cache", "--spool", "--key", "TMPDIR"):
        assert option in text


async def test_member_that_makes_the_first_model_opens_no_file_unasked(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    place = tmp_path / "home" / "model.safetensors"
    model = {"model__LLM__checkpoint": {"Local": str(place)}}
    members = {"access__mode": "keys", "access__genesis": "members"}
    key = ClientKey.from_seed(bytes([7]) * 32)
    path = tmp_path / "me.key"
    path.write_bytes(bytes([7]) * 32)
    async with prepared_run(tmp_path / "run", **model, **members, access__keys=[key.public_key]) as run:
        await run.start_coordinator()
        message = await refused(run, "--key", str(path))
        assert f"the run names {place}" in message
