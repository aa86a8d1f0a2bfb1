"""Probes: a piece of the mean, wherever it is chosen, agrees with what the results make, and with nothing else."""

import secrets
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochal.coordinator.blobs import slice_probe
from epochal.coordinator.blobs.leased_slices import SharedSlice
from epochal.coordinator.blobs.slice_probe import Probe
from epochal.state.codecs.codecs_by_name import codec_named
from epochal.state.config.state_file import MergeConfig
from epochal.state.model.tensors import TensorLayout
from epochal.state.results import ResultHeader, decode_result, encode_result
from epochal.state.slices import Slice
from epochal.state.updates import UpdateHeader, UpdateRule, Weight, update_bytes

LAYOUT = TensorLayout((("a", (7,)), ("b", (90, 100)), ("c", (4500,)), ("d", ())))
PART = SharedSlice(slice=Slice(1, 4), layout=Slice(1, 4).of(LAYOUT), free_since_s=0.0)
MERGES: list[dict[str, Any]] = [
    {"codec": "float32", "update": "exact"},
    {"codec": "int4", "update": "int8"},
    {"codec": "sparse", "update": "int4", "mean": "senders"},
]


@given(st.integers(0, 7 + 9000 + 4500), st.sampled_from(MERGES), st.integers(0, 2**32))
def test_probe_agrees_with_the_mean_and_with_no_other(value: int, tables: dict[str, Any], seed: int) -> None:
    merge, chance = MergeConfig(**tables), np.random.default_rng(seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(slice_probe, "PROBED_VALUES", 4096)
        patch.setattr(secrets, "randbelow", lambda _count: value)
        probe = Probe(LAYOUT, merge)
    results = []
    for batches in (2, 1):
        values = {name: chance.standard_normal(shape).astype(np.float32) for name, shape in LAYOUT.entries}
        header = ResultHeader("run", 1, 0, "ab" * 16, "ab" * 32, "ab" * 32, merge.codec_name)
        results.append((Weight(batches, 0.5), encode_result(header, values)))
        probe.add(*results[-1])
    wanted, rule = UpdateHeader("run", 1, "ab" * 32, merge.update_codec), UpdateRule.of(merge)
    update = update_bytes(wanted, rule, LAYOUT, [(weight, decode_result(data, LAYOUT)[1]) for weight, data in results])
    encoded = codec_named(merge.update_codec).encoded(LAYOUT)
    made = bytearray(update[len(update) - Slice(1, 4).of(encoded).size_bytes :])
    assert probe.allows(PART, made)
    wrong = bytes(byte ^ 1 for byte in made)
    assert probe.allows(PART, wrong) == (value < 7)  # which is in another slice
