"""Run documents and round heads for tests."""

from dataclasses import replace
from typing import Any

from epochal.state.documents import RoundHead, RunDocument
from epochal.state.phase_names import ROUND_PHASES, RunState
from epochal.state.wire import Seed, Sha256


def round_head(step: int, attempt: int = 0) -> RoundHead:
    return RoundHead(
        step=step,
        attempt=attempt,
        height=step - 1,
        seed=Seed("11" * 32),
        assignment_seed=Seed("10" * 32),
        cursor=12,
        batches=12,
        roster_sha256=Sha256("22" * 32),
        roster_count=1,
        work_sha256=Sha256("33" * 32),
        witness_count=1,
    )


def run_document(run_state: RunState, step: int = 1, attempt: int = 0, **changes: Any) -> RunDocument:
    """Return a document in this phase; in a round's phase, of round `(step, attempt)`."""
    document = RunDocument(
        format=1,
        run_id="test-run",
        lineage="ab" * 8,
        version=step,
        run_state=run_state,
        phase_started_s=0.0,
        phase_ends_s=None,
        reason="a test",
        epoch=0,
        step=step,
        total_steps=10,
        cursor=0,
        epoch_start_data_index=0,
        data_indices_applied=0,
        carried_batches=0,
        quarantined_batches=0,
        round=round_head(step, attempt) if run_state in ROUND_PHASES else None,
        last_outcome_sha256=None,
        rebuild=False,
        checkpointer=None,
        checkpointing_step=None,
        checkpoint=None,
        config_sha256=Sha256("44" * 32),
        model_sha256=None,
        cold_start_step=None,
        data_fingerprint=None,
        coordinator_key="55" * 32,
    )
    return replace(document, **changes)
