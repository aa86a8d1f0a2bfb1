"""The room that a client's spool needs: what each setting adds, and what the page says of it."""

import re
from typing import Any

import pytest

from docs.page_blocks import ROOT
from epochal.state.model.tensors import TensorLayout
from epochal.state.shown.spool_room import round_bytes, spool_bytes
from tests.support.data.states import state_file

LAYOUT = TensorLayout((("w", (1000, 1000)),))
PARAMETERS_BYTES, REPLICA_BYTES = 4 * 10**6, 8 * 10**6
INT4_BYTES = 515_628
HEADERS_BYTES = 20_000
"""More than the headers of all files take."""


def room(**overrides: Any) -> int:
    return spool_bytes(LAYOUT, state_file(**overrides))


@pytest.mark.parametrize(
    ("settings", "more_bytes"),
    [
        ({}, 0),
        ({"merge__codec": "float32"}, PARAMETERS_BYTES - INT4_BYTES),
        ({"merge__update": "exact"}, PARAMETERS_BYTES - INT4_BYTES),
        ({"config__checkpoint_every": 2}, REPLICA_BYTES),
        ({"merge__error_feedback": True}, 2 * PARAMETERS_BYTES),
        ({"merge__outer_momentum": 0.0}, -2 * PARAMETERS_BYTES),
        ({"merge__delay": 1}, REPLICA_BYTES + INT4_BYTES),
        ({"merge__delay": 1, "merge__error_feedback": True}, REPLICA_BYTES + INT4_BYTES + 3 * PARAMETERS_BYTES),
        ({"config__init_min_clients": 16}, 0),
    ],
)
def test_room_of_a_round_grows_with_what_is_held(settings: dict[str, Any], more_bytes: int) -> None:
    expected = 2 * REPLICA_BYTES + 2 * INT4_BYTES + more_bytes
    assert expected < room(**settings) < expected + HEADERS_BYTES


def test_inner_states_that_are_revealed_take_room() -> None:
    least, verified = room(), {"verify": {"within": 4}}
    assert room(**verified) == least + (4 + 3) * 8 * 10**6
    for unasked in ({"merge__inner_state": "reset"}, {"verify": {"within": 4, "by": "scores"}}):
        assert room(**verified | unasked) == least


def test_operations_page_names_the_room_of_a_billion_parameters() -> None:
    page = (ROOT / "docs/operations.md").read_text(encoding="utf-8")
    said = re.search(r"1 B parameters so needs (\d+) GB \((\d+) GB with `codec = \"float32\"`\)", page)
    assert said is not None
    billion = TensorLayout((("w", (1000, 1000, 1000)),))
    found = [round_bytes(billion, state_file(merge__codec=codec)) for codec in ("int4", "float32")]
    assert [round(size / 1e9) for size in found] == [int(shown) for shown in said.groups()]
