"""A coordinator on the internet that writes what it likes into its documents: nothing but computing time is its own.

A real client takes part in a real run; a server between the two changes one field of one document. What the client then
opens, connects, imports and starts is what the interpreter's audit hook reports. Canaries lie about: services on this
machine, a folder, a module.
"""

import asyncio
import contextlib
import gc
import os
import sys
import warnings
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from docs.document_fields import DocumentField, document_fields
from epochal.coordinator.run.genesis import Genesis
from epochal.coordinator.serve import ServeOptions, serving
from epochal.runtime.http.http_server import Endpoint
from epochal.runtime.permissions import Permissions
from epochal.runtime.retry import RetryPolicy
from epochal.state.errors import EpochalError
from epochal.state.model.first_model import FirstModel
from epochal.trainers.first_parameters import make_first_model, model_layout
from tests.support.data.states import state_file
from tests.support.drive.watched_client import Watched, take_part, watching
from tests.support.servers.malicious_coordinator import LIAR_HOST, Lie, lying
from tests.support.thinned import thinned

LONGEST_S = 4.0
"""Time that a client which goes on in spite of a lie is watched."""
CANARY_MODULE = "canary_of_epochal"
POLICY = RetryPolicy(bound_s=0.5, first_delay_s=0.01, max_delay_s=0.05)
STATE = {
    "config__init_min_clients": 1,
    "config__total_steps": 2,
    "config__global_batch_size_start": 4,
    "config__global_batch_size_end": 4,
    "config__waiting_for_members_extra_time": 0.001,
    "model__LLM__ngram": {"context": 2, "embedding": 64, "hidden": 256},
    "merge__codec": "float32",  # results too large to go with their commitments
}


@dataclass
class Canaries:
    """Things of this machine that no run may touch.

    Attributes:
        port: of a service on this machine.
        heard: the first bytes of each connection to it.
        folder: holds a file of tokens, a script and a module.
    """

    port: int
    heard: list[bytes]
    folder: Path

    def addresses(self) -> list[str]:
        """Return hosts and ports of the service, in all the ways in which such an address can be written."""
        names = ("127.0.0.1", "127.0.0.2", "localhost", "2130706433", "0x7f000001", "0177.0.0.1", "127.1", "0.0.0.0")
        v6 = ("[::1]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[64:ff9b::7f00:1]")
        return [f"{host}:{self.port}" for host in (*names, *v6)] + ["169.254.169.254:80", "10.255.255.1:80"]


@pytest.fixture
async def canaries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Canaries]:
    folder = tmp_path / "canary"
    folder.mkdir()
    (folder / "tokens.bin").write_bytes(bytes(4096))
    (folder / f"{CANARY_MODULE}.py").write_text("class Thing:\n    pass\n")
    monkeypatch.syspath_prepend(str(folder))
    heard: list[bytes] = []

    async def hear(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            heard.append(await reader.read(65536))
            writer.write(b"HTTP/1.1 403 secret banner\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            await writer.drain()
        writer.close()

    async with await asyncio.start_server(hear, ["127.0.0.1", "::1"], 0) as server:
        yield Canaries(server.sockets[0].getsockname()[1], heard, folder)
    assert heard == []


async def _first_model(step: int) -> FirstModel:
    return make_first_model(state_file(**STATE), step, 1)


async def _watch(lie: Lie, folder: Path) -> tuple[Watched, int, str]:
    """Let a client take part in a run of which one field is a lie.

    Returns:
        What it did, how often it was lied to, and the message with which it ended.
    """
    (folder / "spool").mkdir(exist_ok=True)
    genesis = Genesis(model_layout, _first_model)
    options = ServeOptions(str(folder / "run"), Endpoint(port=0), genesis=genesis)
    ended = ""
    async with serving(state_file(**STATE), options) as running, lying(running.url, lie) as (url, liar):
        with watching() as watched, contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LONGEST_S):
                try:
                    await take_part(url, folder / "spool", Permissions.of_volunteer(networks=[LIAR_HOST]), POLICY)
                except (EpochalError, BaseExceptionGroup) as error:
                    ended = str(error)
        own = ((LIAR_HOST, url), ("127.0.0.1", running.url))
        watched.connected -= {(host, int(each.rpartition(":")[2])) for host, each in own}
        with warnings.catch_warnings():  # files of a client that was given up in the middle of something
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect()
        return watched, liar.told, ended


def _leaks(watched: Watched, canary: Path, folder: Path) -> list[str]:
    """Return what the client did that no run may make it do."""
    own = (str(folder.parent), "/dev/null")  # a client that was given up may still be closing its files
    written = [path for path in watched.written if not path.startswith(own) and "__pycache__" not in path]
    written += [path for path in watched.written if path.startswith(str(canary))]
    found = [f"connected {place}" for place in watched.connected]
    found += [f"wrote {path}" for path in written]
    found += [f"read {path}" for path in watched.read if path.startswith(str(canary)) or path in _SECRETS]
    found += [f"imported {name}" for name in watched.imported if name.startswith(CANARY_MODULE)]
    return found + [f"started {program}" for program in watched.started]


_SECRETS = frozenset({"/etc/passwd", "/proc/self/environ", os.path.expanduser("~/.netrc")})


@pytest.mark.nightly
async def test_client_of_an_honest_coordinator_trains_to_the_end(canaries: Canaries, tmp_path: Path) -> None:
    watched, told, ended = await _watch(Lie("StateFile", ("run_id",), "test-run"), tmp_path)
    assert (told, ended) != (0, "")
    assert any(path.startswith(str(tmp_path / "spool")) for path in watched.written)
    assert _leaks(watched, canaries.folder, tmp_path) == []


@pytest.mark.nightly
async def test_client_listens_nowhere(tmp_path: Path) -> None:
    watched, _, _ = await _watch(Lie("StateFile", ("run_id",), "test-run"), tmp_path)
    assert watched.bound == set()


LOCATION = ("model", "LLM", "data_location")
TOKENS = {"token_size_in_bytes": "TwoBytes", "shuffle": "DontShuffle"}
NUMBERS = {"start_index": 0, "n_left_pad_zeros": 1, "num_files": 2}
BUCKETS = {
    "S3": {"bucket_name": "data", "filter_directory": ""},
    "Azure": {"account_name": "acct", "container_name": "data", "filter_directory": ""},
}


def _http(location: Any) -> Any:
    return {"Http": {"location": location, **TOKENS}}


def _lies_about_addresses(address: str) -> list[Lie]:
    """Return a lie for each place at which a document names an address."""
    url = f"http://{address}/x"
    locations: list[Any] = [
        {"Server": address},
        {"WeightedHttp": f"{url}.json#sha256={'0' * 64}"},
        {"Preprocessed": f"{url}.parquet"},
        _http({"SingleUrl": url}),
        _http({"Urls": [url, f"{url}2"]}),
        _http(
            {"NumberedFiles": {"url_template": f"{url}{{}}", "start_index": 0, "n_left_pad_zeros": 1, "num_files": 2}}
        ),
        *(_http({kind: {**fields, "endpoint": f"http://{address}"}}) for kind, fields in BUCKETS.items()),
    ]
    return [
        *(Lie("StateFile", LOCATION, location) for location in locations),
        Lie("UploadGrant", (), {"delivered": False, "url": url, "headers": {"X-Aws-Token": "1"}, "expires_in_s": 60.0}),
        Lie("/v1/blobs/", (), url),
        Lie("/v1/runs/test-run/clients", (), url),
    ]


PLACES = range(len(_lies_about_addresses("127.0.0.1:1")))


@thinned("place", PLACES)
async def test_address_in_a_document_is_not_connected(place: int, canaries: Canaries, tmp_path: Path) -> None:
    lie = _lies_about_addresses(f"127.0.0.1:{canaries.port}")[place]
    watched, told, ended = await _watch(lie, tmp_path)
    assert told, "the lie never reached the client"
    assert _leaks(watched, canaries.folder, tmp_path) == [], ended


@pytest.mark.nightly
@thinned("way", range(14))
async def test_address_written_in_another_way_is_not_connected(way: int, canaries: Canaries, tmp_path: Path) -> None:
    lie = Lie("StateFile", LOCATION, _http({"SingleUrl": f"http://{canaries.addresses()[way]}/x"}))
    watched, told, ended = await _watch(lie, tmp_path)
    assert told
    assert _leaks(watched, canaries.folder, tmp_path) == [], ended


@thinned("variant", ["Local", "Preprocessed", "WeightedHttp"])
@thinned("form", ["{}", "file://{}", "{}/../canary", "/proc/self/environ", "/etc/passwd"])
async def test_path_in_a_document_is_not_opened(variant: str, form: str, canaries: Canaries, tmp_path: Path) -> None:
    path = form.format(canaries.folder / "tokens.bin" if variant == "Local" else canaries.folder)
    watched, told, ended = await _watch(Lie("StateFile", LOCATION, {variant: path}), tmp_path)
    assert told
    assert _leaks(watched, canaries.folder, tmp_path) == [], ended


CODE = [
    Lie("StateFile", ("packing",), {"task_encoder": f"{CANARY_MODULE}:Thing"}),
    Lie("StateFile", ("packing",), {"task_encoder": CANARY_MODULE}),
    Lie("StateFile", ("model", "LLM", "custom"), {"trainer": f"{CANARY_MODULE}:Thing"}),
    Lie("ModelSpec", (), {"architecture": "Custom", "custom": {"trainer": f"{CANARY_MODULE}:Thing"}}),
    Lie("ModelSpec", (), {"architecture": "HfAuto", "hf": {"auto_map": {"AutoModel": f"{CANARY_MODULE}.Thing"}}}),
]


@thinned("lie", CODE, ids=lambda lie: ".".join((lie.document, *lie.steps)))
async def test_code_in_a_document_is_not_imported(lie: Lie, canaries: Canaries, tmp_path: Path) -> None:
    watched, told, ended = await _watch(lie, tmp_path)
    assert told
    assert _leaks(watched, canaries.folder, tmp_path) == [], ended
    assert CANARY_MODULE not in sys.modules


def _hostile_values(canaries: Canaries) -> st.SearchStrategy[Any]:
    address = canaries.addresses()[0]
    texts = [
        *("", "\x1b]0;x\x07", "\u202etxt", "a\r\nX-Evil: 1", "\x00", "../../../../tmp/x", "x" * 70_000),
        *(str(canaries.folder), f"file://{canaries.folder}", f"http://{address}/", f"tcp://{address}", address),
        *(f"{CANARY_MODULE}:Thing", f"{CANARY_MODULE}.Thing", "~/.netrc", "$HOME", "env:HOME", "f" * 64),
    ]
    numbers = [-1, 0, 1, 2**31, 2**63, 10**30, -(10**30), 1e300, 1e-300, -0.5]
    plain: st.SearchStrategy[Any] = st.sampled_from([*texts, *numbers, None, True, [], {}])
    keys = st.sampled_from(texts)
    return st.recursive(
        plain, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3), max_leaves=4
    )


OF_OTHERS = ("Mix", "MixEntry", "Welcome", "DataFailure")
SLOW = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
PARTS = 20


@cache
def swept() -> list[DocumentField]:
    """Return the fields of the documents that come from a coordinator itself."""
    return [field for field in document_fields() if field.document not in OF_OTHERS]


@pytest.mark.nightly
@settings(max_examples=25, suppress_health_check=SLOW)
@given(data=st.data())
def test_any_value_in_any_field_does_no_harm(
    data: st.DataObject, canaries: Canaries, tmp_path_factory: pytest.TempPathFactory
) -> None:
    field = data.draw(st.sampled_from(swept()))
    _check_does_no_harm(data.draw(_hostile_values(canaries)), field, canaries, tmp_path_factory)


@pytest.mark.nightly
@pytest.mark.parametrize("part", range(PARTS))
@settings(max_examples=2, suppress_health_check=SLOW)
@given(data=st.data())
def test_hostile_value_in_each_field_does_no_harm(
    data: st.DataObject, part: int, canaries: Canaries, tmp_path_factory: pytest.TempPathFactory
) -> None:
    for field in swept()[part::PARTS]:
        _check_does_no_harm(data.draw(_hostile_values(canaries), field.name), field, canaries, tmp_path_factory)


def _check_does_no_harm(
    value: Any, field: DocumentField, canaries: Canaries, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("swept")
    steps = tuple(step for part in field.path.split(".") for step in part.replace("[]", ".[]").split(".") if step)
    watched, _, ended = asyncio.run(_watch(Lie(field.document, steps, value), folder))
    assert _leaks(watched, canaries.folder, folder) == [], ended
