"""The factors of an outcome's entries: results that are too long, and parts above the ceiling."""

import struct
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochal.state.codecs.codec import EncodedTensor
from epochal.state.codecs.codecs_by_name import codec_named
from epochal.state.documents import OutcomeEntry
from epochal.state.errors import InvalidDocument
from epochal.state.intervals import BatchId
from epochal.state.model.tensors import layout_of
from epochal.state.results import ResultHeader, check_result, encode_result, norm_of
from epochal.state.share_ceiling import PARTS, largest_part
from epochal.state.weights import (
    LEAST_FACTOR,
    UsualNorm,
    Weighed,
    factor_hex,
    factors_of,
    norm_hex,
    number_of,
    usual_in,
    usual_norm,
)
from epochal.state.wire import ClientId, Sha256, canonical_json, parse_document

NORMS = st.floats(0, 1e38)
ENTRIES = st.lists(
    st.builds(Weighed, st.integers(1, 500), st.integers(1, 9), NORMS, st.booleans(), st.booleans()),
    min_size=1,
    max_size=20,
)
FULL = "3f800000"


def equal(*norms: float, proven: bool = True) -> list[Weighed]:
    return [Weighed(4, 8, norm, proven) for norm in norms]


def factors(
    entries: list[Weighed], usual: float | None, limit: float = 1.5, ceiling: int | None = PARTS
) -> list[float]:
    known = usual_in(entries, None if usual is None else UsualNorm(usual, 8))
    return [number_of(factor) for factor in factors_of(entries, ceiling, limit, known)]


def test_result_of_ten_times_the_usual_length_counts_as_one_and_a_half() -> None:
    assert factors(equal(1.0, 10.0, 1.5), 1.0) == [1.0, float(np.float32(0.15)), 1.0]


def test_norm_limit_of_zero_lets_every_length_count() -> None:
    assert factors(equal(1.0, 1e9, 1.0), 1.0, limit=0.0) == [1.0, 1.0, 1.0]


def test_first_round_is_judged_by_its_own_median_if_it_has_three_results() -> None:
    assert factors(equal(1.0, 1.0, 30.0), None) == [1.0, 1.0, float(np.float32(0.05))]
    assert factors(equal(1.0, 30.0), None) == [1.0, 1.0]


def test_few_proven_clients_are_no_judges_of_their_own_results() -> None:
    new = equal(*[1.0] * 9, proven=False)
    assert factors([*equal(1e6), *new], None) == [float(np.float32(1.5e-6)), *[1.0] * 9]
    assert factors([*equal(1e6, 1e6), *new], None)[:2] == [float(np.float32(1.5e-6))] * 2


def test_newcomers_make_no_result_count_for_more_than_proven_clients_do() -> None:
    new = equal(*[1e6] * 9, proven=False)
    assert factors([*equal(1.0), *new], None) == [1.0, *[float(np.float32(1.5e-6))] * 9]
    nothing = equal(*[0.0] * 9, proven=False)
    assert factors([*equal(1.0), *nothing], None) == [1.0] * 10


def test_three_proven_clients_judge_a_round_without_a_usual_length() -> None:
    new = equal(*[1e-6] * 9, proven=False)
    assert factors([*equal(1.0, 1.0, 1.0), *new], None) == [1.0] * 12


def test_usual_length_is_that_of_proven_clients_alone() -> None:
    new = equal(9.0, 9.0, 9.0, 9.0, proven=False)
    assert usual_norm([*equal(1.0, 2.0, 3.0), *new], None, 1.5) == UsualNorm(2.0, 8)
    assert usual_norm([*equal(1.0, 2.0), *new], UsualNorm(4.0, 8), 1.5) == UsualNorm(4.0, 8)
    assert usual_norm([*equal(1.0, 2.0), *new], None, 1.5) is None


@pytest.mark.parametrize(("norm", "after"), [(1e6, 3.0), (1e-30, 1.0), (0.0, 2.0), (2.5, 2.5)])
def test_few_clients_that_are_most_of_a_round_move_the_usual_length_little(norm: float, after: float) -> None:
    entries = equal(2.0, norm, norm)
    assert usual_norm(entries, UsualNorm(2.0, 8), 1.5) == UsualNorm(after, 8)


def test_usual_length_grows_with_the_learning_rates_and_does_not_shrink() -> None:
    usual = UsualNorm(2.0, 8)
    assert [usual.grown(0.01, now) for now in (0.03, 0.01, 0.001)] == [UsualNorm(each, 8) for each in (6.0, 2.0, 2.0)]
    assert usual.grown(0.0, 0.1) is None


def test_result_of_more_steps_may_be_as_much_longer() -> None:
    entries = [Weighed(4, 2, 3.0, True), Weighed(4, 8, 12.0, True), Weighed(4, 1, 3.0, True)]
    assert [number_of(each) for each in factors_of(entries, PARTS, 1.5, UsualNorm(2.0, 2))] == [1.0, 1.0, 1.0]
    assert number_of(factors_of([Weighed(4, 8, 24.0, True)], PARTS, 1.5, UsualNorm(2.0, 2))[0]) == 0.5


def judging(entries: list[Weighed]) -> list[int]:
    """The parts by which the ceiling is reckoned: shared ones of proven clients, else shared ones, else all."""
    for chosen in ([e for e in entries if e.proven and not e.isolated], [e for e in entries if not e.isolated]):
        if chosen:
            return [entry.batches for entry in chosen]
    return [e.batches for e in entries if e.proven] or [e.batches for e in entries]


def test_batches_that_are_tried_alone_lower_no_others_factor() -> None:
    shared = [Weighed(10, 8, 1.0, True), Weighed(10, 8, 1.0, True)]
    alone = [Weighed(1, 8, 1.0, True, isolated=True)] * 3
    assert factors([*shared, *alone], 1.0, ceiling=None) == [1.0] * 5


@given(ENTRIES, st.one_of(st.none(), st.floats(1e-6, 1e6)), st.one_of(st.none(), st.integers(1, PARTS)))
def test_factor_is_that_of_its_definition(entries: list[Weighed], norm: float | None, ceiling: int | None) -> None:
    counts = judging(entries)
    total = sum(entry.batches for entry in entries)
    most = largest_part(counts, total, ceiling)
    usual = None if norm is None else UsualNorm(norm, 4)
    for entry, factor in zip(entries, factors_of(entries, ceiling, 1.5, usual), strict=True):
        longest = None if usual is None else 1.5 * usual.norm * max(1.0, entry.steps / 4)
        by_norm = 1.0 if longest is None else min(1.0, longest / entry.norm if entry.norm else 1.0)
        wanted = max(by_norm * min(1.0, float(most / entry.batches)), LEAST_FACTOR)
        assert bytes.fromhex(factor) == struct.pack(">f", wanted)


@given(ENTRIES, st.one_of(st.none(), st.integers(1, PARTS)))
def test_no_weight_is_above_the_ceiling(entries: list[Weighed], ceiling: int | None) -> None:
    counts = judging(entries)
    most = largest_part(counts, sum(entry.batches for entry in entries), ceiling)
    for entry, factor in zip(entries, factors_of(entries, ceiling, 1.5, None), strict=True):
        assert entry.batches * Fraction(number_of(factor)) <= most * (1 + Fraction(1, 2**23))


def entry_with(factor: str) -> bytes:
    entry = OutcomeEntry(ClientId("0a" * 16), (BatchId(0, 0),), Sha256("ab" * 32), 1, norm_hex(1.0), factor)
    return canonical_json(entry)


@given(st.floats(LEAST_FACTOR, 1.0, width=32))
def test_every_factor_is_read_as_it_was_written(factor: float) -> None:
    read = parse_document(OutcomeEntry, entry_with(factor_hex(factor)))
    assert number_of(read.factor) == factor


@pytest.mark.parametrize("factor", ["3f800001", "7f800000", "7fc00000", "bf800000", "00000000", "007fffff", "3F800000"])
def test_factor_outside_of_its_range_is_refused(factor: str) -> None:
    with pytest.raises(InvalidDocument, match="factor"):
        parse_document(OutcomeEntry, entry_with(factor))


@pytest.mark.parametrize("name", ["float32", "int8", "int4", "sparse-64"])
def test_norm_of_a_result_is_that_of_its_decoded_values(name: str) -> None:
    codec, chance = codec_named(name), np.random.default_rng(5)
    difference = {"a": chance.standard_normal((3, 701), np.float32), "b": np.zeros(5, np.float32)}
    layout = layout_of(difference)
    header = ResultHeader("demo", 7, 2, "ab" * 16, "cd" * 32, "ef" * 32, name)
    found, norm = check_result(encode_result(header, difference), header, layout, 1e4)
    encoded = {key: EncodedTensor(codec, values.shape, codec.encode(values)) for key, values in difference.items()}
    decoded = np.concatenate([tensor.values().reshape(-1) for tensor in encoded.values()]).astype(np.float64)
    assert found == header
    assert norm == pytest.approx(np.sqrt(np.sum(decoded**2)), rel=1e-12)
    assert norm_of(encoded if name != "float32" else difference) == pytest.approx(norm, rel=1e-12)
