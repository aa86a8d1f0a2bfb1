"""Records in JSON-lines files: found, ordered and delivered byte for byte, and their errors."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from epochal.batching.packing.samples import RawSample
from epochal.batching.packing.task_encoder import EncoderContext, TaskEncoder
from epochal.data_providers.formats import json_lines as lines_module
from epochal.data_providers.locations import parse_location
from epochal.data_providers.mixes.weighted import Weighted, WeightedDataProvider
from epochal.data_providers.open_data import OpenOptions, open_location
from epochal.data_providers.protocol import CorruptData, DatasetSpec, Rejected, SourceUnavailable, TooManyBytes
from epochal.data_providers.providers.preprocessed import PreprocessedDataProvider
from epochal.data_providers.providers.record_files import RecordsDataProvider
from epochal.runtime.permissions import OWNERS
from epochal.state.errors import InternalError, InvalidInput
from epochal.state.intervals import DataIds
from tests.support.data.data_files import open_lines, open_rows
from tests.support.heavy import need_module

RECORDS = [json.dumps({"text": f"record {number}" * (number % 3)}) for number in range(25)]


def write(path: Path, records: list[str], end: str = "\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes("".join(record + end for record in records).encode())
    return path


async def records(provider: RecordsDataProvider, start: int, end: int) -> list[str]:
    batch = await provider.get_samples(DataIds(start, end))
    assert batch.is_text
    text = batch.input_ids.astype(np.uint8).tobytes()
    return [text[a:b].decode() for a, b in zip(batch.offsets, batch.offsets[1:], strict=False)]


async def test_lines_are_samples_in_the_files_order_pass_after_pass(tmp_path: Path) -> None:
    write(tmp_path / "b.jsonl", RECORDS[10:])
    write(tmp_path / "a.jsonl", RECORDS[:10])
    provider = await open_lines(tmp_path)
    assert provider.sequence_count == 25
    assert [file.name for file in provider.files] == ["a.jsonl", "b.jsonl"]
    for start, end in [(0, 24), (3, 3), (9, 10), (20, 60)]:
        assert await records(provider, start, end) == [RECORDS[number % 25] for number in range(start, end + 1)]
    await provider.aclose()
    with pytest.raises(InternalError, match="after aclose"):
        await records(provider, 0, 0)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    st.lists(st.text(st.characters(blacklist_characters="\n", blacklist_categories=["Cs"]), max_size=12), max_size=30),
    st.booleans(),
    st.integers(1, 40),
)
async def test_every_line_that_is_not_blank_is_a_record_however_the_file_is_read(
    tmp_path: Path, lines: list[str], ends: bool, block: int
) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes("\n".join([*lines, ""] if ends else lines).encode())
    wanted = [line for line in lines if line.encode().strip()]
    kept, lines_module.SCANNED_BYTES = lines_module.SCANNED_BYTES, block
    try:
        if not wanted:
            with pytest.raises(CorruptData, match="holds no JSON record"):
                await open_lines(path)
            return
        provider = await open_lines(path)
    finally:
        lines_module.SCANNED_BYTES = kept
    assert await records(provider, 0, len(wanted) - 1) == wanted


async def test_a_shuffle_permutes_each_pass_and_is_part_of_the_fingerprint(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [json.dumps([number]) for number in range(50)])
    plain, shuffled = await open_lines(path), await open_lines(path, bytes(32))
    first, second = await records(shuffled, 0, 49), await records(shuffled, 50, 99)
    assert first != second
    assert sorted(first) == sorted(second) == sorted(await records(plain, 0, 49))
    other = await open_lines(write(tmp_path / "b" / "a.jsonl", ["[0]"]))
    assert len({plain.fingerprint, shuffled.fingerprint, other.fingerprint}) == 3


async def test_splits_are_files_of_one_folder(tmp_path: Path) -> None:
    write(tmp_path / "train.jsonl", RECORDS[:20])
    write(tmp_path / "validation.jsonl", RECORDS[20:])
    assert (await open_lines(tmp_path)).sequence_count == 20
    assert (await open_lines(tmp_path, split="validation")).sequence_count == 5
    with pytest.raises(InvalidInput, match=r"holds train, validation and no split 'test'"):
        await open_lines(tmp_path, split="test")


async def test_errors_of_a_file_name_the_cause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Rejected, match=r"none\.jsonl cannot be read: No such file or directory; check the path"):
        await open_lines(tmp_path / "none.jsonl")
    with pytest.raises(CorruptData, match="holds no samples to pack"):
        await open_lines(tmp_path)
    monkeypatch.setattr(lines_module, "MAX_LINE_BYTES", 30)
    with pytest.raises(CorruptData, match=r"long\.jsonl, line 2, has more than 30 bytes"):
        await open_lines(write(tmp_path / "long.jsonl", ["[1]", "x" * 40]))
    path = write(tmp_path / "a.jsonl", RECORDS[:4])
    provider = await open_lines(path)
    with pytest.raises(TooManyBytes, match="more than 40 bytes"):
        await provider.get_samples(DataIds(0, 3), 40)
    path.unlink()
    with pytest.raises(SourceUnavailable, match="cannot be read"):
        await records(provider, 0, 0)
    path.write_text("{}\n")
    with pytest.raises(CorruptData, match="and now has 3"):
        await records(provider, 0, 0)


# Opened as a run opens them


def open_as(path: Path, packs: bool = True, split: str = "train") -> Any:
    options = OpenOptions("run", lambda: "", OWNERS, packs=packs, split=split)
    return open_location(parse_location(str(path)), DatasetSpec(2, 16), options)


async def test_location_to_be_packed_is_json_lines_or_parquet(tmp_path: Path) -> None:
    need_module("pyarrow")
    import pyarrow
    import pyarrow.parquet

    write(tmp_path / "lines" / "train.jsonl", RECORDS)
    (tmp_path / "rows").mkdir()
    pyarrow.parquet.write_table(pyarrow.table({"inputs": [[1] * 40]}), tmp_path / "rows" / "a.parquet")
    (tmp_path / "tokens").mkdir()
    (tmp_path / "tokens" / "a.bin").write_bytes(bytes(64))
    (tmp_path / "data.toml").write_text(f'dir = "lines"\nshuffle_seed = {list(range(32))}\n')
    assert isinstance(await open_as(tmp_path / "lines"), RecordsDataProvider)
    assert isinstance(await open_as(tmp_path / "lines" / "train.jsonl"), RecordsDataProvider)
    shuffled = await open_as(tmp_path / "data.toml")
    assert shuffled.fingerprint != (await open_as(tmp_path / "lines")).fingerprint
    rows = await open_as(tmp_path / "rows")
    assert isinstance(rows, PreprocessedDataProvider)
    assert (await rows.get_samples(DataIds(0, 0))).offsets.tolist() == [0, 40], "longer than a row: the packer's to cut"
    with pytest.raises(CorruptData, match="no samples to pack"):
        await open_as(tmp_path / "tokens")
    with pytest.raises(InvalidInput, match=r'allowed: with model\.LLM\.data_type = "Finetuning"'):
        await open_as(tmp_path / "lines" / "train.jsonl", packs=False)


@pytest.mark.parametrize("name", ["a.bin", "a.ds", "a.npy"])
async def test_token_file_to_be_packed_is_refused_by_name(tmp_path: Path, name: str) -> None:
    np.arange(1000, dtype="<u2").tofile(tmp_path / name)
    with pytest.raises(InvalidInput, match=f"{name} holds tokens"):
        await open_as(tmp_path / name)


async def test_mix_of_records_and_tokens_does_not_go_together(tmp_path: Path) -> None:
    need_module("pyarrow")
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.table({"inputs": [[1, 2]]}), tmp_path / "a.parquet")
    lines = await open_lines(write(tmp_path / "a.jsonl", RECORDS))
    rows = await open_rows(tmp_path / "a.parquet")
    with pytest.raises(CorruptData, match="only some sources of the mix hold JSON records"):
        await WeightedDataProvider([Weighted("a", lines, 1), Weighted("b", rows, 1)]).get_samples(DataIds(0, 9))
    mixed = WeightedDataProvider([Weighted("a", lines, 1), Weighted("b", lines, 1)])
    assert (await mixed.get_samples(DataIds(0, 9))).is_text


# What the default encoder makes of records


def encoded(record: Any) -> tuple[list[int], list[int] | None]:
    text = record if isinstance(record, bytes) else json.dumps(record).encode()
    encoder = TaskEncoder(EncoderContext("run", 16, 256))
    sample = encoder.encode_sample(RawSample(7, np.frombuffer(text, np.uint8).astype("<u2"), is_text=True))
    return sample.input_ids.tolist(), None if sample.labels is None else sample.labels.tolist()


def test_default_encoder_takes_text_prompts_and_tokens() -> None:
    assert encoded({"text": "né"}) == (list("né".encode()), None)
    assert encoded({"prompt": "ab", "completion": "c", "id": 5}) == ([97, 98, 99], [-100, -100, 99])
    assert encoded({"input_ids": [1, 70000], "labels": [-100, 5]}) == ([1, 70000], [-100, 5])
    assert encoded({"text": ""}) == ([], None)


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (b"{", "data index 7 is not JSON: Expecting property name"),
        (b"\xff", "data index 7 is not JSON"),
        (b"[" * 100_000, "data index 7 is not JSON"),
        ({"instruction": 1, "output": 2}, "record of instruction, output; allowed: text; prompt and completion; input"),
        ([1, 2], "record of list; allowed"),
        ({"prompt": "a"}, "record of prompt; allowed"),
        ({"input_ids": [1, -1]}, "input_ids is not a list of integers from 0 to"),
        ({"input_ids": [True]}, "input_ids is not a list of integers"),
        ({"input_ids": [1], "labels": [1, 2]}, "2 labels for 1 input_ids"),
        ({"input_ids": [1], "labels": [-101]}, "labels is not a list of integers from -100"),
    ],
)
def test_default_encoder_says_what_is_wrong_with_a_record(record: Any, message: str) -> None:
    with pytest.raises(CorruptData, match=message):
        encoded(record)


def test_a_token_sample_has_no_record() -> None:
    with pytest.raises(CorruptData, match="data index 3 holds tokens, not a JSON record"):
        RawSample(3, np.zeros(2, "<u2")).record()
