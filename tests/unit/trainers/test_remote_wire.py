"""What a remote trainer and a training service say to each other: examples, metrics, limits."""

from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st

from epochal.batching.chunking.column_chunks import Rows
from epochal.batching.micro_batches import Example
from epochal.state.errors import InvalidDocument, InvalidInput, Refused
from epochal.trainers.remote.service_messages import batch_of, decode_examples, encode_examples
from tests.support.drive.served_training import client_of, rows_of


@given(st.lists(st.tuples(st.integers(1, 5), st.booleans()), min_size=1, max_size=8))
def test_examples_survive_the_wire(shapes: list[tuple[int, bool]]) -> None:
    held = [(np.arange(n, dtype="<u2"), np.arange(n) if labelled else None) for n, labelled in shapes]
    back = decode_examples(encode_examples(rows_of(held)))
    assert [example.tokens.tolist() for example in back] == [tokens.tolist() for tokens, _ in held]
    for example, (tokens, labels) in zip(back, held, strict=True):
        if any(labelled for _, labelled in shapes):
            assert example.labels is not None
            assert example.labels.tolist() == (tokens if labels is None else labels).tolist()
        else:
            assert example.labels is None


@pytest.mark.parametrize(
    "arrays",
    [
        {"tokens": np.zeros(2, "<u2")},
        {"tokens": np.zeros(2, "<i2"), "offsets": np.array([0, 2])},
        {"tokens": np.zeros(2, "<u2"), "offsets": np.array([0, 3])},
        {"tokens": np.zeros((1, 2), "<u2"), "offsets": np.array([0, 2])},
        {"tokens": np.zeros(2, "<u2"), "offsets": np.array([0, 2]), "labels": np.zeros(3, "<i4")},
        {"tokens": np.zeros(2, "<u2"), "offsets": np.array([0, 2]), "positions": np.zeros(3, "<i4")},
        {"tokens": np.zeros(2, "<u2"), "offsets": np.array([0, 2]), "positions": np.zeros(2, "<f4")},
        {"tokens": np.zeros(2, "<u2"), "offsets": np.array([0.0, 2.0])},
    ],
)
def test_bytes_that_are_no_examples_are_refused(arrays: dict[str, Any]) -> None:
    with pytest.raises(InvalidDocument, match="not encoded examples"):
        decode_examples(safetensors.numpy.save(arrays))
    for damaged in (b"", b"\xff" * 16, safetensors.numpy.save(arrays)[:-1]):
        with pytest.raises(InvalidDocument, match="not encoded examples"):
            decode_examples(damaged)


def test_examples_under_a_name_given_twice_are_refused() -> None:
    entry = '"tokens":{"dtype":"U16","shape":[2],"data_offsets":[0,4]}'
    header = f"{{{entry},{entry}}}"
    with pytest.raises(InvalidDocument, match="'tokens' occurs twice"):
        decode_examples(len(header).to_bytes(8, "little") + header.encode() + bytes(4))


def test_examples_are_counted_before_they_are_looked_at() -> None:
    arrays = {"tokens": np.zeros(0, "<u2"), "offsets": np.zeros(5, "<i8")}
    body = safetensors.numpy.save(arrays)
    assert len(decode_examples(body, 4)) == 4
    with pytest.raises(Refused, match="4 examples; at most 3 in one request") as refused:
        decode_examples(body, 3)
    assert refused.value.kind == "body-too-large"


@pytest.mark.parametrize("url", ["ftp://x", "nowhere", "http://", "http://[::1"])
def test_url_of_no_service_is_refused_at_once(url: str) -> None:
    with pytest.raises(InvalidInput, match="training service URL"):
        client_of(url)


def test_positions_survive_the_wire() -> None:
    tokens = np.arange(5, dtype="<u2")
    examples = [Example(tokens), Example(tokens[:3], None, np.array([4, 5, 9]))]
    batch = batch_of(examples)
    back = decode_examples(encode_examples([Rows(batch, 0, 2)]))
    assert back[0].position_ids is None
    assert back[1].position_ids is not None
    assert back[1].position_ids.tolist() == [4, 5, 9]
    (last,) = decode_examples(encode_examples([Rows(batch, 1, 2)]))
    assert last.position_ids is not None
    assert decode_examples(encode_examples([Rows(batch_of(examples[:1]), 0, 1)]))[0].position_ids is None
