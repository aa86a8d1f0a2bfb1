"""The load of thousands of members keeps to the protocol: a few of its members make a coordinator's rounds go on."""

import asyncio
from pathlib import Path

import pytest

from benchmarks.scale import MAX_MEMBERS, measured
from state.errors import EpochalError

COUNT = 4


def test_members_of_the_load_take_part_in_every_round(tmp_path: Path) -> None:
    found = asyncio.run(measured(COUNT, 1, tmp_path))
    assert found.refusals == {}
    assert found.heard_count == COUNT


def test_a_load_of_too_many_members_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EpochalError, match=f"at most {MAX_MEMBERS}"):
        asyncio.run(measured(MAX_MEMBERS + 1, 1, tmp_path))
