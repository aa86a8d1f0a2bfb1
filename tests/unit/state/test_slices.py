"""Slices of a model: however it is cut, the update has the same bytes."""

from dataclasses import replace
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochal.runtime.files.spool import Spool
from epochal.runtime.merging.room_for_sums import room_for_sums
from epochal.state import slices
from epochal.state.codecs.codecs_by_name import codec_named
from epochal.state.errors import InvalidResult
from epochal.state.model.tensors import TensorLayout, wire_bytes
from epochal.state.results import ResultHeader, decode_result, encode_result
from epochal.state.slices import MAX_SLICES, blocks_in, decode_slice, rule_broken_by, slices_of
from epochal.state.updates import UpdateHeader, UpdateRule, Weight, update_bytes, update_of

HEADER = ResultHeader("run", 1, 0, "ab" * 16, "ab" * 32, "ab" * 32)
RULES = [
    ("float32", UpdateRule("float32")),
    ("int8", UpdateRule("int4")),
    ("int4", UpdateRule("int8")),
    ("sparse-64", UpdateRule("int4", "senders")),
    ("sparse-64", UpdateRule("float32")),
]
"""Codecs of results, and how the update is made of them."""
shapes = st.lists(st.integers(1, 9), min_size=0, max_size=3).map(tuple)
layouts = st.lists(shapes, min_size=1, max_size=9).map(
    lambda found: TensorLayout(tuple((f"tensor.{number}", shape) for number, shape in enumerate(found)))
)


def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "SLICE_VALUES", 1)


@given(layouts, st.integers(1, 100))
def test_slices_hold_every_tensor_once_and_are_no_more_than_asked_for(layout: TensorLayout, count: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        small(patch)
        found = slices_of(layout, count)
    assert list(chain.from_iterable(part.of(layout).entries for part in found)) == list(layout.entries)
    assert all(part.first < part.stop for part in found)
    assert 1 <= len(found) <= min(count, MAX_SLICES)


def test_slices_have_about_as_many_values(monkeypatch: pytest.MonkeyPatch) -> None:
    layout = TensorLayout(tuple((f"tensor.{number:03}", (1000,)) for number in range(200)))
    small(monkeypatch)
    sizes = [part.stop - part.first for part in slices_of(layout, 7)]
    assert len(sizes) == 7
    assert max(sizes) - min(sizes) <= 1


def test_small_model_is_not_cut() -> None:
    layout = TensorLayout((("a", (1000,)), ("b", (1000,))))
    assert len(slices_of(layout, 64)) == 1


@given(layouts, st.integers(1, 9), st.sampled_from(RULES), st.integers(0, 2**32))
def test_update_of_slices_has_the_bytes_of_the_whole(
    layout: TensorLayout, count: int, rules: tuple[str, UpdateRule], seed: int
) -> None:
    """Each slice is summed of the bytes at its place in each result, as workers do it, and encoded apart."""
    (codec, rule), chance, spool = rules, np.random.default_rng(seed), Spool(Path("/var/tmp"))
    found, updating = codec_named(codec), codec_named(rule.codec)
    results = []
    for batches in (1, 3, 2):
        difference = {name: chance.standard_normal(shape).astype(np.float32) for name, shape in layout.entries}
        results.append((Weight(batches, 0.5), encode_result(replace(HEADER, codec=codec), difference)))
    made = []
    with pytest.MonkeyPatch.context() as patch:
        small(patch)
        parts = slices_of(layout, count)
    for part in parts:
        own = part.of(layout)
        total = room_for_sums(spool, own, rule.mean)
        for weight, data in results:
            start, stop = part.place_in(data, layout, found)
            total.add(weight, decode_slice(data[start:stop], own, found))
        encoded = updating.encoded(own)
        made.append(b"".join(wire_bytes(block, encoded.dtype) for block in total.encoded(rule.codec)))
        assert rule_broken_by(made[-1], own, updating) is None
    update = UpdateHeader("run", 1, "ab" * 32, rule.codec)
    whole = [(weight, decode_result(data, layout)[1]) for weight, data in results]
    joined = update_of(
        update,
        layout,
        lambda: chain.from_iterable(
            blocks_in(data, part.of(layout), updating).values() for data, part in zip(made, parts, strict=True)
        ),
    )
    assert joined.to_bytes() == update_bytes(update, rule, layout, whole)


def test_place_in_a_result_of_another_model_is_not_found() -> None:
    data = encode_result(HEADER, {"w": np.zeros(3, np.float32)})
    with pytest.raises(InvalidResult, match="not the model's"):
        slices.Slice(0, 1).place_in(data, TensorLayout((("w", (4,)),)), codec_named("float32"))
    with pytest.raises(InvalidResult, match="not a result"):
        slices.Slice(0, 1).place_in(data[:-1], TensorLayout((("w", (3,)),)), codec_named("float32"))


def test_mean_that_breaks_its_codecs_rules_is_found() -> None:
    layout = TensorLayout((("a", (2,)), ("b", (300,))))
    codec = codec_named("int4")
    right = b"".join(bytes(codec.encode(np.ones(size, np.float32))) for _, size in layout.counts())
    assert rule_broken_by(right, layout, codec) is None
    assert rule_broken_by(bytes(len(right)), layout, codec) == "scale"
    assert rule_broken_by(right[:-1] + b"\x88", layout, codec) == "code"
