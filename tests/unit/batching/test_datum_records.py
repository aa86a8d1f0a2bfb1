"""Samples of text and images: what a record becomes, what is refused in it, and how a local step is cut."""

import base64
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochal.batching.chunking.datum_records import SCHEMES, DatumBatch, DatumCounts, datum_of
from epochal.batching.chunking.datums import Datum, EncodedTextChunk, ImageAssetPointerChunk, ImageChunk
from epochal.batching.chunking.policies import BYTES, chunk_data, estimate_bytes, estimate_numbers
from epochal.batching.micro_batches import examples_of, portions
from epochal.batching.packing.datum_rows import DatumRows
from epochal.batching.packing.samples import RawSample
from epochal.data_providers.protocol import CorruptData
from epochal.state.reader_limits import (
    MAX_IMAGE_BYTES,
    MAX_LINE_BYTES,
    MAX_LOCATION_CHARS,
    MAX_LOSS_INPUTS,
    MAX_SAMPLE_CHUNKS,
    MAX_SAMPLE_IMAGES,
)
from tests.support.data.image_samples import PNG, image, pointer, sample, tokens

LONGEST = 10_000


def read(record: Any, longest: int = LONGEST, vocabulary: int | None = None) -> Datum:
    return datum_of(json.loads(json.dumps(record)), 7, longest, vocabulary)


def text(count: int) -> dict[str, Any]:
    return sample(tokens(*range(count)))


def cut(records: list[dict[str, Any]]) -> list[int]:
    """Return the numbers of samples that a trainer gets at a time of a local step with these records."""
    batch = DatumBatch.of([read(record) for record in records])
    examples = [example for of_sample in examples_of(batch) for example in of_sample]
    found = list(portions(examples))
    assert [example for portion in found for example in portion] == examples
    return [len(portion) for portion in found]


def test_record_becomes_its_chunks_in_order_and_the_arrays_of_its_loss() -> None:
    chunks = ({"type": "text", "text": "né"}, image(20), tokens(7, 300), pointer("a/b.jpg", "jpeg"))
    datum = read(sample(*chunks, target_tokens=[1, 2], weights=[0.5, 1]))
    first, second, third, fourth = datum.model_input.chunks
    assert isinstance(first, EncodedTextChunk)
    assert isinstance(third, EncodedTextChunk)
    assert list(first.tokens) == [*"né".encode()]
    assert second == ImageChunk(PNG.ljust(20, b"\0"), "png")
    assert list(third.tokens) == [7, 300]
    assert fourth == ImageAssetPointerChunk("a/b.jpg", "jpeg")
    losses = {name: np.asarray(value.data) for name, value in datum.loss_fn_inputs.items()}
    assert (losses["target_tokens"].dtype.str, losses["target_tokens"].tolist()) == ("<i8", [1, 2])
    assert (losses["weights"].dtype.str, losses["weights"].tolist()) == ("<f4", [0.5, 1.0])
    assert examples_of(DatumBatch.of([datum]))[0][0].tokens.tolist() == [*"né".encode(), 7, 300]


def test_image_counts_its_bytes_and_a_pointer_its_location() -> None:
    record = sample(image(2_000_000), pointer("é/1.png"), tokens(1, 2, 3), target_tokens=[1, 2])
    assert len(record["chunks"][0]["data"]) > 2_600_000, "base64 is longer"
    assert estimate_bytes(read(record)) == 2_000_000 + 7 + 10 * 3 + 10 * 2
    assert estimate_numbers(read(record)) == 2_000_000 + 7 + 3 + 2
    assert DatumCounts.of([read(record)] * 2) == DatumCounts(2, 2, 4_000_000, 2, 6, 4_000_114)


MIXED = [text(1000), sample(image(2_000_000)), text(1000), sample(image(2_000_000)), text(1000)]


@pytest.mark.parametrize(
    ("records", "wanted"),
    [
        ([text(3)] * 1024, [1024]),
        ([text(3)] * 1025, [1024, 1]),
        ([text(10_000)] * 51, [50, 1]),
        (MIXED, [5]),
        ([*MIXED, sample(image(2_000_000))], [5, 1]),
        ([sample(image(MAX_IMAGE_BYTES), tokens(1))] * 2, [1, 1]),
    ],
    ids=["1024 items", "1025 items", "5,000,000 bytes", "images", "one image more", "larger than a request"],
)
def test_local_step_is_cut_as_the_cases_of_the_source(records: list[dict[str, Any]], wanted: list[int]) -> None:
    assert cut(records) == wanted


LOSSES = st.dictionaries(st.sampled_from(["targets", "weights"]), st.lists(st.integers(0, 9), max_size=9))


def records_of(largest_image: int) -> st.SearchStrategy[dict[str, Any]]:
    chunks = st.one_of(
        st.builds(image, st.integers(8, largest_image), st.sampled_from(["png", "jpeg"])),
        st.builds(pointer, st.text(st.sampled_from("abé/"), min_size=2, max_size=20).map(lambda path: f"i{path}")),
        st.lists(st.integers(0, 2**32 - 2), max_size=50).map(lambda values: tokens(*values)),
        st.text(st.characters(exclude_categories=["Cs"]), max_size=20).map(lambda one: {"type": "text", "text": one}),
    )
    return st.builds(lambda held, losses: sample(*held, **losses), st.lists(chunks, min_size=1, max_size=4), LOSSES)


RECORDS = records_of(100)
WILD = st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5) | st.lists(st.none(), max_size=2)


def naive_size(record: dict[str, Any]) -> int:
    """The rule, on the JSON itself."""
    size = sum(10 * len(values) for values in record["loss_fn_inputs"].values())
    for chunk in record["chunks"]:
        if chunk["type"] == "image":
            size += len(base64.b64decode(chunk["data"]))
        elif chunk["type"] == "image_asset_pointer":
            size += len(chunk["location"])
        else:
            size += 10 * (len(chunk["text"].encode()) if "text" in chunk else len(chunk["tokens"]))
    return size


@given(st.lists(records_of(2_000_000), min_size=1, max_size=6))
def test_any_local_step_is_cut_where_requests_of_training_are(records: list[dict[str, Any]]) -> None:
    datums = [read(record) for record in records]
    sizes = [naive_size(record) for record in records]
    assert [estimate_bytes(datum) for datum in datums] == sizes
    assert cut(records) == [len(chunk.items) for chunk in chunk_data(datums)]
    counts = sum((DatumCounts.of([datum]) for datum in datums), DatumCounts())
    assert counts == DatumCounts.of(datums)
    assert counts.size == sum(sizes)


@given(RECORDS, st.integers(0, 2**32), st.data())
def test_record_with_any_value_replaced_is_read_or_refused_by_its_index(
    record: dict[str, Any], seed: int, data: st.DataObject
) -> None:
    chunk = record["chunks"][seed % len(record["chunks"])]
    chunk[data.draw(st.sampled_from([*chunk, "other"]))] = data.draw(WILD | st.dictionaries(st.text(max_size=3), WILD))
    found = ""
    try:
        read(record)
    except CorruptData as error:
        found = error.message
    assert not found or (found.startswith("data index 7: ") and "; allowed: " in found)


def broken(**fields: Any) -> dict[str, Any]:
    return sample(image(20) | fields)


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ([1], "the record is a list of 1; allowed: an object of chunks, loss_fn_inputs"),
        ({"text": "x"}, 'a field of the record is "text"; allowed: chunks, loss_fn_inputs'),
        ({}, f"chunks is missing; allowed: a list of 1 to {MAX_SAMPLE_CHUNKS} chunks"),
        (sample(), f"chunks is a list of 0; allowed: a list of 1 to {MAX_SAMPLE_CHUNKS}"),
        (sample(*[tokens(1)] * (MAX_SAMPLE_CHUNKS + 1)), f"chunks is a list of {MAX_SAMPLE_CHUNKS + 1}; allowed"),
        (sample(*[pointer("a")] * (MAX_SAMPLE_IMAGES + 1)), f"images in chunks is {MAX_SAMPLE_IMAGES + 1}; allowed"),
        (sample(tokens(1), 3), "chunks[1] is 3; allowed: an object whose type is one of text, encoded_text, image"),
        (sample({"type": "audio"}), 'chunks[0].type is "audio"; allowed: text, encoded_text, image'),
        (sample({"tokens": [1]}), "chunks[0].type is missing; allowed: text"),
        (sample({"type": "text", "text": 3}), "chunks[0].text is 3; allowed: text"),
        (
            sample(tokens(1) | {"tokens": [1, -1]}),
            "chunks[0].tokens is a list of 2; allowed: a list of integers from 0",
        ),
        (sample(tokens(1) | {"tokens": [True]}), "chunks[0].tokens is a list of 1; allowed: a list of integers"),
        (broken(format="gif"), 'chunks[0].format is "gif"; allowed: png or jpeg'),
        (broken(format="jpeg"), "allowed: base64 of a file that begins as jpeg does"),
        (broken(data="iVBOR!"), 'chunks[0].data is "iVBOR!"; allowed: base64 ('),
        (broken(data="é" * 100), "allowed: base64 ("),
        (broken(data=None), "chunks[0].data is missing; allowed: base64"),
        (broken(data=""), 'chunks[0].data is ""; allowed: base64'),
        (broken(width=3), 'a field of chunks[0] is "width"; allowed: type, data, format, expected_tokens'),
        (broken(expected_tokens=-1), "chunks[0].expected_tokens is -1; allowed: an integer from 0"),
        (broken(expected_tokens=LONGEST + 1), f"tokens in chunks is {LONGEST + 1}; allowed: at most {LONGEST}"),
        (sample(image(MAX_IMAGE_BYTES + 1)), f"chunks[0].data is {MAX_IMAGE_BYTES + 1}; allowed: at most"),
        (text(LONGEST + 1), f"tokens in chunks is {LONGEST + 1}; allowed: at most {LONGEST}, the run's max_seq_len"),
        (
            sample(tokens(1), weights=[float("nan")]),
            "loss_fn_inputs.'weights' is a list of 1; allowed: a list of finite",
        ),
        (sample(tokens(1), weights=[1e300]), "loss_fn_inputs.'weights' is a list of 1; allowed"),
        (sample(tokens(1), weights=["1"]), "loss_fn_inputs.'weights' is a list of 1; allowed"),
        (sample(tokens(1), **{str(n): [1] for n in range(MAX_LOSS_INPUTS + 1)}), "loss_fn_inputs is an object of 17"),
    ],
)
def test_what_is_wrong_in_a_record_is_named_with_what_is_allowed(record: Any, message: str) -> None:
    with pytest.raises(CorruptData) as caught:
        read(record)
    assert message in caught.value.message
    assert caught.value.context["data_index"] == 7
    assert len(caught.value.message) < 300


@pytest.mark.parametrize(
    "location",
    ["/etc/passwd", "../a.png", "a/../b.png", "a\\b.png", "C:/a.png", "file:///a.png", "http://a/b.png", "https://", "",
     "a\nb.png", "a" * (MAX_LOCATION_CHARS + 1), "://a", "data:image/png;base64,aa"],
)  # fmt: skip
def test_location_that_leads_elsewhere_is_refused(location: str) -> None:
    with pytest.raises(
        CorruptData, match=r"chunks\[0\].location is .*; allowed: a relative path without '..', or https"
    ):
        read(sample(pointer(location)))


@pytest.mark.parametrize("location", ["a.png", "é/..b/c.png", *(f"{scheme}://host/a.png" for scheme in SCHEMES)])
def test_location_is_kept_as_it_is(location: str) -> None:
    (chunk,) = read(sample(pointer(location))).model_input.chunks
    assert chunk == ImageAssetPointerChunk(location)


def test_largest_image_fits_into_a_line() -> None:
    record = sample(image(MAX_IMAGE_BYTES))
    assert len(json.dumps(record)) < MAX_LINE_BYTES
    assert estimate_bytes(read(record)) == MAX_IMAGE_BYTES == BYTES.limits.size


def test_token_outside_the_vocabulary_is_refused() -> None:
    assert read(sample(tokens(255)), vocabulary=256)
    with pytest.raises(
        CorruptData, match=r"chunks\[0\].tokens is a list of 1; allowed: a list of integers from 0 to 255"
    ):
        read(sample(tokens(256)), vocabulary=256)


def test_record_of_parquet_may_have_fields_that_are_null() -> None:
    nulls = {"text": None, "tokens": None, "data": None, "format": None, "location": None, "expected_tokens": None}
    with pytest.raises(CorruptData, match="a field of chunks"):
        read(sample({**nulls, **tokens(1), "more": 1}))
    assert read(sample({**nulls, **tokens(1)}))


@given(st.lists(RECORDS, max_size=8), st.integers(1, 4))
def test_records_arrive_as_datums_in_order(records: list[dict[str, Any]], group: int) -> None:
    rows = DatumRows(LONGEST, None)
    raws = [
        RawSample(index, np.frombuffer(json.dumps(record).encode(), np.uint8).astype("<u2"), is_text=True)
        for index, record in enumerate(records)
    ]
    found: list[Datum] = []
    for start in range(0, len(raws), group):
        assert rows.take(iter(raws[start : start + group]))
        batch = rows.next_row()
        assert batch is not None
        found += batch.datums
        assert rows.next_row() is None
    assert not rows.take(iter(()))
    rows.finish()
    assert rows.take(iter(())), "nothing more is wanted"
    assert rows.next_row() is None
    assert [estimate_bytes(datum) for datum in found] == [naive_size(record) for record in records]
