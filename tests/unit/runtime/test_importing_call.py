"""`runtime/importing_call.py`: a call that imports modules, how far it is, and its end before its time."""

import asyncio
import importlib
import math
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from epochal.runtime.importing_call import MOST_DONE, STALL_S, ImportingCall
from epochal.state.errors import EpochalError
from tests.support.simulate.virtual_time import VirtualClock

BOUND_S = 10.0
NAMES = [f"imported_for_a_test_{number}" for number in range(4)]


@pytest.fixture(autouse=True)
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Four empty modules that can be imported, and that are imported no longer afterwards."""
    for name in NAMES:
        (tmp_path / f"{name}.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    before = list(sys.meta_path)
    yield
    assert sys.meta_path == before
    for name in NAMES:
        sys.modules.pop(name, None)


class Paused:
    """A call that imports two modules, waits until it may go on, and imports two more."""

    def __init__(self) -> None:
        self._may_go_on = threading.Event()
        self._is_waiting = threading.Event()

    def __call__(self) -> None:
        for number, name in enumerate(NAMES):
            if number == 2:
                self._is_waiting.set()
                assert self._may_go_on.wait(BOUND_S)
            importlib.import_module(name)

    def wait(self) -> None:
        assert self._is_waiting.wait(BOUND_S)

    def go_on(self) -> None:
        self._may_go_on.set()


class HandClock(VirtualClock):
    now_s = 100.0

    def monotonic_s(self) -> float:
        return self.now_s


async def test_time_left_follows_from_the_modules_imported_so_far() -> None:
    paused, clock = Paused(), HandClock()
    call = ImportingCall(paused, module_count=8, clock=clock)
    assert call.left_s() == math.inf
    call.start()
    paused.wait()
    clock.now_s += 2.0
    importlib.import_module(NAMES[3])  # in another thread than the call's
    assert call.left_s() == 2.0 * (8 - 2) / 2
    sys.modules.pop(NAMES[3])
    paused.go_on()
    await asyncio.wait_for(call.ended(), BOUND_S)
    assert call.left_s() == 0.0
    assert set(NAMES) <= set(sys.modules)


async def test_call_that_imports_more_than_expected_is_almost_done() -> None:
    paused, clock = Paused(), HandClock()
    call = ImportingCall(paused, module_count=1, clock=clock)
    call.start()
    paused.wait()
    clock.now_s += 2.0
    assert call.left_s() == pytest.approx(2.0 * (1 - MOST_DONE) / MOST_DONE)
    clock.now_s += STALL_S
    assert call.left_s() == math.inf, "it may hang"
    paused.go_on()
    await asyncio.wait_for(call.ended(), BOUND_S)


async def test_call_that_is_stopped_ends_at_its_next_import() -> None:
    paused = Paused()
    call = ImportingCall(paused, module_count=4)
    call.start()
    paused.wait()
    call.stop()
    paused.go_on()
    with pytest.raises(EpochalError, match="stopped before everything was imported"):
        await asyncio.wait_for(call.ended(), BOUND_S)
    assert set(NAMES[:2]) <= set(sys.modules)
    assert not set(NAMES[2:]) & set(sys.modules)


async def test_error_of_the_call_reaches_everybody_who_waits() -> None:
    def fail() -> None:
        raise ImportError("no such library")

    call = ImportingCall(fail, module_count=4)
    call.start()
    for _ in range(2):
        with pytest.raises(ImportError, match="no such library"):
            await asyncio.wait_for(call.ended(), BOUND_S)


async def test_waiter_that_is_cancelled_leaves_the_call_alone() -> None:
    paused = Paused()
    call = ImportingCall(paused, module_count=4)
    call.start()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(call.ended(), 0)
    paused.go_on()
    await asyncio.wait_for(call.ended(), BOUND_S)


async def test_finders_that_others_go_through_do_not_change_under_them() -> None:
    paused, before = Paused(), sys.meta_path
    finders = list(before)
    call = ImportingCall(paused, module_count=4)
    call.start()
    paused.wait()
    during = sys.meta_path
    assert len(during) == len(finders) + 1
    paused.go_on()
    await asyncio.wait_for(call.ended(), BOUND_S)
    assert len(during) == len(finders) + 1
    assert before == finders


async def test_import_that_hangs_does_not_keep_the_process() -> None:
    paused = Paused()
    call = ImportingCall(paused, module_count=4)
    call.start()
    paused.wait()
    (thread,) = (one for one in threading.enumerate() if one.name == "epochal-import")
    assert thread.daemon
    paused.go_on()
    call.join()
    assert not thread.is_alive()
