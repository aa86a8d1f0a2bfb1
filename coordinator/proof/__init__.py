"""Proofs of a run from its store: audit, ledger, recomputation, compaction, backup and moving."""
