"""The replica's digest and its checkpoint file: golden vectors, and every way in which a file can be wrong."""

import hashlib
import json
import struct
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from epochal.state.errors import InternalError, InvalidDocument
from epochal.state.model.first_model import check_first_values
from epochal.state.model.replica import (
    CheckpointForm,
    Replica,
    check_layout,
    check_momentum,
    checkpoint_bytes,
    checkpoint_form,
    checkpoint_size_bound,
    examine_checkpoint,
    first_replica,
    parse_checkpoint,
    replica_digest,
)
from epochal.state.model.tensors import CHECK_CHUNK_ELEMENTS, TensorLayout, Tensors, encode_tensor_file
from tests.support.data.watched_reads import WatchedReads

finite_floats = st.floats(width=32, allow_nan=False, allow_infinity=False)


def small_replica(step: int = 3) -> Replica:
    parameters: Tensors = {
        "w": np.array([[1.0, -2.0, 0.5], [3.0, 1e-40, -0.0]], np.float32),
        "b": np.array([0.25], np.float32),
    }
    return Replica(step, parameters, {"b": np.array([7.0], np.float32), "w": np.zeros((2, 3), np.float32)})


@st.composite
def replicas(draw: st.DrawFn) -> Replica:
    names = draw(st.lists(st.text(min_size=1, max_size=8).filter(lambda n: n.isprintable()), min_size=1, max_size=4))
    shapes = {name: draw(hnp.array_shapes(min_dims=0, max_dims=3, max_side=4)) for name in names}

    def tensors() -> Tensors:
        return {n: draw(hnp.arrays(np.float32, shape, elements=finite_floats)) for n, shape in shapes.items()}

    return Replica(draw(st.integers(0, 2**63 - 1)), tensors(), tensors())


def assert_same(left: Replica, right: Replica) -> None:
    assert left.step == right.step
    for one, other in ((left.parameters, right.parameters), (left.momentum, right.momentum)):
        assert list(one) == list(other)
        for name in one:
            assert one[name].shape == other[name].shape
            assert one[name].tobytes() == other[name].tobytes()


def rewritten(change: Callable[[dict[str, Any]], object], tail: bytes = b"") -> bytes:
    """The small checkpoint with its header changed and something after its end."""
    data = checkpoint_bytes(small_replica())
    (length,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8 : 8 + length])
    change(header)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data[8 + length :] + tail


def broken_rule(data: bytes) -> str:
    with pytest.raises(InvalidDocument) as caught:
        parse_checkpoint(data)
    with pytest.raises(InvalidDocument) as examined:
        examine_checkpoint(data)
    assert examined.value.context["rule"] == caught.value.context["rule"]
    return str(caught.value.context["rule"])


def test_replica_digest_golden_vector_is_kept() -> None:
    assert replica_digest(small_replica()) == DIGEST_OF_SMALL_REPLICA


def test_replica_digest_hashes_exactly_the_documented_bytes() -> None:
    stream = b"epochal/replica/v1\0" + bytes.fromhex(
        "0300000000000000 02000000"
        "01000000 62 01000000 0100000000000000 0000803e 0000e040"
        "01000000 77 02000000 0200000000000000 0300000000000000"
        "0000803f 000000c0 0000003f 00004040 c2160100 00000080" + "00000000" * 6
    )
    assert replica_digest(small_replica()) == blake3(stream).hexdigest()


@pytest.mark.parametrize("changed", ["step", "parameter", "momentum", "shape", "name", "sign of zero"])
def test_replica_digest_differs_when_anything_differs(changed: str) -> None:
    replica = small_replica()
    step, parameters, momentum = replica.step, dict(replica.parameters), dict(replica.momentum)
    if changed == "step":
        step += 1
    elif changed == "parameter":
        parameters["b"] = np.nextafter(parameters["b"], np.float32(1))
    elif changed == "momentum":
        momentum["b"] = np.array([8.0], np.float32)
    elif changed == "shape":
        parameters["w"], momentum["w"] = parameters["w"].reshape(3, 2), momentum["w"].reshape(3, 2)
    elif changed == "name":
        parameters["c"], momentum["c"] = parameters.pop("b"), momentum.pop("b")
    else:
        parameters["w"] = np.where(parameters["w"] == 0, np.float32(0), parameters["w"])
    assert replica_digest(Replica(step, parameters, momentum)) != DIGEST_OF_SMALL_REPLICA


@given(replicas())
def test_replica_digest_does_not_depend_on_memory_layout(replica: Replica) -> None:
    def laid_out_otherwise(tensors: Tensors) -> Tensors:
        spread = {name: np.repeat(array.reshape(-1), 3) for name, array in reversed(tensors.items())}
        return {name: flat[::3].reshape(tensors[name].shape) for name, flat in spread.items()}

    other = Replica(replica.step, laid_out_otherwise(replica.parameters), laid_out_otherwise(replica.momentum))
    assert replica_digest(other) == replica_digest(replica)


@given(replicas())
def test_checkpoint_round_trip_gives_the_same_replica(replica: Replica) -> None:
    data = checkpoint_bytes(replica)
    assert len(data) <= checkpoint_size_bound(replica.layout, has_momentum=True)
    assert_same(parse_checkpoint(data), replica)


def test_checkpoint_golden_vector_is_kept() -> None:
    assert hashlib.sha256(checkpoint_bytes(small_replica())).hexdigest() == SHA256_OF_SMALL_CHECKPOINT


def test_checkpoint_is_read_by_the_safetensors_library() -> None:
    tensors = safetensors.numpy.load(checkpoint_bytes(small_replica()))
    assert sorted(tensors) == ["momentum.b", "momentum.w", "parameters.b", "parameters.w"]
    np.testing.assert_array_equal(tensors["parameters.w"], small_replica().parameters["w"])


@pytest.mark.parametrize(
    ("rule", "change"),
    [
        ("format", lambda h: h["__metadata__"].update(format="epochal/result")),
        ("format", lambda h: h["__metadata__"].update(version="2")),
        ("format", lambda h: h["__metadata__"].update(extra="1")),
        ("format", lambda h: h.pop("__metadata__")),
        ("step", lambda h: h["__metadata__"].pop("step")),
        ("header", lambda h: h["__metadata__"].update(step=3)),
        ("dtype", lambda h: h["momentum.b"].update(dtype="F16")),
        ("layout", lambda h: h["momentum.b"].update(shape=[0, 2**62, 2**62])),
        ("layout", lambda h: h["momentum.b"].update(shape=[2**62])),
        ("layout", lambda h: h.update({"momentum.a": h.pop("momentum.w")})),
        ("names", lambda h: h.update({"parameters.x": h.pop("parameters.w")})),
        ("names", lambda h: h.update({"q": h.pop("parameters.w")})),
        ("names", lambda h: h["parameters.w"].update(shape=[3, 2])),
        ("size", lambda h: h.pop("parameters.w")),
    ],
)
def test_checkpoint_with_a_wrong_header_is_refused_by_rule(
    rule: str, change: Callable[[dict[str, Any]], object]
) -> None:
    assert broken_rule(rewritten(change)) == rule


def test_checkpoint_with_wrong_bytes_is_refused_by_rule() -> None:
    data = checkpoint_bytes(small_replica())
    (length,) = struct.unpack_from("<Q", data)
    assert broken_rule(b"") == "size"
    assert broken_rule(data[:7]) == "size"
    assert broken_rule(data[:100]) == "size"
    assert broken_rule(data[:-1]) == "size"
    assert broken_rule(data + b"\0") == "size"
    assert broken_rule(struct.pack("<Q", 2**63) + data[8:]) == "header"
    assert broken_rule(struct.pack("<Q", length - 4) + data[8:]) == "header"
    assert broken_rule(data[:8] + b"[" * length + data[8 + length :]) == "header"
    assert broken_rule(data[:8] + b"\xff" * length + data[8 + length :]) == "header"
    doubled = data[8 : 8 + length].replace(b'"momentum.w"', b'"momentum.b"')
    assert broken_rule(data[:8] + doubled + data[8 + length :]) == "header"


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_checkpoint_with_a_value_that_is_not_finite_is_refused(value: float) -> None:
    bad = Replica(0, {"w": np.array([1, value], np.float32)}, {"w": np.zeros(2, np.float32)})
    assert broken_rule(checkpoint_bytes(bad)) == "finite"


@given(st.binary(max_size=64), st.integers(0, 600), st.integers(0, 600))
def test_checkpoint_of_arbitrary_bytes_raises_nothing_but_invalid_document(patch: bytes, start: int, cut: int) -> None:
    data = checkpoint_bytes(small_replica())
    mutated = data[:start] + patch + data[start + cut :]
    try:
        replica = parse_checkpoint(mutated)
    except InvalidDocument:
        assert broken_rule(mutated)
    else:
        assert examine_checkpoint(mutated).replica_digest == replica_digest(replica)


def test_examined_checkpoint_is_what_parsing_all_of_it_finds() -> None:
    elements = 3 * CHECK_CHUNK_ELEMENTS // 2
    parameters = {"a": np.arange(elements, dtype=np.float32), "b": np.ones((2, 3), np.float32)}
    replica = Replica(4, parameters, {name: -values for name, values in parameters.items()})
    data = checkpoint_bytes(replica, '{"a":1}')
    found = examine_checkpoint(data)
    assert (found.form.step, found.form.layout, found.model) == (4, replica.layout, '{"a":1}')
    assert found.replica_digest == replica_digest(replica)
    assert checkpoint_form(data) == found.form


def test_examined_checkpoint_is_read_a_piece_at_a_time() -> None:
    watched = WatchedReads(
        checkpoint_bytes(Replica(0, {"w": np.ones(10**6, np.float32)}, {"w": np.zeros(10**6, np.float32)}))
    )
    examine_checkpoint(watched)
    assert max(watched.read_bytes) <= 4 * CHECK_CHUNK_ELEMENTS


def test_replica_with_parameters_unlike_momentum_is_our_own_bug() -> None:
    one, two = {"w": np.zeros(1, np.float32)}, {"w": np.zeros(2, np.float32)}
    with pytest.raises(InternalError):
        Replica(0, one, two)
    with pytest.raises(InternalError):
        Replica(-1, one, one)
    with pytest.raises(InternalError):
        Replica(0, {"w": np.zeros(1)}, one)  # type: ignore[dict-item]


DIGEST_OF_SMALL_REPLICA = "fc2fe3f39cffb9ef134c0066da6b2390cd8826a8624375e267b840323b42997e"
SHA256_OF_SMALL_CHECKPOINT = "178a4d486d801b65ab658b715e7cd4d075159670b4fbb77e95c908b426bcb1f8"


@pytest.mark.parametrize("step", [str(2**63), "9" * 5000, "01", "-0", "²", ""])
def test_checkpoint_of_an_impossible_step_is_refused(step: str) -> None:
    assert broken_rule(rewritten(lambda header: header["__metadata__"].update(step=step))) == "step"


@pytest.mark.parametrize(("value", "rule"), [(8.0, None), (-8.0, None), (8.001, "max_abs"), (-8.001, "max_abs")])
def test_first_values_are_within_the_bound_of_a_result(value: float, rule: str | None) -> None:
    first = first_replica(0, {"a": np.zeros((2, 2), np.float32), "b": np.array([[1.0, value]], np.float32)})
    assert first_rule(first) == rule


def first_rule(replica: Replica) -> object:
    """Return the rule that a first replica breaks, or None."""
    try:
        check_first_values(replica, 8.0)
    except InvalidDocument as error:
        return error.context["rule"]
    return None


def test_checkpoint_of_another_model_is_refused_in_words() -> None:
    replica = small_replica()
    check_layout(replica.layout, replica.layout)
    with pytest.raises(InvalidDocument, match="it has no 'z' of shape") as caught:
        check_layout(replica.layout, TensorLayout((*replica.layout.entries, ("z", (1,)))))
    assert caught.value.context["rule"] == "layout"


PLAIN = Replica(3, {"a": np.ones((2, 2), np.float32), "b": np.array([1.5], np.float32)}, {})


def test_replica_without_momentum_has_a_digest_of_its_own() -> None:
    data = b"epochal/replica-without-momentum/v1\0" + struct.pack("<QI", 3, 2)
    data += struct.pack("<I1sI2Q", 1, b"a", 2, 2, 2) + np.ones(4, "<f4").tobytes()
    data += struct.pack("<I1sI1Q", 1, b"b", 1, 1) + np.array([1.5], "<f4").tobytes()
    assert replica_digest(PLAIN) == blake3(data).hexdigest()
    zero = replace(PLAIN, momentum={name: np.zeros_like(values) for name, values in PLAIN.parameters.items()})
    assert replica_digest(zero) != replica_digest(PLAIN)


def test_checkpoint_without_momentum_holds_the_parameters_alone() -> None:
    data = checkpoint_bytes(PLAIN)
    found = parse_checkpoint(data)
    assert (found.step, found.momentum) == (3, {})
    assert replica_digest(found) == examine_checkpoint(data).replica_digest == replica_digest(PLAIN)
    assert checkpoint_form(data) == CheckpointForm(3, PLAIN.layout, has_momentum=False)
    assert len(data) <= checkpoint_form(data).size_bound < len(checkpoint_bytes(PLAIN)) + 2048


def test_checkpoint_of_a_part_of_the_momentum_is_refused() -> None:
    part = {"parameters.a": np.ones(1), "parameters.b": np.ones(1), "momentum.a": np.ones(1)}
    data = encode_tensor_file(
        {name: values.astype(np.float32) for name, values in part.items()},
        {"format": "epochal/checkpoint", "version": "1", "step": "3"},
    )
    assert broken_rule(data) == "names"


def test_checkpoint_with_or_without_momentum_as_its_run_is_accepted() -> None:
    check_momentum(has_momentum=True, needs_momentum=True)
    check_momentum(has_momentum=False, needs_momentum=False)
    for has_momentum in (True, False):
        with pytest.raises(InvalidDocument, match="momentum") as caught:
            check_momentum(has_momentum, not has_momentum)
        assert caught.value.context["rule"] == "momentum"
