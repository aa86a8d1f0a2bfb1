"""Names that a run has in a database beside its own: numbers of advisory locks, and its channel of notifications."""

import hashlib


def channel_of(run_id: str) -> str:
    """Return the channel on which news of a run is notified; a run's own name may be too long for one."""
    return f"epochal_{hashlib.sha256(run_id.encode()).hexdigest()[:32]}"


def lock_of(purpose: str, run_id: str) -> int:
    """Return the number of the advisory lock for a purpose in one run."""
    digest = hashlib.sha256(f"epochal/{purpose}\0{run_id}".encode()).digest()
    return int.from_bytes(digest[:8], "big", signed=True)
