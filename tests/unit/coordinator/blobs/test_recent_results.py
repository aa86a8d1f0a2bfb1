"""`coordinator/blobs/recent_results.py`: a page's small results without a look into the store, of one round at a
time."""

from epochal.coordinator.blobs.recent_results import MAX_RECENT_BYTES, RecentResults
from epochal.state.wire import Sha256, sha256_hex
from tests.support.simulate.memory_store import MemoryBlobs, MemoryStore

FIRST, SECOND_ATTEMPT, NEXT = (3, 0), (3, 1), (4, 0)


def added(recent: RecentResults, of_round: tuple[int, int], data: bytes) -> Sha256:
    sha256 = Sha256(sha256_hex(data))
    recent.add(of_round, sha256, data)
    return sha256


def test_results_of_an_ended_round_are_forgotten_with_the_next_ones() -> None:
    recent = RecentResults(MemoryBlobs(10**9), MemoryStore(0).recorded_blobs)
    for number in range(3):
        added(recent, FIRST, b"%d" % number)
    assert recent.kept_bytes == 3
    added(recent, SECOND_ATTEMPT, b"more")
    assert recent.kept_bytes == 4
    added(recent, NEXT, b"even more")
    assert recent.kept_bytes == 9


def test_result_that_comes_twice_is_kept_once() -> None:
    recent = RecentResults(MemoryBlobs(10**9), MemoryStore(0).recorded_blobs)
    assert added(recent, FIRST, b"same") == added(recent, FIRST, b"same")
    assert recent.kept_bytes == 4


def test_oldest_results_of_a_round_make_room_for_newer_ones() -> None:
    recent = RecentResults(MemoryBlobs(10**9), MemoryStore(0).recorded_blobs)
    for number in range(5):
        added(recent, FIRST, bytes([number]) * (MAX_RECENT_BYTES // 4))
    assert recent.kept_bytes == MAX_RECENT_BYTES
