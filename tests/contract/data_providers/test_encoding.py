"""Data whose manifest says that they are another tokenizer's are refused, whatever their tokens look like."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from epochal.batching.data_check import DataNeeds, look_at_data
from epochal.data_providers.encoding import TokenEncoding
from epochal.data_providers.mixes.weighted import Weighted, WeightedDataProvider
from epochal.data_providers.protocol import CorruptData, DatasetSpec
from epochal.data_providers.providers.local import LocalDataProvider
from epochal.data_providers.providers.ranged import RangedDataProvider
from epochal.data_providers.sources.http.manifests import open_checked
from epochal.data_providers.sources.manifest import MANIFEST_NAME, hashed_file, manifest_text
from tests.support.servers.data_http import FileServer, http_server

OURS, OTHERS = "a" * 64, "b" * 64
SPEC = DatasetSpec(2, 16)


def write_dataset(folder: Path, **changes: Any) -> Path:
    """Write two files of small tokens, and their manifest; the second one's encoding is changed."""
    folder.mkdir()
    entries = {}
    for name in ("one.bin", "two.bin"):
        np.arange(160, dtype="<u2").tofile(folder / name)
        encoding = TokenEncoding("ours", OURS, 2, 159).to_plain() | (changes if name == "two.bin" else {})
        entries[name] = hashed_file(folder / name) | {"encoding": encoding}
    (folder / MANIFEST_NAME).write_text(manifest_text(entries))
    return folder


async def problems_of(folder: Path, vocabulary: int | None = 256, tokenizer: str | None = OURS) -> list[str]:
    provider = LocalDataProvider.open(folder, SPEC)
    findings = await look_at_data(provider, DataNeeds(16, vocabulary, None, 5.0, tokenizer))
    await provider.aclose()
    return findings.problems


async def test_data_of_the_runs_tokenizer_are_taken(tmp_path: Path) -> None:
    assert await problems_of(write_dataset(tmp_path / "data")) == []
    assert await problems_of(tmp_path / "data", None, None) == []


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"sha256": OTHERS, "tokenizer": "theirs"}, "two.bin: was made with the tokenizer theirs"),
        ({"largest_token": 256}, "two.bin: holds the token 256 of the tokenizer ours; the model's vocabulary"),
        ({"token_size": 4}, "two.bin: has tokens of 4 bytes, and is read with 2"),
    ],
)
async def test_data_of_another_tokenizer_are_refused(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    problems = await problems_of(write_dataset(tmp_path / "data", **changes))
    assert problems[0].startswith(said)


async def test_files_of_two_tokenizers_are_refused_by_a_run_that_names_none(tmp_path: Path) -> None:
    (problem,) = await problems_of(write_dataset(tmp_path / "data", sha256=OTHERS, tokenizer="theirs"), tokenizer=None)
    assert problem == f"two.bin: was made with the tokenizer theirs ({OTHERS}), and one.bin with ours ({OURS})"


@pytest.mark.parametrize("theirs", [OURS, OTHERS])
async def test_sources_of_two_tokenizers_are_refused_by_a_run_that_names_none(tmp_path: Path, theirs: str) -> None:
    write_dataset(tmp_path / "a")
    (write_dataset(tmp_path / "b", sha256=theirs, tokenizer="theirs") / "one.bin").unlink()
    entries = {"two.bin": json.loads((tmp_path / "b" / MANIFEST_NAME).read_text())["files"]["two.bin"]}
    (tmp_path / "b" / MANIFEST_NAME).write_text(manifest_text(entries))
    mix = WeightedDataProvider([Weighted(name, LocalDataProvider.open(tmp_path / name, SPEC)) for name in "ab"])
    problems = (await look_at_data(mix, DataNeeds(16, 256, None, 5.0, None))).problems
    await mix.aclose()
    said = f"the mix: source b: two.bin: was made with the tokenizer theirs ({OTHERS}), and source a: one.bin with ours"
    assert [problem.rpartition(" (")[0] for problem in problems] == ([said] if theirs == OTHERS else [])


async def test_the_same_is_known_over_http(tmp_path: Path) -> None:
    folder = write_dataset(tmp_path / "data")
    async with http_server(FileServer(folder)) as url:
        provider = await RangedDataProvider.open(await open_checked([f"{url}/one.bin"]), SPEC)
        findings = await look_at_data(provider, DataNeeds(16, 256, None, 5.0, OTHERS))
        await provider.aclose()
    assert [problem.partition(" (")[0] for problem in findings.problems] == [
        "one.bin: was made with the tokenizer ours"
    ]


def test_an_encoding_that_is_none_is_a_damaged_manifest(tmp_path: Path) -> None:
    folder = write_dataset(tmp_path / "data")
    document = json.loads((folder / MANIFEST_NAME).read_text())
    document["files"]["one.bin"]["encoding"] = {"tokenizer": "x"}
    (folder / MANIFEST_NAME).write_text(json.dumps(document))
    with pytest.raises(CorruptData, match="is not a manifest"):
        LocalDataProvider.open(folder, SPEC)
