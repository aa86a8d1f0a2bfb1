"""The costs of a machine's work: hashing, encoding, checking and merging, as measured; `calibrated` measures them here.

`MEASURED` was measured with `calibrated` on the machine of `docs/benchmarks-exchange.md` (2 cores, x86_64, SHA
instructions); what a message costs a coordinator is from `docs/benchmarks-scale.md`. Other machines differ by a factor
of two or three, which matters only where links are fast: 4 bytes take 320 ns on 100 Mbit/s, and a parameter
takes 5 to 30 ns of this work.
"""

import hashlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from epochal.state.codecs.codecs_by_name import codec_named
from epochal.state.merging import Contribution, OuterStep, merge
from epochal.state.model.replica import Replica
from epochal.state.model.tensors import TensorLayout
from epochal.state.results import ResultHeader, check_result, decode_result, encode_result

CALIBRATED_VALUES = 2**21
"""Parameters of the model that `calibrated` works on: more than fit into a processor's caches."""
CALIBRATED_RUNS = 3
HASHED_BYTES = 2**25


@dataclass(frozen=True, slots=True)
class CodecCosts:
    """Seconds for one parameter, in one thread.

    Attributes:
        encode_s: to encode a difference.
        check_s: to check a result.
        merge_s: to decode and add one result of a merge.
    """

    encode_s: float
    check_s: float
    merge_s: float


@dataclass(frozen=True, slots=True)
class Costs:
    """The time that a machine's work takes.

    Attributes:
        codecs: of each codec.
        step_s: seconds for one parameter of a merge's outer step.
        hash_s: seconds to hash one byte.
        message_s: processor time of the coordinator for a message and its answer.
        commit_s: seconds until what a coordinator was told is kept.
        begin_s: seconds of a client from a round's document to its first local step, without any of the above.
        slow_start: whether connections begin slowly, as TCP does on a long way.
        source: where the figures are from, in words.
    """

    codecs: Mapping[str, CodecCosts] = field(
        default_factory=lambda: {
            "float32": CodecCosts(0.6e-9, 0.3e-9, 0.3e-9),
            "int8": CodecCosts(1.5e-9, 0.5e-9, 1.2e-9),
            "int4": CodecCosts(3.2e-9, 1.1e-9, 1.4e-9),
            "sparse": CodecCosts(9.5e-9, 0.3e-9, 3.0e-9),
        }
    )
    step_s: float = 6.0e-9
    hash_s: float = 0.6e-9
    message_s: float = 0.00018
    commit_s: float = 0.003
    begin_s: float = 0.004
    slow_start: bool = True
    source: str = "measured on 2 cores (x86_64); --calibrate measures this machine"

    def of(self, codec: str) -> CodecCosts:
        """Return those of a codec, by its name in a state file."""
        return self.codecs[codec]


def calibrated(codec: str, codec_name: str, costs: Costs) -> Costs:
    """Return the costs with what this machine takes to hash, and to encode, check and merge with one codec.

    Takes about a second, and 100 MB of memory.

    Args:
        codec: its name in a state file.
        codec_name: its name in a result (`MergeConfig.codec_name`).
        costs: the others.
    """
    data = bytes(HASHED_BYTES)
    hash_s = _fastest(lambda: hashlib.sha256(data)) / HASHED_BYTES
    size = CALIBRATED_VALUES
    values = np.sin(np.arange(size, dtype=np.float32)).reshape(size // 1024, 1024) * np.float32(0.01)
    difference = {"w": values}
    layout = TensorLayout((("w", values.shape),))
    header = ResultHeader("plan", 1, 0, "0" * 32, "0" * 64, "0" * 64, codec_name)
    result = encode_result(header, difference)
    encode_s = _fastest(lambda: encode_result(header, difference))
    check_s = _fastest(lambda: check_result(result, header, layout, 1e4))
    replica = Replica(0, {"w": values}, {"w": np.zeros_like(values)})
    outer = OuterStep(0.7, 0.8)
    contributions = [Contribution(1, decode_result(result, layout)[1]) for _ in range(4)]
    one_s, four_s = (_fastest(partial(merge, replica, contributions[:count], outer)) for count in (1, 4))
    merge_s = max(0.0, four_s - one_s) / 3
    measured = CodecCosts(encode_s / size, check_s / size, merge_s / size)
    return replace(
        costs,
        codecs={**costs.codecs, codec: measured},
        step_s=max(0.0, one_s - merge_s) / size,
        hash_s=hash_s,
        source=f"measured on this machine with {codec_named(codec_name).name}",
    )


def _fastest(work: Callable[[], object]) -> float:
    """Return the time of the fastest of a few runs: the one that other programs disturbed least."""
    times = []
    for _ in range(CALIBRATED_RUNS):
        started_s = time.perf_counter()
        work()
        times.append(time.perf_counter() - started_s)
    return min(times)
