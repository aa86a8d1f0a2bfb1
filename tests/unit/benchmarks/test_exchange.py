"""The cells of the exchange's benchmark: what is run, and what of it needs too much room."""

import pytest

from benchmarks.rounds.exchange import CELLS, COMPARED, SMALL
from benchmarks.rounds.exchange_rounds import SIZES, Cell, bytes_a_parameter
from epochal.state.config.state_file import parse_state
from epochal.trainers.first_parameters import model_layout

GIGABYTE = 10**9


@pytest.mark.parametrize("cell", [*CELLS, *SMALL], ids=lambda cell: cell.name)
def test_cell_is_a_run_that_may_start(cell: Cell) -> None:
    state = parse_state(cell.state, "state.toml")
    assert (state.merge.codec, state.config.init_min_clients) == (cell.codec, cell.clients)


@pytest.mark.parametrize("millions", SIZES)
def test_sizes_are_those_of_their_models(millions: int) -> None:
    spec = parse_state(Cell(millions, 2, "int4").state, "state.toml").model.LLM.spec
    count = sum(size for _, size in model_layout(spec).counts())
    assert count == pytest.approx(millions * 1e6, rel=0.01)


def test_every_codec_is_measured_with_the_same_models_and_clients() -> None:
    found = {(cell.millions, cell.clients, cell.codec) for cell in CELLS}
    assert {(*place, codec) for place in COMPARED for codec in ("float32", "int8", "int4", "sparse")} <= found


def test_room_of_a_cell_counts_replicas_and_results_everywhere() -> None:
    assert Cell(100, 8, "float32", 1).disk_bytes > 8 * (2 * 0.8 + 4 * 0.4) * GIGABYTE
    assert Cell(500, 2, "int4", 1).disk_bytes < 40 * GIGABYTE


def test_bytes_a_parameter_are_those_of_the_formats() -> None:
    sizes = [bytes_a_parameter(codec) for codec in ("float32", "int8", "int4", "sparse")]
    assert sizes == pytest.approx([4, 1.0156, 0.5156, 0.0293], rel=0.02)
