"""What providers tell of their data, for messages about data that differ."""

from pathlib import Path

from epochal.data_providers.description import description_of, shuffle_name
from epochal.data_providers.mixes.weighted import Weighted, WeightedDataProvider
from epochal.data_providers.protocol import DatasetSpec
from epochal.data_providers.providers.dummy import DummyDataProvider
from epochal.data_providers.providers.local import LocalDataProvider
from epochal.state.dataset_descriptions import (
    MAX_DESCRIBED_FILES,
    MAX_DESCRIBED_NAME_CHARS,
    MAX_DESCRIBED_SOURCES,
    DescribedFile,
)
from tests.support.data.data_files import open_lines

SPEC = DatasetSpec(2, 4, bytes(32))


def test_token_files_are_described_by_their_first_files(tmp_path: Path) -> None:
    for number in range(MAX_DESCRIBED_FILES + 2):
        (tmp_path / f"{number}{'x' * 80}.bin").write_bytes(bytes(16))
    found = LocalDataProvider.open(tmp_path, SPEC).description
    assert (found.kind, found.token_size_bytes, found.sequence_length, found.sample_count) == ("token files", 2, 4, 12)
    assert (found.file_count, found.total_bytes) == (6, 96)
    assert [file.name[0] for file in found.files] == ["0", "1", "2", "3"]
    assert {len(file.name) for file in found.files} == {MAX_DESCRIBED_NAME_CHARS}
    assert found.shuffle == shuffle_name(bytes(32))
    assert "00" * 32 not in repr(found), "the key itself is not told"


async def test_records_mixes_and_made_up_samples_are_described(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"prompt": "a", "completion": "b"}\n')
    records = (await open_lines(tmp_path)).description
    assert records.files == (DescribedFile("a.jsonl", 35),)
    assert (records.kind, records.shuffle) == ("JSON lines", "")
    dummy = DummyDataProvider(SPEC)
    assert dummy.description.sequence_length == 4
    mix = WeightedDataProvider([Weighted("one", dummy, 1.0), Weighted("two", DummyDataProvider(SPEC), 1.0)])
    assert (mix.description.kind, mix.description.sources) == ("a mix of 2 sources", ("one", "two"))
    for names in (["one", "t\x1bwo"], list(map(str, range(MAX_DESCRIBED_SOURCES + 1)))):
        described = WeightedDataProvider([Weighted(name, dummy, 1.0) for name in names]).description
        assert described.sources == (), "all of them, as they are, or none"


def test_provider_without_a_description_is_allowed() -> None:
    class Foreign(DummyDataProvider):
        description = "not one of ours"  # type: ignore[assignment]

        def __init__(self) -> None:
            pass

    assert description_of(Foreign()) is None
