"""Bytes of another place, read in windows and hashed on the way."""

import pytest

from epochal.runtime.files.mapped_reads import MAX_WINDOWS, Windows
from epochal.state.wire import sha256_hex

DATA = bytes(range(256)) * 4 + b"end"
WINDOW_BYTES = 100


@pytest.fixture
def fetched() -> list[tuple[int, int]]:
    return []


@pytest.fixture
def windows(fetched: list[tuple[int, int]]) -> Windows:
    def fetch(start: int, stop: int) -> bytes:
        fetched.append((start, stop))
        return DATA[start:stop]

    return Windows(len(DATA), fetch, WINDOW_BYTES)


@pytest.mark.parametrize("part", [slice(0, 3), slice(95, 305), slice(1000, None), slice(None), slice(50, 50)])
def test_part_is_the_bytes(windows: Windows, part: slice) -> None:
    assert windows[part] == DATA[part]
    assert len(windows) == len(DATA)


def test_bytes_read_in_order_are_fetched_once_and_hashed(windows: Windows, fetched: list[tuple[int, int]]) -> None:
    for start in range(0, len(DATA), 7):
        assert windows[start : start + 7] == DATA[start : start + 7]
    assert windows.sha256() == sha256_hex(DATA)
    assert fetched == [(start, min(start + 100, len(DATA))) for start in range(0, len(DATA), 100)]


def test_digest_is_right_in_whatever_order_the_bytes_are_read(windows: Windows) -> None:
    for start in (500, 0, 900, 100, 505, 200, 0):
        assert windows[start : start + 150] == DATA[start : start + 150]
    assert windows.sha256() == windows.sha256() == sha256_hex(DATA)


def test_few_windows_are_in_memory(windows: Windows, fetched: list[tuple[int, int]]) -> None:
    for _ in range(2):
        for start in range(0, (MAX_WINDOWS + 1) * WINDOW_BYTES, WINDOW_BYTES):
            assert windows[start : start + 1] == DATA[start : start + 1]
    assert len(fetched) == 2 * (MAX_WINDOWS + 1)
