"""Datasets of the Hugging Face Hub by name: through huggingface_hub, from a server of its API and from its cache."""

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from epochal.data_providers.locations import parse_location
from epochal.data_providers.open_data import OpenOptions, open_location
from epochal.data_providers.protocol import CorruptData, DatasetSpec, Rejected, SourceUnavailable
from epochal.data_providers.providers.preprocessed import PreprocessedDataProvider
from epochal.data_providers.sources import hub_dataset
from epochal.data_providers.sources.hub_dataset import HubDataset, downloaded, parse_hub_dataset
from epochal.runtime.permissions import OWNERS
from epochal.runtime.retry import RetryPolicy
from epochal.state.config.data_location import Preprocessed
from epochal.state.errors import InvalidInput
from epochal.state.intervals import DataIds
from tests.support.heavy import need_module
from tests.support.servers.hub_server import CONVERTED_COMMIT, FakeHub, fake_hub, point_at

NAME = "hf://datasets/org/model"
ONCE = RetryPolicy(attempts=1, first_delay_s=0.001, max_delay_s=0.001)
PACKED = OpenOptions("run", None, OWNERS, packs=True)
COMMITS = ["1" * 40, "2" * 40]


def parquet(**columns: list[Any]) -> bytes:
    need_module("pyarrow")
    import pyarrow
    import pyarrow.parquet

    found = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table(columns), found)
    return found.getvalue()


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    need_module("huggingface_hub")
    monkeypatch.setattr(hub_dataset, "HUB_RETRIES", ONCE)
    monkeypatch.setattr(downloaded, "__defaults__", (ONCE,))
    with fake_hub() as served:
        served.kind = "datasets"
        served.commit = COMMITS[0]
        point_at(served, tmp_path / "cache", monkeypatch)
        yield served


def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)


async def opened(place: str = NAME, split: str = "train") -> PreprocessedDataProvider:
    options = OpenOptions("run", None, OWNERS, packs=True, split=split)
    provider = await open_location(parse_location(place), DatasetSpec(2, 16), options)
    assert isinstance(provider, PreprocessedDataProvider)
    return provider


async def texts(provider: PreprocessedDataProvider) -> list[Any]:
    batch = await provider.get_samples(DataIds(0, provider.sequence_count - 1))
    await provider.aclose()
    assert batch.is_text
    text = batch.input_ids.astype(np.uint8).tobytes()
    return [json.loads(text[a:b]) for a, b in zip(batch.offsets, batch.offsets[1:], strict=False)]


def fill(hub: FakeHub) -> None:
    hub.files = {
        "README.md": b"about",
        "data/train-00000-of-00002.parquet": parquet(text=["a", "né"], id=[1, 2], image=[b"\xff", None]),
        "data/train-00001-of-00002.parquet": parquet(text=["c"], id=[3], image=[b"\xff"]),
        "data/test-00000-of-00001.parquet": parquet(text=["t"], id=[4], image=[b"\xff"]),
    }


ROWS = [{"text": "a", "id": 1}, {"text": "né", "id": 2}, {"text": "c", "id": 3}]


async def test_rows_are_records_and_only_the_split_is_downloaded(hub: FakeHub) -> None:
    fill(hub)
    assert await texts(await opened()) == ROWS
    assert await texts(await opened(split="test")) == [{"text": "t", "id": 4}]
    assert not [path for _, path in hub.requests if path.endswith("README.md")]
    hub.requests.clear()
    assert await texts(await opened()) == ROWS
    assert not [path for _, path in hub.requests if "/resolve/" in path], "the files are in the cache"


async def test_token_rows_are_samples_of_a_run_that_does_not_pack(hub: FakeHub) -> None:
    hub.files = {"train.parquet": parquet(inputs=[[1, 2], [3]])}
    options = OpenOptions("run", None, OWNERS)
    for location in (parse_location(NAME), Preprocessed(NAME)):
        provider = await open_location(location, DatasetSpec(2, 2), options)
        assert (await provider.get_samples(DataIds(0, 1))).input_ids.tolist() == [1, 2, 3]
    fill(hub)
    hub.commit = COMMITS[1]
    with pytest.raises(CorruptData, match="one must be 'inputs', as the run does not pack"):
        await open_location(parse_location(NAME), DatasetSpec(2, 2), options)


async def test_revision_is_pinned_to_its_commit_in_the_fingerprint(hub: FakeHub) -> None:
    fill(hub)
    first = await opened()
    assert first.description.identified_by == "contents"
    assert first.description.files[0].content
    hub.commit = COMMITS[1]
    second = await opened()
    assert first.fingerprint != second.fingerprint
    assert (await opened(f"{NAME}@{COMMITS[1]}")).fingerprint == second.fingerprint
    assert (await opened(f"{NAME}@v1")).fingerprint == second.fingerprint


@pytest.mark.parametrize("how", ["offline", "unreachable"])
async def test_cache_serves_without_a_network(hub: FakeHub, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    fill(hub)
    online = await opened()
    if how == "offline":
        offline(monkeypatch)
    else:
        hub.fail_with(503)
    hub.requests.clear()
    again = await opened()
    assert again.fingerprint == online.fingerprint
    assert await texts(again) == ROWS
    assert how == "unreachable" or hub.requests == []


async def test_part_of_a_split_in_the_cache_is_not_the_split(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fill(hub)
    await opened()
    (snapshot,) = (tmp_path / "cache").glob("datasets--org--model/snapshots/*")
    (snapshot / "data" / "train-00001-of-00002.parquet").unlink()
    offline(monkeypatch)
    with pytest.raises(InvalidInput, match=r"does not hold data/train-00001-of-00002\.parquet, and HF_HUB_OFFLINE"):
        await opened()


async def test_unknown_dataset_offline_and_unreachable_are_said(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.fail_with(503)
    with pytest.raises(SourceUnavailable, match=r"is not in the Hub's cache, .* the Hub fails \(answered 503\)"):
        await opened()
    offline(monkeypatch)
    with pytest.raises(InvalidInput, match=r"is not in the Hub's cache.*HF_HUB_OFFLINE is set"):
        await opened()


async def test_repository_without_parquet_files_is_read_as_converted(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.files = {"data.csv": b"a,b"}
    with pytest.raises(CorruptData, match="holds no parquet files, and the Hub has not converted it"):
        await opened()
    hub.converted = {
        "plain_text/train/0000.parquet": parquet(text=["p"]),
        "other/train/0000.parquet": parquet(text=["o"]),
    }
    with pytest.raises(InvalidInput, match="holds the same split in other, plain_text"):
        await opened()
    provider = await opened(f"{NAME}/plain_text")
    assert CONVERTED_COMMIT[:12] in str(provider.description.files[0].content)
    assert await texts(provider) == [{"text": "p"}]
    offline(monkeypatch)
    assert await texts(await opened(f"{NAME}/plain_text")) == [{"text": "p"}]


@pytest.mark.parametrize(
    ("status", "headers", "message"),
    [
        (401, {}, "needs a token in HF_TOKEN"),
        (403, {"X-Error-Code": "GatedRepo"}, "access to the repository must be granted first"),
        (404, {"X-Error-Code": "RepoNotFound"}, "there is no such repository"),
    ],
)
async def test_refusals_of_the_hub_say_what_to_do(
    hub: FakeHub, status: int, headers: dict[str, str], message: str
) -> None:
    hub.fail_with(status, headers=headers)
    with pytest.raises(InvalidInput, match=message):
        await opened()


async def test_missing_split_and_configuration_are_named(hub: FakeHub) -> None:
    fill(hub)
    with pytest.raises(InvalidInput, match="holds test, train and no split 'validation'"):
        await opened(split="validation")
    with pytest.raises(InvalidInput, match="there is no folder french; allowed: data"):
        await opened(f"{NAME}/french")


async def test_download_without_room_is_refused_before_it_begins(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(hub)
    monkeypatch.setattr(hub_dataset, "SPARE_BYTES", 2**60)
    with pytest.raises(Rejected, match=r"bytes are free at .*; name a configuration, or another place in HF_HOME"):
        await opened()
    assert not [path for _, path in hub.requests if "/resolve/" in path]


async def test_names_that_climb_out_of_the_cache_are_not_files(hub: FakeHub) -> None:
    fill(hub)
    hub.files["../../train-00001-of-00001.parquet"] = b"x"
    assert await texts(await opened()) == ROWS


@pytest.mark.parametrize(
    ("text", "dataset"),
    [
        ("hf://datasets/org/name", HubDataset("org/name")),
        ("hf://datasets/squad", HubDataset("squad")),
        ("hf://datasets/org/name/en/2020", HubDataset("org/name", None, "en/2020")),
        ("hf://datasets/squad@main/plain_text", HubDataset("squad", "main", "plain_text")),
        ("hf://datasets/org/name@refs/convert/parquet/en", HubDataset("org/name", "refs/convert/parquet", "en")),
        ("hf://datasets/org/name@v1.0/", HubDataset("org/name", "v1.0")),
    ],
)
def test_place_of_a_dataset_is_parsed(text: str, dataset: HubDataset) -> None:
    assert parse_hub_dataset(text) == dataset


@pytest.mark.parametrize(
    "text",
    [
        "hf://org/name",
        "hf://datasets/",
        "hf://datasets/a/b@",
        "hf://datasets/../b",
        "hf://datasets/a/b/../c",
        "hf://datasets/a b",
    ],
)
def test_place_that_names_no_dataset_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="allowed: hf://datasets/NAME"):
        parse_location(text)
