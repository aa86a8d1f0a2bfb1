"""The use of a client's GPUs, from what `nvidia-smi` prints; and that no result waits for it."""

import os
import threading
from pathlib import Path

import pytest

from epochal.run_manager.gpu_gauge import CARDS, MIB, PROCESSES, GpuGauge, gpu_use
from epochal.state.messages.round_times import GpuUse

H100 = "bf16/nvidia-h100-80gb-hbm3"
USE = GpuUse(8, 16, 0.5)
TWO_H100 = """\
1024, 81559, 0, GPU-11111111-2222, NVIDIA H100 80GB HBM3
41250, 81559, 97, GPU-33333333-4444, NVIDIA H100 80GB HBM3
300, 8192, 5, GPU-55555555-6666, NVIDIA RTX A2000
"""


def tool(cards: str | None, processes: str | None = ""):  # type: ignore[no-untyped-def]
    """`nvidia-smi` that prints this."""
    return lambda command: {CARDS: cards, PROCESSES: processes}[command]


def test_cards_on_which_the_client_computes_are_read() -> None:
    listed = f"{os.getpid()}, GPU-33333333-4444\n1, GPU-11111111-2222\n"
    assert gpu_use(H100, tool(TWO_H100, listed)) == GpuUse(41250 * MIB, 81559 * MIB, 0.97)


@pytest.mark.parametrize("listed", ["", None, "[Insufficient Permissions]", f"{2**31}, GPU-33333333-4444\n"])
def test_all_cards_of_the_name_are_read_where_processes_are_not_shown(listed: str | None) -> None:
    assert gpu_use(H100, tool(TWO_H100, listed)) == GpuUse((1024 + 41250) * MIB, 2 * 81559 * MIB, 0.485)


@pytest.mark.parametrize(
    "cards", [None, "", "No devices were found", "[N/A], [N/A], [N/A], GPU-1, NVIDIA H100 80GB HBM3\n"]
)
def test_nothing_is_read_where_nothing_is_shown(cards: str | None) -> None:
    assert gpu_use(H100, tool(cards)) is None


def test_card_of_another_name_is_not_read() -> None:
    assert gpu_use("bf16/nvidia-a100-sxm4-80gb", tool(TWO_H100)) is None


def test_cards_are_read_without_a_list_of_processes(tmp_path: Path) -> None:
    found = gpu_use("float32/nvidia-rtx-a2000", tool(TWO_H100), tmp_path)
    assert found == GpuUse(300 * MIB, 8192 * MIB, 0.05)


class HeldReader:
    """Reads once it may."""

    def __init__(self) -> None:
        self.may = threading.Event()
        self.asked: list[str] = []

    def __call__(self, computed: str) -> GpuUse | None:
        self.asked.append(computed)
        self.may.wait()
        return USE


def ended(gauge: GpuGauge) -> GpuGauge:
    for thread in threading.enumerate():
        if thread.name == "gpu-gauge":
            thread.join()
    return gauge


def test_reading_that_takes_long_is_reported_with_the_next_result_once() -> None:
    read = HeldReader()
    gauge = GpuGauge(read)
    gauge.begin(H100)
    assert gauge.taken() is None
    gauge.begin(H100)
    read.may.set()
    assert ended(gauge).taken() == USE
    assert gauge.taken() is None
    assert read.asked == [H100], "one at a time"
    gauge.begin(H100)
    assert ended(gauge).taken() == USE


@pytest.mark.parametrize("computed", ["float32/cpu", "float32/mps", "unknown/unknown"])
def test_client_without_a_gpu_reads_nothing(computed: str) -> None:
    read = HeldReader()
    GpuGauge(read).begin(computed)
    assert not read.asked
