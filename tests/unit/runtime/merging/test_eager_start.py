"""The start of a client that trains before its round: the outer step with its own published bytes, value by value."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from epochal.runtime.files.spool import Spool
from epochal.runtime.merging import merger as merger_module
from epochal.runtime.merging.merger import Merger
from epochal.runtime.worker_thread import InlineWorker
from epochal.state.codecs.codec import EncodedTensor
from epochal.state.config.state_file import MergeConfig
from epochal.state.merging import OuterStep
from epochal.state.model.replica import Replica
from epochal.state.model.tensors import Float32Array
from epochal.state.results import ResultHeader, decode_result, encode_result
from epochal.state.wire import Blake3, ClientId, Sha256
from tests.support.data.spooled import SPOOL_PARENT
from tests.unit.state.test_merging import GOLDEN_MOMENTUM, GOLDEN_THETA, bits_of, floats_of, moderate, oracle

MERGE = MergeConfig(outer_lr=0.7, outer_momentum=0.9)
CODECS = ("float32", "int8", "int4")
DIFFERENCE = floats_of("3e99999a be4ccccd 33d6bf95 3f7fffff 00000007 80000000")
GOLDEN_START = "3f28865a ca9126f0 80489374 bf7f5c28 00000000 80000000"


def result_of(difference: Float32Array, codec: str) -> bytes:
    header = ResultHeader("run", 5, 0, ClientId("ab" * 16), Sha256("cd" * 32), Blake3("ef" * 32), codec)
    return encode_result(header, {"w": difference})


async def start_of(replica: Replica, result: bytes) -> Replica:
    return await Merger(MERGE, Spool(SPOOL_PARENT), InlineWorker()).eager_start(replica, result)


def vectors(size: int) -> st.SearchStrategy[Any]:
    return arrays.arrays(np.float32, size, elements=moderate)


@pytest.mark.parametrize("limit_bytes", [0, 1024 * 1024])
@pytest.mark.parametrize("codec", CODECS)
@settings(max_examples=max(10, settings().max_examples // 10), deadline=None)
@given(vectors(5), vectors(5), vectors(5))
async def test_start_is_the_outer_step_with_three_quarters_of_the_decoded_result(
    codec: str, limit_bytes: int, theta: Float32Array, v: Float32Array, difference: Float32Array
) -> None:
    replica, result = Replica(4, {"w": theta}, {"w": v}), result_of(difference, codec)
    decoded = decode_result(result, replica.layout)[1]["w"]
    own = decoded.read(0, np.empty(5, np.float32)) if isinstance(decoded, EncodedTensor) else decoded
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(merger_module, "MERGED_IN_MEMORY_BYTES", limit_bytes)  # in a file, or in memory
        start = await start_of(replica, result)
    outer = OuterStep.of(MERGE).of_own()
    wanted = [oracle(float(a), float(b), float(c), outer)[0] for a, b, c in zip(theta, v, own, strict=True)]
    assert bits_of(start.parameters["w"]) == bits_of(np.array(wanted, np.float32))
    assert start.step == 5


async def test_start_golden_vector_is_kept() -> None:
    replica = Replica(4, {"w": floats_of(GOLDEN_THETA)}, {"w": floats_of(GOLDEN_MOMENTUM)})
    start = await start_of(replica, result_of(DIFFERENCE, "int4"))
    assert bits_of(start.parameters["w"]) == GOLDEN_START
