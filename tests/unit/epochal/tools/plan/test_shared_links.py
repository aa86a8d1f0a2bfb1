"""The fair parts of shared links, against a naive way to find them."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epochal.tools.plan.shared_links import Direction, ServerLink, begin_transfer, end_transfer, slow_start_s
from epochal.tools.plan.virtual_time import Timeline

Flow = tuple[int, float]
"""A transfer: its client, and its bytes."""


def played(server_bytes_per_s: float, clients: list[float], flows: list[Flow]) -> list[float]:
    """When transfers that begin together end, as the links say."""
    timeline = Timeline()
    server = ServerLink(timeline, server_bytes_per_s)
    directions = [Direction(rate) for rate in clients]
    ends = [math.inf] * len(flows)
    for number, (client, size_bytes) in enumerate(flows):

        def ended(_: object, number: int = number) -> None:
            ends[number] = timeline.now_s

        begin_transfer(directions[client], server, size_bytes).done.then(ended)
    assert timeline.run_while(lambda: math.inf in ends)
    return ends


def naive(server_bytes_per_s: float, clients: list[float], flows: list[Flow]) -> list[float]:
    """The same by progressive filling, which raises everybody's rate together until a link is full."""
    left = [size_bytes for _, size_bytes in flows]
    ends, now_s = [math.inf] * len(flows), 0.0
    while any(amount > 0 for amount in left):
        rates = [0.0] * len(flows)
        rising = {number for number, amount in enumerate(left) if amount > 0}
        while rising:
            spare = [(server_bytes_per_s - sum(rates)) / len(rising)]
            for client, rate in enumerate(clients):
                mine = [number for number in rising if flows[number][0] == client]
                used = sum(rates[number] for number, flow in enumerate(flows) if flow[0] == client)
                spare += [(rate - used) / len(mine)] if mine else []
            more = min(spare)
            for number in rising:
                rates[number] += more
            full = {
                client
                for client, rate in enumerate(clients)
                if sum(rates[number] for number, flow in enumerate(flows) if flow[0] == client) > rate - 1e-9
            }
            is_full = sum(rates) > server_bytes_per_s - 1e-9
            rising = set() if is_full else {number for number in rising if flows[number][0] not in full}
        step_s = min(amount / rate for amount, rate in zip(left, rates, strict=True) if amount > 0)
        now_s += step_s
        for number, rate in enumerate(rates):
            if left[number] > 0:
                left[number] -= rate * step_s
                if left[number] < 1e-6:
                    left[number], ends[number] = 0.0, now_s
    return ends


@settings(max_examples=60, deadline=None)
@given(
    server=st.integers(5, 200),
    clients=st.lists(st.sampled_from([10, 20, 50]), min_size=1, max_size=4),
    sizes=st.lists(st.tuples(st.integers(0, 3), st.integers(100, 5000)), min_size=1, max_size=6),
)
def test_transfers_end_when_progressive_filling_says(
    server: int, clients: list[int], sizes: list[tuple[int, int]]
) -> None:
    flows = [(client % len(clients), float(size)) for client, size in sizes]
    rates = [float(rate) for rate in clients]
    assert played(server, rates, flows) == pytest.approx(naive(server, rates, flows), rel=0.02, abs=0.1)


def test_transfer_that_stands_for_many_takes_their_part() -> None:
    timeline = Timeline()
    server = ServerLink(timeline, 100.0)
    alone, many = (begin_transfer(Direction(1000.0), server, 100.0, 1, copies) for copies in (1.0, 9.0))
    timeline.run_while(lambda: not (alone.done.is_given and many.done.is_given))
    assert timeline.now_s == pytest.approx(10.0)  # ten connections at 10 bytes/s
    assert server.moved_bytes == 1000.0


def test_transfer_that_is_given_up_leaves_its_part() -> None:
    timeline = Timeline()
    server = ServerLink(timeline, 100.0)
    kept, dropped = (begin_transfer(Direction(1000.0), server, 100.0) for _ in range(2))
    timeline.after(1.0, lambda: end_transfer(dropped))
    timeline.run_while(lambda: not kept.done.is_given)
    assert timeline.now_s == pytest.approx(1.5)
    assert server.moved_bytes == pytest.approx(150.0)


def test_slow_start_costs_nothing_without_a_way() -> None:
    assert slow_start_s(1e6, 1e6, 0.0) == 0.0


def test_slow_start_of_few_bytes_is_one_window() -> None:
    assert slow_start_s(10_000, 1e6, 0.1) == 0.0


def test_slow_start_of_many_bytes_is_a_few_round_trips() -> None:
    assert 0.2 < slow_start_s(1e8, 12.5e6, 0.1) < 0.7
