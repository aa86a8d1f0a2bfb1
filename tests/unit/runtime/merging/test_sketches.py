"""Sketches: their cosines are those of the results, whoever makes them, and only with the seed."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochal.runtime.merging.sketches import MAX_WIDTH, Sketcher, cosine, largest_cosine, likenesses
from epochal.state.model.tensors import TensorLayout, layout_of
from epochal.state.results import ResultHeader, decode_result, encode_result

SEED = b"a round's"
SIZES = (1, 4095, 4096, 4097, 70_000)
LAYOUT = TensorLayout(tuple((f"t{number}", (size,)) for number, size in enumerate(SIZES)))
VALUES = sum(SIZES)
ZERO = "0" * 64


def difference(values: np.ndarray) -> dict[str, np.ndarray]:
    """These values, as the tensors of `LAYOUT`."""
    parts = np.split(values.astype(np.float32), np.cumsum(SIZES)[:-1])
    return {name: part for (name, _), part in zip(LAYOUT.entries, parts, strict=True)}


def pair(wanted: float, number: int) -> tuple[np.ndarray, np.ndarray]:
    """Two vectors with heavy tails and about this cosine."""
    made = np.random.default_rng(number)
    common, one, other = made.standard_t(3, (3, VALUES))
    near, far = np.sqrt(wanted), np.sqrt(1 - wanted)
    return near * common + far * one, near * common + far * other


@pytest.mark.parametrize("wanted", [0.0, 0.3, 0.9])
def test_cosine_of_sketches_is_that_of_the_results(wanted: float) -> None:
    errors = []
    for number in range(24):
        one, other = pair(wanted, number)
        exact = float(one @ other / np.linalg.norm(one) / np.linalg.norm(other))
        sketcher = Sketcher(bytes([number]), LAYOUT)
        errors.append(cosine(sketcher.sketches(difference(one)), sketcher.sketches(difference(other))) - exact)
    assert abs(np.mean(errors)) < 0.02, "right on average"
    assert np.std(errors) < 1.5 / np.sqrt(MAX_WIDTH)


def test_sketch_is_linear_and_only_of_its_seed() -> None:
    one, other = pair(0.5, 1)
    sketcher = Sketcher(SEED, LAYOUT)
    both = sketcher.sketches(difference(one + other))
    assert np.allclose(both, sketcher.sketches(difference(one)) + sketcher.sketches(difference(other)), atol=1e-3)
    elsewhere = Sketcher(b"another's", LAYOUT).sketches(difference(one))
    assert abs(cosine(sketcher.sketches(difference(one)), elsewhere)) < 0.1


@pytest.mark.parametrize("codec", ["float32", "int8", "int4"])
def test_encoded_result_has_the_sketch_of_what_it_decodes_to(codec: str) -> None:
    values = difference(pair(0.5, 2)[0])
    data = encode_result(ResultHeader("run", 1, 0, "0" * 32, ZERO, ZERO, codec), values)
    found = decode_result(data, layout_of(values))[1]
    sketch = Sketcher(SEED, LAYOUT).sketches(found)
    assert cosine(sketch, Sketcher(SEED, LAYOUT).sketches(values)) > 0.9
    decoded = {
        name: each if isinstance(each, np.ndarray) else each.read(0, np.empty(each.size, np.float32))
        for name, each in found.items()
    }
    assert sketch.tobytes() == Sketcher(SEED, LAYOUT).sketches(decoded).tobytes()


@given(st.lists(st.floats(0.1, 8), min_size=3, max_size=6), st.integers(0, 99))
def test_likeness_is_with_the_weighted_mean_of_the_others(weights: list[float], number: int) -> None:
    """Computed again from the sketches, one by one."""
    sketches = dict(enumerate(np.random.default_rng(number).normal(size=(len(weights), 64))))
    found = likenesses(sketches, dict(enumerate(weights)))
    for key, sketch in sketches.items():
        others = [other for other in sketches if other != key]
        mean = sum((weights[other] * sketches[other] for other in others), np.zeros(64))
        assert found[key].with_mean == pytest.approx(cosine(sketch, mean))
        assert found[key].with_other == pytest.approx(largest_cosine(sketch, [sketches[other] for other in others]))


def test_one_result_alone_is_like_nothing_and_zeros_are_like_nobody() -> None:
    assert likenesses({"a": np.ones(4)}, {"a": 1.0})["a"] == (None, None, None)
    found = likenesses({"a": np.zeros(4), "b": np.ones(4)}, {"a": 1.0, "b": 2.0})
    assert found == {"a": (0.0, 0.0, None), "b": (0.0, 0.0, None)}
    assert largest_cosine(np.ones(4), []) is None
