"""When a run was taken back to a checkpoint, as people read it."""

from datetime import UTC, datetime

from epochal.state.documents import RewindMark
from epochal.state.text.amounts import counted


def shown_rewind(mark: RewindMark | None, skipped: int = 0) -> str:
    """Return "rewound to step 10 at 2026-01-02 03:04 UTC", with how often, and the batches that were skipped; or ""."""
    if mark is None:
        return ""
    at = datetime.fromtimestamp(mark.at_s, UTC).strftime("%Y-%m-%d %H:%M UTC")
    often = f", the last of {mark.branch} times" if mark.branch > 1 else ""
    passed_over = f"; {counted(skipped, 'batch', 'batches')} skipped" if skipped else ""
    return f"rewound to step {mark.step} at {at}{often}{passed_over}"
