"""SQL of the small blobs that come with the records of a journal in PostgreSQL."""

BLOBS_PLACE = 3
"""Place of their size among what appending returns."""
DROP_BLOBS = """
WITH known AS (
  SELECT run_id FROM epochal_runs WHERE run_id = %(run)s AND sequence = %(sequence)s AND head = %(head)s FOR UPDATE
), dropped AS (
  DELETE FROM epochal_blobs blob USING known
  WHERE blob.run_id = known.run_id AND blob.sha256 = ANY(%(digests)b) RETURNING size_bytes
)
SELECT (SELECT coalesce(sum(size_bytes), 0) FROM dropped)::bigint FROM known
"""
"""Deletes blobs if the journal ends with the known record; returns their size, or nothing if it does not."""
_BLOBS = """, arrived AS (
  INSERT INTO epochal_blobs (run_id, sha256, size_bytes, body)
  SELECT run_id, blob.sha256, octet_length(blob.body), blob.body
  FROM moved, unnest(%(digests)b::bytea[], %(bodies)b::bytea[]) AS blob (sha256, body)
  ON CONFLICT DO NOTHING RETURNING size_bytes
)
SELECT journal_bytes,"""
_BLOB_BYTES = ", (SELECT coalesce(sum(size_bytes), 0) FROM arrived)::bigint FROM moved\n"


def with_blobs(append: str) -> str:
    """Return a statement that appends a record as one that keeps blobs as well."""
    head, _, selected = append.rpartition("SELECT journal_bytes,")
    return head + _BLOBS + selected.removesuffix(" FROM moved\n") + _BLOB_BYTES
