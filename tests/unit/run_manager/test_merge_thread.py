"""The merging thread: off the event loop, in order, and refused if its arithmetic is not IEEE 754."""

import ctypes
import platform
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from epochal.run_manager.replica.merger import Merger
from epochal.runtime.worker_thread import InlineWorker, Worker, WorkerThread
from epochal.state.errors import InternalError
from epochal.state.merging import Contribution, OuterStep, UnsoundArithmetic, merge
from epochal.state.model.replica import Replica, replica_digest
from tests.support.drive.cli import heavy_imports_of

OUTER = OuterStep(0.7, 0.9)
WAIT_S = 10.0
FLUSH_TO_ZERO = 1 << 15
DENORMALS_ARE_ZERO = 1 << 6
ROUND_DOWN = 1 << 13

needs_glibc_x86_64 = pytest.mark.skipif(
    (platform.machine(), platform.libc_ver()[0]) != ("x86_64", "glibc"), reason="sets the x86-64 mode through glibc"
)


class _FloatingPointEnvironment(ctypes.Structure):
    """glibc's `fenv_t` on x86-64: the x87 environment, then MXCSR."""

    _fields_ = (("x87", ctypes.c_ubyte * 28), ("mxcsr", ctypes.c_uint32))


@contextmanager
def floating_point_mode(bits: int) -> Iterator[None]:
    """Set bits of this thread's MXCSR; a thread that is started meanwhile inherits them."""
    library = ctypes.CDLL("libm.so.6")
    saved, changed = _FloatingPointEnvironment(), _FloatingPointEnvironment()
    assert library.fegetenv(ctypes.byref(saved)) == 0
    ctypes.pointer(changed)[0] = saved
    changed.mxcsr |= bits
    assert library.fesetenv(ctypes.byref(changed)) == 0
    try:
        yield
    finally:
        assert library.fesetenv(ctypes.byref(saved)) == 0


def replica() -> Replica:
    return Replica(0, {"w": np.array([1.0, 1e-40], np.float32)}, {"w": np.zeros(2, np.float32)})


def contributions() -> list[Contribution]:
    return [Contribution(2, {"w": np.array([0.5, 1e-41], np.float32)})]


@pytest.mark.parametrize("worker", [WorkerThread("test-merge"), InlineWorker()], ids=["thread", "inline"])
async def test_merger_returns_the_replica_of_the_pure_rule(worker: Worker) -> None:
    merger = Merger(OUTER, worker)
    await merger.verify()
    after = await merger.merge(replica(), contributions())
    assert await merger.digest(after) == replica_digest(merge(replica(), contributions(), OUTER))
    await merger.aclose()


async def test_merger_raises_what_the_rule_raises() -> None:
    merger = Merger(OUTER, WorkerThread("test-merge"))
    with pytest.raises(InternalError):
        await merger.merge(replica(), [])
    assert (await merger.merge(replica(), contributions())).step == 1
    await merger.aclose()


@needs_glibc_x86_64
@pytest.mark.parametrize(
    ("mode", "what"),
    [(FLUSH_TO_ZERO, "a denormal result"), (DENORMALS_ARE_ZERO, "a denormal"), (ROUND_DOWN, "a tie")],
)
async def test_merger_in_a_thread_with_another_arithmetic_refuses_to_merge(mode: int, what: str) -> None:
    merger = Merger(OUTER, WorkerThread("test-merge"))
    with floating_point_mode(mode), pytest.raises(UnsoundArithmetic, match=what):
        await merger.verify()
    with pytest.raises(UnsoundArithmetic, match="would differ from the others"):
        await merger.merge(replica(), contributions())
    await merger.aclose()


@needs_glibc_x86_64
async def test_merger_inline_refuses_as_its_own_thread_would() -> None:
    merger = Merger(OUTER, InlineWorker())
    with floating_point_mode(FLUSH_TO_ZERO), pytest.raises(UnsoundArithmetic):
        await merger.merge(replica(), contributions())
    assert (await merger.merge(replica(), contributions())).step == 1


def test_merging_needs_no_library_that_may_differ_between_clients() -> None:
    assert heavy_imports_of("import epochal.run_manager.replica.merger") <= {"numpy", "pydantic"}
