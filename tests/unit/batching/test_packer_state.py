"""A packer saved and restored goes on exactly, or says why it cannot."""

import itertools
import json
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochal.batching.packing.packer import Packer, indices_held, packed
from epochal.batching.packing.samples import EncodedSample, RawSample
from epochal.batching.packing.task_encoder import SkipSample, TaskEncoder, stateless
from epochal.state.config.state_file import PackingConfig
from epochal.state.errors import InvalidInput
from tests.support.data.packing import (
    METHODS,
    POLICIES,
    LongestFirst,
    Picky,
    context,
    lengths_strategy,
    packer_of,
    samples_of,
    signature,
)


class StatelessLongestFirst(LongestFirst):
    """The same, saved and restored with noise in its samples."""

    @stateless(restore_seeds=True)
    def encode_sample(self, sample: RawSample) -> EncodedSample:
        if len(sample.tokens) == 3:
            raise SkipSample
        return EncodedSample(np.concatenate([sample.tokens, [self.rng.randrange(256)]]).astype("<u2"))


@given(lengths_strategy, st.sampled_from(METHODS), st.sampled_from(POLICIES), st.integers(1, 12), st.integers(0, 50))
def test_restored_packer_yields_exactly_the_remaining_rows(
    lengths: list[int], method: str, oversized: str, pool_size: int, after: int
) -> None:
    def encoder() -> TaskEncoder:
        return StatelessLongestFirst(context()) if method == "encoder" else TaskEncoder(context())

    config = PackingConfig.model_validate({"method": method, "oversized": oversized, "pool_size": pool_size})
    packer = Packer(config, encoder())
    rows = packed(packer, samples_of(lengths))
    list(itertools.islice(rows, after))
    state = json.loads(json.dumps(packer.state()))
    rest = signature(list(rows))

    raw = list(samples_of(lengths))
    restored = Packer.restored(config, encoder(), state, (raw[index] for index in indices_held(state)))
    assert len(indices_held(state)) <= (1 if method == "padded" else pool_size)
    assert signature(list(packed(restored, iter(raw[state["counts"]["samples"] :])))) == rest
    assert asdict(restored.counts) == asdict(packer.counts)


@pytest.mark.parametrize(
    ("config", "encoder", "message"),
    [
        ({"pool_size": 8}, TaskEncoder(context()), "pool_size was 4 and is 8"),
        ({"pool_size": 4, "oversized": "drop"}, TaskEncoder(context()), "oversized was 'split' and is 'drop'"),
        ({"pool_size": 4}, TaskEncoder(context(row_tokens=8)), "row_tokens was 16 and is 8"),
        ({"pool_size": 4}, Picky(context()), "task_encoder was 'epochal.batching.*TaskEncoder' and is 'tests.*Picky'"),
        ({"pool_size": 4}, type("V", (TaskEncoder,), {"version": "2"})(context()), "task_encoder_version was '1'"),
    ],
)
def test_state_of_another_configuration_is_refused_by_what_changed(
    config: dict[str, Any], encoder: TaskEncoder, message: str
) -> None:
    packer = packer_of(pool_size=4, oversized="split")
    next(packed(packer, samples_of([5] * 9)))
    with pytest.raises(InvalidInput, match=message):
        Packer.restored(PackingConfig(**{"oversized": "split", **config}), encoder, packer.state(), ())


def test_damaged_state_is_refused_and_an_encoder_with_a_state_is_not_saved() -> None:
    packer = packer_of(pool_size=4)
    packer.take(samples_of([5, 5]))
    state = packer.state()
    damages: list[dict[str, Any]] = [{"format": "x"}, {"pool": [[0]]}, {"pool": 3}, {"counts": {}}, {"pool": [[9, 0]]}]
    for damage in damages:
        with pytest.raises(InvalidInput, match=r"saved state"):
            Packer.restored(PackingConfig(pool_size=4), TaskEncoder(context()), state | damage, samples_of([5, 5]))
    with pytest.raises(InvalidInput, match="saved state is damaged"):
        indices_held({"pool": 3})
    stateful = type("Stateful", (TaskEncoder,), {"encode_sample": lambda self, raw: EncodedSample(raw.tokens)})
    with pytest.raises(InvalidInput, match=r"encode_sample is not marked @stateless"):
        packer_of(encoder=stateful(context())).state()
