"""A run as its figures show it, read from its store, which needs no coordinator, or from a coordinator."""

from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from epochal.cli.options.shared import trusted
from epochal.coordinator.insight.member_rows import member_rows
from epochal.coordinator.insight.run_history import read_history
from epochal.coordinator.machine.parts.run_identity import config_json
from epochal.coordinator.machine.resting_reason import hold_reason
from epochal.coordinator.proof.audit import AuditReport, audit_store
from epochal.coordinator.proof.backup import last_of
from epochal.coordinator.store.open import open_store_reader
from epochal.coordinator_client.operator import config_of
from epochal.coordinator_client.round_feed import EndedRounds, RoundFeed
from epochal.coordinator_client.viewer_client import ViewerClient
from epochal.runtime.retry import RetryPolicy
from epochal.runtime.rewind_words import shown_rewind
from epochal.state.errors import Refused
from epochal.state.intervals import total_batches
from epochal.state.messages.evaluation_reports import Evaluation
from epochal.state.messages.history_rows import RoundDetail, RoundFigures
from epochal.state.messages.member_rows import MAX_MEMBERS_GONE, MemberFigures
from epochal.state.refusals import Refusal
from epochal.state.shown.critical_path import pauses_of
from epochal.state.shown.explanation import MAX_EXPLAINED_ROUNDS, SpeedExplanation, explained, said_of

CONNECT_S = 10.0


@dataclass(frozen=True, slots=True)
class RunRecord:
    """A run as far as its figures show it.

    Attributes:
        phase: of the run, in words.
        total_steps: number of steps that it is to train.
        config: the run's configuration as clients read it: without access and notices.
        rows: figures of the rounds that have ended.
        details: the last rounds with each of their clients, the oldest first.
        members, gone: those that it has, and some that have left.
        explanation: why it is not faster.
        audit: of its journal; None if it was read from a coordinator.
        at_s: when the last message came that it knows of, in seconds since 1970 on the coordinator's clock.
        rewound: says to which step it went back last; "" if it never did.
    """

    run_id: str
    lineage: str
    phase: str
    step: int
    total_steps: int
    epoch: int
    tokens: int
    config: dict[str, Any]
    rows: tuple[RoundFigures, ...]
    details: tuple[RoundDetail, ...]
    members: tuple[MemberFigures, ...]
    gone: tuple[MemberFigures, ...]
    evaluations: tuple[Evaluation, ...]
    explanation: SpeedExplanation
    audit: AuditReport | None
    at_s: float
    rewound: str = ""


async def read_record(
    place: str, token: str | None = None, tls_ca: Path | None = None, *, audits: bool = False
) -> RunRecord:
    """Return a run's record.

    Args:
        place: a store's URL or folder, or a coordinator's address.
        token: for a coordinator that does not show the run to everybody.
        tls_ca: authorities to trust for it.
        audits: whether to audit a store's journal.

    Raises:
        InvalidInput: there is no run.
        StoreFailed: its journal cannot be read.
        CoordinatorUnreachable, Refused: the coordinator does not answer, or does not show it.
    """
    if not place.startswith(("http://", "https://")):
        return await _stored(place, audits=audits)
    async with await ViewerClient.connect(place, RetryPolicy(bound_s=CONNECT_S), trusted(tls_ca)) as client:
        client.show(token)
        return await _served(client)


async def _stored(place: str, *, audits: bool) -> RunRecord:
    store = open_store_reader(place)
    async with store.place.copying():
        history, run = (await read_history(store.journal)).history, (await last_of(store)).run
    details = tuple(history.details)
    silent_s = dict.fromkeys(run.members.by_id, 0.0)
    rows, gone = member_rows(run, details, history.book, silent_s, history.book.gone(MAX_MEMBERS_GONE))
    why = explained(details, {row.client_id: row.name for row in (*gone, *rows)}, pauses_of(history.actions))
    took_s = history.rows[-1].ended_s - history.rows[0].started_s if history.rows else 0.0
    is_held = hold_reason(run.clock, run.members, run.state_file.config) is not None
    said = said_of(why, run.clock.phase, is_held=is_held, took_s=took_s)
    return RunRecord(
        run_id=run.state_file.run_id,
        lineage=run.identity.lineage,
        phase=run.clock.phase.value,
        step=run.progress.step,
        total_steps=run.state_file.config.total_steps,
        epoch=run.progress.epoch,
        tokens=run.tokens_applied,
        config=config_json(run.identity.state_file),
        rows=tuple(history.rows),
        details=details,
        members=tuple(rows),
        gone=tuple(gone),
        evaluations=history.evaluations,
        explanation=replace(why, sentence=said) if why.rounds else why,
        audit=await audit_store(place, recompute=False) if audits else None,
        at_s=run.clock.now_s,
        rewound=shown_rewind(run.progress.rewound, total_batches(run.work.skipped)),
    )


async def _served(client: ViewerClient) -> RunRecord:
    rows: list[RoundFigures] = []
    feed = RoundFeed(client, RetryPolicy(bound_s=CONNECT_S))
    async with aclosing(feed.present()) as news:
        async for one in news:
            rows = [*rows, *one.page.rounds.rows()] if isinstance(one, EndedRounds) else []
    document, state = await config_of(client)
    members, status = await client.members(), await client.status()
    details = [detail async for detail in _last_rounds(client, feed.ended)]
    return RunRecord(
        run_id=client.run_id,
        lineage=document.lineage,
        phase=document.run_state.value,
        step=document.step,
        total_steps=document.total_steps,
        epoch=document.epoch,
        tokens=status.tokens_applied,
        config=config_json(state),
        rows=tuple(rows),
        details=tuple(details),
        members=tuple(members.members.rows()),
        gone=tuple(members.gone.rows()),
        evaluations=await client.evaluations(),
        explanation=await client.explanation(),
        audit=None,
        at_s=members.at_s,
        rewound=shown_rewind(status.rewound, status.skipped_batches),
    )


async def _last_rounds(client: ViewerClient, ended: int) -> AsyncIterator[RoundDetail]:
    for number in range(max(0, ended - MAX_EXPLAINED_ROUNDS), ended):
        try:
            yield await client.round_detail(number)
        except Refused as error:
            if error.kind is not Refusal.NOT_FOUND:
                raise
