"""Whether a machine is used, from observations; and observations from what the system's tools print."""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochal.run_manager.system_tools import output_of, own_processes
from epochal.run_manager.terms.idle_policy import (
    BUSY_FOR_S,
    IDLE_FOR_S,
    INPUT_IDLE_S,
    MAX_CORES_SHARE,
    MAX_GPU_PERCENT,
    IdleJudge,
    Observation,
    use_in,
)
from epochal.run_manager.terms.machine_use import MachineUse, busy_cpu_s, idle_of_hints, idle_of_ioreg

BUSY, IDLE = Observation(others_cores=3.0, cores=4), Observation(others_cores=0.0, cores=4)
OBSERVATIONS = st.builds(
    Observation,
    input_idle_s=st.none() | st.floats(0, 2 * INPUT_IDLE_S),
    others_cores=st.none() | st.floats(0, 8),
    cores=st.integers(1, 8),
    gpu_others=st.none() | st.lists(st.text("ab", min_size=1), max_size=3).map(tuple),
    gpu_percent=st.none() | st.integers(0, 100),
)


@given(OBSERVATIONS, st.booleans())
def test_any_use_that_is_known_counts_and_nothing_else(seen: Observation, is_training: bool) -> None:
    uses = {
        seen.input_idle_s is not None and seen.input_idle_s < INPUT_IDLE_S,
        bool(seen.gpu_others),
        not is_training and (seen.gpu_percent or 0) >= MAX_GPU_PERCENT,
        (seen.others_cores or 0.0) > MAX_CORES_SHARE * seen.cores,
    }
    assert (use_in(seen, is_training=is_training) is not None) == (True in uses)


@given(st.integers(0, 100), st.booleans())
def test_own_load_on_the_gpu_is_no_use_by_others(percent: int, is_training: bool) -> None:
    found = use_in(Observation(gpu_percent=percent, gpu_others=()), is_training=True)
    assert found is None


@given(st.lists(st.tuples(st.floats(0, 60), st.booleans()), min_size=1, max_size=60))
def test_verdict_changes_only_after_a_time_of_the_same_observations(looks: list[tuple[float, bool]]) -> None:
    judge, now_s, verdict, since = IdleJudge(), 0.0, None, None
    for number, (pause_s, is_busy) in enumerate(looks):
        now_s += pause_s
        since = (now_s, is_busy) if since is None or since[1] != is_busy else since
        found = judge.judge(BUSY if is_busy else IDLE, now_s, is_training=True) is not None
        if verdict is not None and found != verdict:
            assert found == is_busy
            assert now_s - since[0] >= (BUSY_FOR_S if is_busy else IDLE_FOR_S)
        if number == 0:
            assert found == is_busy
        verdict = found


@given(st.booleans(), st.integers(1, 50))
def test_what_lasts_is_believed(is_busy: bool, flips: int) -> None:
    judge, now_s = IdleJudge(), 0.0
    for number in range(flips):
        judge.judge(BUSY if number % 2 else IDLE, now_s, is_training=True)
        now_s += 5
    for _ in range(int(IDLE_FOR_S / 5) + 2):
        now_s += 5
        found = judge.judge(BUSY if is_busy else IDLE, now_s, is_training=True)
    assert (found is not None) == is_busy


@pytest.mark.parametrize("input_idle_s", [0.0, 1.0])
def test_somebody_at_the_keyboard_counts_at_once(input_idle_s: float) -> None:
    judge = IdleJudge()
    assert judge.judge(IDLE, 0.0, is_training=True) is None
    found = judge.judge(Observation(input_idle_s=input_idle_s), 10.0, is_training=True)
    assert found == "somebody is at the machine"


# What the tools of a system print


class Tools:
    """Answers of the system's commands, by the name of the command."""

    def __init__(self, answers: Mapping[str, str]) -> None:
        self.answers = dict(answers)

    def __call__(self, command: Sequence[str]) -> str | None:
        name = "apps" if any("compute-apps" in word for word in command) else command[0]
        return self.answers.get(name)


def test_idle_hints_of_logind_are_read() -> None:
    assert idle_of_hints("IdleHint=yes\nIdleSinceHint=1000000000\n", 1060.0) == 60.0
    assert idle_of_hints("IdleHint=no\nIdleSinceHint=0\n", 1060.0) == 0.0
    assert idle_of_hints("", 1060.0) is None


def test_idle_time_of_macos_is_read() -> None:
    text = '    | |   "HIDParameters" = {}\n    | |   "HIDIdleTime" = 12500000000\n'
    assert idle_of_ioreg(text) == 12.5
    assert idle_of_ioreg("no such thing") is None
    seen = MachineUse(Tools({"ioreg": text}), is_macos=True).observe()
    assert seen.input_idle_s == 12.5


def test_xprintidle_is_asked_before_logind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISPLAY", ":0")
    tools = Tools({"xprintidle": "61000\n", "loginctl": "IdleHint=no\n"})
    assert MachineUse(tools, is_macos=False).observe().input_idle_s == 61.0
    monkeypatch.delenv("DISPLAY")
    assert MachineUse(tools, is_macos=False).observe().input_idle_s == 0.0


def test_machine_without_tools_says_what_it_cannot_know(tmp_path: Path) -> None:
    machine = MachineUse(lambda command: None, tmp_path, is_macos=False)
    seen = machine.observe()
    assert (seen.input_idle_s, seen.gpu_others, seen.gpu_percent) == (None, None, None)
    unknown = machine.unknown(seen)
    assert any("a key was pressed" in sentence for sentence in unknown)
    assert any("on a GPU" in sentence for sentence in unknown)
    assert use_in(seen, is_training=True) is None


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
def test_processes_on_the_gpu_are_told_apart_from_own_ones() -> None:
    """Own ones and those that they have started are no others; one of another namespace is not known."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        own = f"{os.getpid()}\n{child.pid}\n"
        of_parent, elsewhere = f"{os.getppid()}\n", "999999999\n"
        found = [
            MachineUse(Tools({"apps": text, "nvidia-smi": "3\n7\n"}), is_macos=False).observe()
            for text in (own, own + of_parent, elsewhere, "")
        ]
        child.communicate(b"\n")
    assert [one.gpu_others for one in found] == [(), (f"process {os.getppid()}",), None, ()]
    assert found[0].gpu_percent == 7


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
def test_own_computing_is_not_counted_as_that_of_others(tmp_path: Path) -> None:
    """A machine whose processor does only what this process does is idle; what is beyond it is others'."""
    proc, pid = tmp_path, os.getpid()
    (proc / str(pid)).mkdir()
    tick = os.sysconf("SC_CLK_TCK")

    def pass_time(own_ticks: int, all_ticks: int) -> None:
        (proc / str(pid) / "stat").write_text(f"{pid} (a b) R 1 " + "0 " * 9 + f"{own_ticks} 0 0 0 0\n")
        (proc / "stat").write_text(f"cpu  {all_ticks} 0 0 500 0 0 0 0 0 0\n")

    pass_time(0, 0)
    assert busy_cpu_s(proc) == 0
    assert own_processes(proc) == {pid: 0.0}
    machine = MachineUse(lambda command: None, proc, is_macos=False)
    assert machine.observe().others_cores is None
    pass_time(1000 * tick, 1000 * tick)
    assert machine.observe().others_cores == 0.0
    pass_time(1000 * tick, 2000 * tick)
    others = machine.observe().others_cores
    assert others is not None
    assert others > 100


def test_command_that_is_not_there_or_fails_or_hangs_has_no_output(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("epochal.run_manager.system_tools.TOOL_TIMEOUT_S", 0.2)
    assert output_of(("no-such-tool",)) is None
    assert output_of(("false",)) is None
    assert output_of(("cat", "/dev/zero")) is None
    assert output_of(("echo", "a")) == "a\n"


@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="no such signal")
def test_real_machine_is_observed_twice() -> None:
    machine = MachineUse()
    machine.observe()
    seen = machine.observe()
    assert seen.cores >= 1
    assert seen.others_cores is None or seen.others_cores >= 0
