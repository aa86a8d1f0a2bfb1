"""Megatron's files: read as they were written, and every damage named. The readers are fuzzed."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from epochal.data_providers.protocol import CorruptData, DatasetSpec
from epochal.data_providers.providers.local import LocalDataProvider
from epochal.state.intervals import DataIds
from tests.support.data.data_formats import discovered, write_megatron

SPEC = DatasetSpec(2, 8)
FOUR_BYTES = DatasetSpec(4, 8)


async def all_tokens(folder: Path, spec: DatasetSpec = SPEC) -> list[int]:
    provider = LocalDataProvider.open(folder, spec)
    batch = await provider.get_samples(DataIds(0, provider.sequence_count - 1))
    await provider.aclose()
    found: list[int] = batch.input_ids.tolist()
    return found


@pytest.mark.parametrize(("dtype", "spec"), [("<u2", SPEC), ("<i2", SPEC), ("<i4", FOUR_BYTES)])
async def test_megatron_documents_are_one_stream_of_tokens(tmp_path: Path, dtype: str, spec: DatasetSpec) -> None:
    tokens = np.arange(50, dtype=dtype)
    write_megatron(tmp_path, "text_document", [tokens[:3], tokens[3:31], tokens[31:]])
    assert await all_tokens(tmp_path, spec) == list(range(48))
    assert await all_tokens(tmp_path / "text_document.bin", spec) == list(range(48))


def damaged(change: Callable[[dict[str, bytes]], object]) -> Callable[[Path], dict[str, bytes]]:
    def files(folder: Path) -> dict[str, bytes]:
        write_megatron(folder, "a", [np.arange(20, dtype="<u2"), np.arange(12, dtype="<u2")])
        held = {path.name: path.read_bytes() for path in folder.iterdir()}
        change(held)
        return held

    return files


def put(name: str, at: int, data: bytes) -> Callable[[dict[str, bytes]], object]:
    return lambda held: held.update({name: held[name][:at] + data + held[name][at + len(data) :]})


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (damaged(lambda held: held.pop("a.bin")), "is the index of a.bin, which does not exist"),
        (damaged(lambda held: held.update({"a.bin": held["a.bin"][:-2]})), "a.bin has 62 bytes; a.idx says 64"),
        (damaged(lambda held: held.update({"a.bin": held["a.bin"] + b"xx"})), "a.bin has 66 bytes; a.idx says 64"),
        (damaged(lambda held: held.update({"a.idx": held["a.idx"][:-1]})), "its header says"),
        (damaged(lambda held: held.update({"a.idx": held["a.idx"][:20]})), "allowed: 34 or more"),
        (damaged(lambda held: held.update({"a.idx": b""})), "allowed: 34 or more"),
        (damaged(lambda held: held.update({"a.idx": b"MMID"})), "allowed: 34 or more"),
        (damaged(put("a.idx", 9, b"\x02")), "version 2; allowed: 1"),
        (damaged(put("a.idx", 17, b"\x04")), "holds int32; allowed: int16 or uint16"),
        (damaged(put("a.idx", 17, b"\xff")), "holds type 255"),
        (damaged(put("a.idx", 18, b"\xff" * 8)), "its header says"),
    ],
)
def test_megatron_files_that_do_not_belong_together_are_corrupt(
    tmp_path: Path, files: Callable[[Path], dict[str, bytes]], message: str
) -> None:
    with pytest.raises(CorruptData, match=message):
        discovered(files(tmp_path))


def test_bin_beside_another_kind_of_idx_is_nothing_but_tokens() -> None:
    assert [file.token_count for file in discovered({"a.bin": bytes(64), "a.idx": b"something else"})] == [32]
