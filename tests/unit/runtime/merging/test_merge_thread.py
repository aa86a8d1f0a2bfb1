"""The thread in which replicas are merged is refused if its arithmetic is not IEEE 754."""

import ctypes
import platform
import struct
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from blake3 import blake3

import epochal.runtime.merging.merger
from epochal.runtime.files.spool import Spool
from epochal.runtime.merging.merger import Merger
from epochal.runtime.worker_thread import InlineWorker, Worker, WorkerThread
from epochal.state.config.state_file import MergeConfig
from epochal.state.errors import InternalError
from epochal.state.merging import OuterStep, UnsoundArithmetic, merge
from epochal.state.model.digest import ALL_CORES_BYTES
from epochal.state.model.replica import Replica, replica_digest
from epochal.state.model.tensors import Tensors, wire_bytes
from tests.support.data.spooled import SPOOL_PARENT
from tests.support.drive.cli import heavy_imports_of

CONFIG = MergeConfig(outer_lr=0.7, outer_momentum=0.9)
SPOOL = Spool(SPOOL_PARENT)
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


def update() -> Tensors:
    return {"w": np.array([0.5, 1e-41], np.float32)}


@pytest.mark.parametrize("worker", [WorkerThread("test-merge"), InlineWorker()], ids=["thread", "inline"])
async def test_merger_returns_the_replica_of_the_pure_rule(worker: Worker) -> None:
    merger = Merger(CONFIG, SPOOL, worker)
    await merger.verify()
    after = await merger.applied(replica(), update())
    assert after.digest == replica_digest(merge(replica(), update(), OuterStep.of(CONFIG)))
    await merger.aclose()


def test_digest_on_all_cores_is_that_of_one_core() -> None:
    count = ALL_CORES_BYTES // 4
    large = Replica(0, {"w": np.arange(count, dtype=np.float32)}, {"w": np.ones(count, np.float32)})
    data = b"epochal/replica/v1\0" + struct.pack("<QI", 0, 1) + struct.pack("<IsIQ", 1, b"w", 1, count)
    one_core = blake3(data + wire_bytes(large.parameters["w"]) + wire_bytes(large.momentum["w"])).hexdigest()
    assert replica_digest(large) == one_core


async def test_merger_raises_what_the_rule_raises() -> None:
    merger = Merger(CONFIG, SPOOL, WorkerThread("test-merge"))
    with pytest.raises(InternalError):
        await merger.applied(replica(), {})
    assert (await merger.applied(replica(), update())).step == 1
    await merger.aclose()


@needs_glibc_x86_64
@pytest.mark.parametrize(
    ("mode", "what"), [(FLUSH_TO_ZERO, "a denormal result"), (DENORMALS_ARE_ZERO, "a denormal"), (ROUND_DOWN, "a tie")]
)
async def test_merger_in_a_thread_with_another_arithmetic_refuses_to_merge(
    mode: int, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(epochal.runtime.merging.merger, "MERGED_IN_MEMORY_BYTES", 0)
    merger = Merger(CONFIG, SPOOL, WorkerThread("test-merge"))
    with floating_point_mode(mode), pytest.raises(UnsoundArithmetic, match=what):
        await merger.verify()
    with pytest.raises(UnsoundArithmetic, match="would differ from the others"):
        await merger.applied(replica(), update())
    await merger.aclose()


@needs_glibc_x86_64
async def test_small_replica_is_merged_elsewhere_where_the_caller_is_unsound() -> None:
    merger = Merger(CONFIG, SPOOL, WorkerThread("test-merge"))
    await merger.verify()
    start, mean = replica(), update()
    with floating_point_mode(FLUSH_TO_ZERO):
        after = await merger.applied(start, mean)
    assert after.digest == replica_digest(merge(replica(), update(), OuterStep.of(CONFIG)))
    await merger.aclose()


@needs_glibc_x86_64
async def test_merger_inline_refuses_as_its_own_thread_would() -> None:
    merger = Merger(CONFIG, SPOOL, InlineWorker())
    with floating_point_mode(FLUSH_TO_ZERO), pytest.raises(UnsoundArithmetic):
        await merger.applied(replica(), update())
    assert (await merger.applied(replica(), update())).step == 1


def test_merging_needs_no_library_that_may_differ_between_clients() -> None:
    assert heavy_imports_of("import epochal.runtime.merging.merger") <= {"numpy", "pydantic"}
