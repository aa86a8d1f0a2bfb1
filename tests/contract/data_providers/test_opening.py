"""`data_providers/open_data.py`: from a state file's location, or `--data`, to a provider."""

import importlib
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from epochal.data_providers.locations import Registered, parse_location
from epochal.data_providers.open_data import OpenOptions, open_described, open_location, open_provider, served_shape
from epochal.data_providers.protocol import CorruptData, DataProvider, DatasetSpec, Rejected, SourceUnavailable
from epochal.data_providers.providers.dummy import DummyDataProvider
from epochal.data_providers.providers.ranged import RangedDataProvider
from epochal.data_providers.tcp.data_client import TcpDataProvider
from epochal.runtime.permissions import OWNERS
from epochal.state.config.data_file import parse_data_config
from epochal.state.config.data_location import DummyData, Local, Server, SingleUrl
from epochal.state.config.state_file import StateFile
from epochal.state.errors import InvalidConfig, InvalidInput
from epochal.state.intervals import DataIds
from tests.support.data.data_files import SEED, write_dataset
from tests.support.data.states import state_file
from tests.support.servers.data_http import FileServer, http_server
from tests.support.servers.data_server import serving

DATA_TOML = 'dir = "tokens"\ntoken_size = "TwoBytes"\nseq_len = 16\nshuffle_seed = ' + str(list(SEED))


def state_with(location: Any) -> StateFile:
    return state_file(model__LLM__data_location=location)


def no_ticket() -> str:
    return ""


async def opened(location: Any, override: str | None = None) -> DataProvider:
    return await open_provider(state_with(location), no_ticket, OWNERS, override)


async def first_tokens(provider: DataProvider) -> list[int]:
    tokens: list[int] = (await provider.get_samples(DataIds(0, 0))).input_ids.tolist()
    await provider.aclose()
    return tokens


@pytest.mark.parametrize(
    ("text", "location"),
    [
        ("dummy", DummyData()),
        ("tcp://data.example:7000", Server("data.example:7000")),
        ("tcp://[::1]:7000", Server("[::1]:7000")),
        ("tls://a.example:7000,b.example:7001", Server("tls://a.example:7000,b.example:7001")),
        ("https://x.example/a.bin?k=v", SingleUrl("https://x.example/a.bin?k=v")),
        ("/data/tokens", Local("/data/tokens")),
        ("tokens/data.toml", Local("tokens/data.toml")),
        ("warehouse://bucket/x", Registered("warehouse", "bucket/x")),
    ],
)
def test_location_text_of_each_form_is_read(text: str, location: Any) -> None:
    assert parse_location(text) == location


@pytest.mark.parametrize("text", ["", "tcp://", "tcp://host", "tcp://host:99999", "http://", "https:// x"])
def test_location_text_without_a_form_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="data location"):
        parse_location(text)


async def test_factory_opens_one_url_with_its_token_size_and_shuffle(tmp_path: Path) -> None:
    np.arange(1600, dtype="<u4").tofile(tmp_path / "a.bin")
    async with http_server(FileServer(tmp_path)) as url:
        location = {
            "Http": {
                "location": {"SingleUrl": f"{url}/a.bin"},
                "token_size_in_bytes": "FourBytes",
                "shuffle": {"Seeded": list(SEED)},
            }
        }
        provider = await opened(location)
        assert isinstance(provider, RangedDataProvider)
        assert provider.order.spec == DatasetSpec(4, 16, SEED)
        local = await opened(location, override=str(tmp_path / "a.bin"))
        assert local.fingerprint == provider.fingerprint
        assert await first_tokens(local) == await first_tokens(provider) != list(range(16))


async def test_factory_opens_a_data_server_and_its_data_toml_alike(tmp_path: Path) -> None:
    write_dataset(tmp_path / "tokens")
    (tmp_path / "data.toml").write_text(DATA_TOML)
    config = parse_data_config(DATA_TOML, "data.toml")
    source = await open_described(config, tmp_path)
    async with serving(source, spec=served_shape(config, source)) as (_, address):
        provider = await opened({"Server": f"127.0.0.1:{address.port}"})
        assert isinstance(provider, TcpDataProvider)
        replaced = await opened({"Server": "127.0.0.1:1"}, override=str(tmp_path / "data.toml"))
        again = await opened("Dummy", override=str(address))
        assert provider.fingerprint == replaced.fingerprint == again.fingerprint
        assert await first_tokens(provider) == await first_tokens(replaced) == await first_tokens(again)


async def test_factory_refuses_a_data_server_of_another_sequence_length() -> None:
    spec = DatasetSpec(2, 17)
    async with serving(DummyDataProvider(spec), spec=spec) as (_, address):
        with pytest.raises(CorruptData, match="17 tokens"):
            await opened({"Server": f"127.0.0.1:{address.port}"})


async def test_factory_refuses_a_data_toml_that_is_wrong_or_missing(tmp_path: Path) -> None:
    path = tmp_path / "data.toml"
    with pytest.raises(Rejected, match=r"data\.toml cannot be read: No such file"):
        await opened("Dummy", override=str(path))
    path.write_text(DATA_TOML.replace("seq_len = 16", "seq_len = 32"))
    with pytest.raises(InvalidInput, match="seq_len is 32"):
        await opened("Dummy", override=str(path))
    path.write_text(DATA_TOML.replace("seq_len", "sequence"))
    with pytest.raises(InvalidConfig, match="seq_len"):
        await opened("Dummy", override=str(path))
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidInput, match="UTF-8"):
        await opened("Dummy", override=str(path))


async def test_data_server_is_not_asked_by_who_is_no_member() -> None:
    with pytest.raises(InvalidInput, match="serves only a run's members; name the data's files or URL with --data"):
        await open_location(parse_location("tcp://127.0.0.1:1"), DatasetSpec(2, 16), OpenOptions("", None, OWNERS))


def register(folder: Path, monkeypatch: pytest.MonkeyPatch, opener: str) -> None:
    """As if a package with this opener, of the name `warehouse`, were installed."""
    package = folder / "warehouse_provider-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: warehouse-provider\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text("[epochal.data_providers]\nwarehouse = warehouse_provider:open_it\n")
    (folder / "warehouse_provider.py").write_text(opener)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "warehouse_provider", raising=False)
    importlib.invalidate_caches()


async def test_factory_opens_a_registered_provider_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opener = (
        "from epochal.data_providers.providers.dummy import DummyDataProvider\n"
        "async def open_it(location, spec):\n"
        "    provider = DummyDataProvider(spec)\n"
        "    provider.location = location\n"
        "    return provider\n"
    )
    register(tmp_path, monkeypatch, opener)
    provider = await opened("Dummy", override="warehouse://shelf/7.json")
    assert vars(provider)["location"] == "shelf/7.json"
    with pytest.raises(InvalidInput, match=r"'workshop'; allowed: az, .*, warehouse$"):
        await opened("Dummy", override="workshop://shelf/7")


@pytest.mark.parametrize(
    ("opener", "message"),
    [
        ("import absent_module", "cannot be opened: ModuleNotFoundError: .*absent_module"),
        ("other = 1", "cannot be opened: AttributeError"),
        ("async def open_it(location, spec):\n    return 1 / 0", "cannot be opened: ZeroDivisionError"),
        ("def open_it(location, spec):\n    return 7", "cannot be opened: TypeError"),
        (
            "async def open_it(location, spec):\n    return [spec]",
            "opened a list without sequence_count, fingerprint, get_samples, aclose",
        ),
    ],
)
async def test_registered_opener_that_fails_is_named(
    opener: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    register(tmp_path, monkeypatch, opener)
    with pytest.raises(InvalidInput, match=rf"'warehouse' \(warehouse_provider:open_it\) {message}"):
        await opened("Dummy", override="warehouse://shelf")


async def test_registered_opener_raises_data_errors_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = (
        "from epochal.data_providers.protocol import SourceUnavailable",
        "async def open_it(location, spec):",
        "    raise SourceUnavailable('closed on Sundays')",
    )
    register(tmp_path, monkeypatch, "\n".join(lines))
    with pytest.raises(SourceUnavailable, match=r"^closed on Sundays$"):
        await opened("Dummy", override="warehouse://shelf")
