"""The model of a round: fair parts of shared links against a naive way to find them, and what its parts add up to."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epochal.state.round_model import (
    LAST_BYTES,
    UNLIMITED,
    ClientGroup,
    Costs,
    Link,
    Links,
    LinkTransfer,
    RoundModel,
    RunSizes,
    UpdateReader,
    Workers,
    arrivals_s,
    slow_start_s,
)

STEP_S = 0.01
SIZES = RunSizes(1_000_000, 1_000_000, 500_000, 8_000_000, 1000, 0)
GROUP = ClientGroup(2, Link(1e6, 5e5), 0.1, 1000.0)
COSTS = Costs(slow_start=False)


def naive(server_bytes_per_s: float, transfers: list[LinkTransfer]) -> list[list[float]]:
    """The same in small steps of time, by progressive filling: all rates rise together until a link is full."""
    left = [[size for _, size in transfer.pieces] for transfer in transfers]
    ends: list[list[float]] = [[] for _ in transfers]
    now_s = 0.0
    while any(map(sum, left)):
        moving = [
            n
            for n, transfer in enumerate(transfers)
            if len(ends[n]) < len(transfer.pieces) and transfer.pieces[len(ends[n])][0] <= now_s
        ]
        rates, rising = dict.fromkeys(moving, 0.0), set(moving)
        while rising:
            used = sum(transfers[n].count * rate for n, rate in rates.items())
            more = (server_bytes_per_s - used) / sum(transfers[n].count for n in rising)
            more = min([more, *(transfers[n].bytes_per_s - rates[n] for n in rising)])
            rates |= {n: rates[n] + more for n in rising}
            is_full = sum(transfers[n].count * rate for n, rate in rates.items()) > server_bytes_per_s - 1e-9
            rising = set() if is_full else {n for n in rising if rates[n] < transfers[n].bytes_per_s - 1e-9}
        now_s += STEP_S
        for n, rate in rates.items():
            piece = len(ends[n])
            left[n][piece] -= min(left[n][piece], rate * STEP_S)
            if left[n][piece] < 1e-6:
                left[n][piece] = 0.0
                ends[n].append(now_s)
    return ends


@settings(max_examples=60, deadline=None)
@given(
    server=st.integers(5, 200),
    transfers=st.lists(
        st.tuples(
            st.integers(1, 3),
            st.sampled_from([10, 20, 50]),
            st.lists(st.tuples(st.integers(0, 3), st.integers(10, 100)), min_size=1, max_size=3),
        ),
        min_size=1,
        max_size=4,
    ),
)
def test_pieces_arrive_when_progressive_filling_says(
    server: int, transfers: list[tuple[int, int, list[tuple[int, int]]]]
) -> None:
    found = [
        LinkTransfer(count, rate, tuple(sorted((float(at), float(size)) for at, size in pieces)))
        for count, rate, pieces in transfers
    ]
    for ends, expected in zip(arrivals_s(found, server), naive(server, found), strict=True):
        assert ends == pytest.approx(expected, abs=0.1)


def test_transfer_of_many_clients_takes_their_part_of_the_server() -> None:
    alone, many = LinkTransfer(1, 1000.0, ((0.0, 100.0),)), LinkTransfer(9, 1000.0, ((0.0, 100.0),))
    assert arrivals_s([alone, many], 100.0) == [[pytest.approx(10.0)], [pytest.approx(10.0)]]


def test_unlimited_server_leaves_each_client_its_own_link() -> None:
    assert arrivals_s([LinkTransfer(9, 10.0, ((1.0, 100.0),))], math.inf) == [[pytest.approx(11.0)]]


def test_slow_start_of_many_bytes_is_a_few_round_trips() -> None:
    assert 0.2 < slow_start_s(1e8, 12.5e6, 0.1) < 0.7


def test_parts_of_a_delivery_follow_one_another() -> None:
    model = RoundModel(SIZES, Links(), COSTS, "int4", "int4", through_store=False, client_count=2)
    (found,) = model.deliveries([Workers(GROUP, 2, 3, held_s=10.0, heard_s=9.0)])
    assert found.trained_s == pytest.approx(13.0 + COSTS.begin_s)
    times = (found.held_s, found.trained_s, found.encoded_s, found.committed_s, found.sent_s, found.verified_s)
    assert list(times) == sorted(times)
    assert found.sent_s - found.committed_s == pytest.approx(SIZES.result_bytes / 5e5, rel=0.05)


def test_data_that_come_slower_than_they_are_trained_are_waited_for() -> None:
    sizes = replace(SIZES, data_bytes_per_batch=5_000_000)
    model = RoundModel(sizes, Links(), COSTS, "int4", "int4", through_store=False, client_count=2)
    (found,) = model.deliveries([Workers(GROUP, 2, 1, held_s=0.0, heard_s=0.0)])
    assert found.data_s == pytest.approx(5.0 - 1.0, rel=0.01)
    assert found.trained_s == pytest.approx(5.0)


def test_result_in_a_store_is_read_by_the_coordinator_over_its_link() -> None:
    slow = Links(Link(1e5, 1e5), UNLIMITED)
    model = RoundModel(SIZES, slow, COSTS, "int4", "int4", through_store=True, client_count=1)
    (found,) = model.deliveries([Workers(GROUP, 1, 1, held_s=0.0, heard_s=0.0)])
    assert found.verified_s - found.sent_s == pytest.approx(10.0, rel=0.05)


def model_over(links: Links = Links(), update: str = "int4", *, through_store: bool = False) -> RoundModel:  # noqa: B008
    return RoundModel(SIZES, links, COSTS, "int4", update, through_store=through_store, client_count=4)


def test_update_is_fetched_in_the_time_of_its_bytes_by_any_number() -> None:
    for count in (1, 1000):
        (end_s,) = model_over().fetched_s([UpdateReader(GROUP, count, 10.0)])
        assert end_s - 10.0 == pytest.approx(GROUP.round_trip_s + SIZES.update_bytes / 1e6, rel=0.01)


def test_outer_step_follows_the_update_and_ends_after_its_last_parts() -> None:
    small = model_over()
    assert small.held_s(10.0, 15.0) == pytest.approx(15.0 + small.merge_s), "of one part, so nothing before it is there"
    large = replace(small, sizes=replace(SIZES, parameter_count=10**9, update_bytes=8 * LAST_BYTES))
    assert large.held_s(10.0, 10.0 + 2 * large.merge_s) == pytest.approx(10.0 + 2 * large.merge_s + large.merge_s / 8)
    assert large.held_s(10.0, 10.0 + large.merge_s / 2) == pytest.approx(10.0 + large.merge_s), "a fast link"


def test_update_over_one_link_takes_as_long_as_all_copies_of_it() -> None:
    (end_s,) = model_over(Links(Link(1e6, 1e6))).fetched_s([UpdateReader(GROUP, 8, 0.0)])
    assert end_s == pytest.approx(8 * SIZES.update_bytes / 1e6, rel=0.05)


def test_after_the_last_result_its_own_addition_and_the_encoding_remain() -> None:
    at_once, later = (model_over().published_s(100.0, decided_s) for decided_s in (100.0, 101.0))
    costs = COSTS.codecs["int4"]
    encode_s = costs.encode_s * 1e6 + COSTS.hash_s * SIZES.update_bytes + COSTS.commit_s + model_over().merge_s
    assert at_once == pytest.approx(100.0 + costs.merge_s * 1e6 + encode_s)
    assert later == pytest.approx(101.0 + encode_s)


def test_update_for_a_store_is_sent_there_over_the_coordinators_link() -> None:
    links = Links(Link(1e6, 1e5), UNLIMITED)
    sent_s = model_over(links, through_store=True).published_s(0.0, 0.0) - model_over(links).published_s(0.0, 0.0)
    assert sent_s == pytest.approx(SIZES.update_bytes / 1e5)


def test_exact_update_is_encoded_faster_than_a_small_one() -> None:
    assert model_over(update="float32").published_s(0.0, 0.0) < model_over(update="int4").published_s(0.0, 0.0)
