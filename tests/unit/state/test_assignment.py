"""The assignment: a partition of the work list, in proportion, the same on every machine."""

import hashlib
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epochal.state.assignment import assign_data_for_state, split_consecutively
from epochal.state.documents import IsolatedWork, Roster, RosterEntry, WorkList
from epochal.state.election import MAX_WITNESSES, checkpointer_order, elect_witnesses, quorum, witness_count
from epochal.state.errors import InvalidInput
from epochal.state.intervals import BatchId, total_batches
from epochal.state.share_ceiling import PARTS, apportion
from epochal.state.wire import ClientId, Seed, canonical_json, document_digest, parse_document

GOLDEN = {3: [(7, 9), (20, 24)], 0: [(40, 41)], 1: [(25, 29)], 2: [(30, 32)]}
GOLDEN_WITNESSES = [1, 2, 0]
GOLDEN_CHECKPOINTERS = [3, 2, 1, 0]
GOLDEN_ROSTER_SHA256 = "87a63f63751d0db5a91f13a62a5c9ece3bdf7d75e1024c21a5f2de585667f2a8"
GOLDEN_WORK_SHA256 = "b83430525c7119b02fce6003e70e3b727456723676c2c884af2cbcc5377d1409"


def seed_of(number: int) -> Seed:
    return Seed(hashlib.sha256(b"%d" % number).hexdigest())


def client(number: int) -> ClientId:
    return ClientId(f"{number:032x}")


def roster_of(*shares: int) -> Roster:
    """Clients without a ceiling."""
    return Roster(tuple(RosterEntry(client(number), share) for number, share in enumerate(shares)), PARTS)


@st.composite
def work_lists(draw: st.DrawFn, clients: int) -> WorkList:
    lengths = draw(st.lists(st.integers(1, 9), max_size=6))
    intervals, start = [], 0
    for length in lengths:
        intervals.append(BatchId(start, start + length - 1))
        start += length + draw(st.integers(0, 2))
    alone = draw(st.integers(0, min(clients - 1, len(intervals))))
    tried = draw(st.lists(st.integers(0, clients - 1), max_size=3))
    isolated = tuple(IsolatedWork(item, tuple(client(number) for number in tried)) for item in intervals[:alone])
    return WorkList(isolated, tuple(intervals[alone:]))


@settings(max_examples=settings().max_examples * 3)
@given(st.lists(st.integers(1, 7), min_size=1, max_size=9), st.integers(0, 10**6), st.data())
def test_assignment_partitions_the_work_list_in_proportion(shares: list[int], number: int, data: st.DataObject) -> None:
    roster = roster_of(*shares)
    work = data.draw(work_lists(len(shares)))
    assigned = assign_data_for_state(roster, work, seed_of(number))
    assert set(assigned) == {entry.client_id for entry in roster.clients}
    given_out = [batch for parts in assigned.values() for part in parts for batch in range(part.start, part.end + 1)]
    held = [batch for part in work.intervals() for batch in range(part.start, part.end + 1)]
    assert sorted(given_out) == sorted(held)
    alone = {item.batch_id for item in work.isolated}
    sharing = {c: parts for c, parts in assigned.items() if not (len(parts) == 1 and parts[0] in alone)}
    for item in work.isolated:
        (owner,) = [c for c, parts in assigned.items() if parts == (item.batch_id,)]
        others = [c for c in assigned if c not in item.tried]
        assert owner not in item.tried or len(others) < len(work.isolated)
    total, share_sum = total_batches(work.shared), sum(roster.clients[int(c, 16)].share for c in sharing)
    for client_id, parts in sharing.items():
        exact = roster.clients[int(client_id, 16)].share * total / share_sum
        assert abs(total_batches(parts) - exact) < 1


@given(st.lists(st.integers(1, 50), min_size=1, max_size=12), st.integers(0, 500))
def test_apportion_adds_up_and_never_strays_by_one(shares: list[int], total: int) -> None:
    counts = apportion(shares, total)
    assert sum(counts) == total
    assert all(abs(count - share * total / sum(shares)) < 1 for count, share in zip(counts, shares, strict=True))


def test_assignment_golden_vector() -> None:
    """Two machines that disagree here would train on the same data twice. Never change these literals."""
    roster = roster_of(1, 2, 1, 3)
    work = WorkList((IsolatedWork(BatchId(40, 41), (client(3),)),), (BatchId(7, 9), BatchId(20, 32)))
    assigned = assign_data_for_state(roster, work, seed_of(0))
    assert {int(c, 16): [(part.start, part.end) for part in parts] for c, parts in assigned.items()} == GOLDEN
    assert [int(c, 16) for c in assigned] == list(GOLDEN)
    assert [int(c, 16) for c in elect_witnesses(roster, seed_of(0), 3)] == GOLDEN_WITNESSES
    assert [int(c, 16) for c in checkpointer_order(roster, seed_of(0))] == GOLDEN_CHECKPOINTERS
    assert document_digest(roster) == GOLDEN_ROSTER_SHA256
    assert document_digest(work) == GOLDEN_WORK_SHA256


def test_assignment_that_needs_more_clients_than_there_are_is_refused() -> None:
    work = WorkList((IsolatedWork(BatchId(0, 0), ()),), (BatchId(1, 2),))
    with pytest.raises(InvalidInput):
        assign_data_for_state(roster_of(1), work, seed_of(1))


@pytest.mark.parametrize(("elected", "needed"), [(1, 1), (2, 2), (3, 2), (4, 3), (6, 4), (9, 6), (32, 21)])
def test_quorum_is_two_thirds_and_a_majority_at_least(elected: int, needed: int) -> None:
    assert quorum(elected) == needed


def test_witness_count_zero_elects_everyone_up_to_the_bound() -> None:
    assert witness_count(5, 0) == 5
    assert witness_count(5, 3) == 3
    assert witness_count(10_000, 0) == MAX_WITNESSES


def test_work_list_survives_its_canonical_json() -> None:
    work = WorkList((IsolatedWork(BatchId(40, 41), (client(3),)),), (BatchId(7, 9),))
    assert parse_document(WorkList, canonical_json(work)) == work


def test_work_of_many_intervals_is_cut_in_their_order() -> None:
    work = (BatchId(9, 10), BatchId(4, 4), BatchId(0, 2))
    assert split_consecutively(work, [1, 3, 0, 2]) == [
        (BatchId(9, 9),),
        (BatchId(10, 10), BatchId(4, 4), BatchId(0, 0)),
        (),
        (BatchId(1, 2),),
    ]


def test_witnesses_are_elected_among_proven_clients_if_there_are_any() -> None:
    entries = [RosterEntry(client(number), 1, proven=number in (2, 5)) for number in range(8)]
    mixed, new = Roster(tuple(entries)), Roster(tuple(replace(entry, proven=False) for entry in entries))
    assert set(mixed.electorate()) == {client(2), client(5)}
    assert set(elect_witnesses(mixed, seed_of(0), 32)) == {client(2), client(5)}
    assert len(elect_witnesses(mixed, seed_of(0), 1)) == 1
    assert set(new.electorate()) == {client(number) for number in range(8)}


@given(
    st.lists(st.integers(1, 50), min_size=1, max_size=20),
    st.lists(st.integers(1, 50), min_size=1, max_size=60),
    st.integers(2, 400),
)
def test_unproven_clients_get_a_quarter_at_most_and_one_batch_at_least(
    proven: list[int], others: list[int], total: int
) -> None:
    shares = [(share, True) for share in proven] + [(share, False) for share in others]
    roster = Roster(
        tuple(RosterEntry(ClientId(f"{number:032x}"), share, of) for number, (share, of) in enumerate(shares))
    )
    assigned = assign_data_for_state(roster, WorkList((), (BatchId(0, total - 1),)), seed_of(0))
    counts = [total_batches(assigned[entry.client_id]) for entry in roster.clients if not entry.proven]
    assert 1 <= sum(counts) <= max(1, total // 4)
    assert all(count <= share for count, share in zip(counts, others, strict=True))
    below = [count for count, share in zip(counts, others, strict=True) if count < share]
    assert not below or max(counts) - min(below) <= 1, "each of them counts alike, up to its share"
    assert sum(map(total_batches, assigned.values())) == total
