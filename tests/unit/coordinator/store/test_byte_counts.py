"""Bytes of blobs are counted once at every moment."""

from epochal.coordinator.store.files.byte_counts import ByteCounts


def test_blob_counts_once_from_its_first_byte_to_its_deletion() -> None:
    counts, blob = ByteCounts(100), object()
    seen = []
    for size_bytes in (3, 4):
        counts.arrived(blob, size_bytes)
        seen.append(counts.total)
    counts.named(blob, 7)
    seen.append(counts.total)
    counts.given_up(blob)
    seen.append(counts.total)
    counts.deleted(7)
    assert [*seen, counts.total] == [103, 107, 107, 107, 100]


def test_blob_whose_name_is_taken_or_that_is_given_up_counts_no_more() -> None:
    counts, twin, broken = ByteCounts(100), object(), object()
    counts.arrived(twin, 7)
    counts.arrived(broken, 5)
    counts.named(twin, 0)
    assert counts.total == 105
    counts.given_up(broken)
    assert counts.total == 100


def test_blob_that_is_named_after_it_was_given_up_counts_by_its_name() -> None:
    """As when the request is cancelled while a thread names the file."""
    counts, blob = ByteCounts(0), object()
    counts.arrived(blob, 7)
    counts.given_up(blob)
    counts.named(blob, 7)
    assert counts.total == 7
