"""The rows of a run's members: their present, and their figures in the run's history."""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Self

from epochal.coordinator.insight.figures import ahead_in, lowered_factors, parts_of
from epochal.coordinator.insight.member_book import KnownMember, MemberBook
from epochal.coordinator.machine.parts.member import Member
from epochal.coordinator.machine.run import Run
from epochal.state.intervals import total_batches
from epochal.state.messages.history_rows import GPU_FIGURES, ClientFigures, RoundDetail
from epochal.state.messages.member_rows import MemberFigures
from epochal.state.wire import ClientId

_PLACES = 3


def member_rows(
    run: Run,
    details: Iterable[RoundDetail],
    book: MemberBook,
    silent_s: Mapping[ClientId, float],
    gone: Iterable[KnownMember] = (),
) -> tuple[list[MemberFigures], list[MemberFigures]]:
    """Return the rows of some present members, and of some that have left.

    Args:
        run: at the present time.
        details: its last rounds.
        book: the figures of its members in its history.
        silent_s: seconds since each of these members was last heard.
        gone: those that have left.
    """
    lately, present = _lately_of(details), _Present.of(run)
    rows = [
        _row_of(run, run.members.by_id[client_id], book.get(client_id), lately.get(client_id, ()), silent, present)
        for client_id, silent in silent_s.items()
    ]
    left = [_gone_row(known, lately.get(known.client_id, ()), run.clock.now_s) for known in gone]
    return rows, [row for row in left if row.client_id not in run.members]


def _lately_of(details: Iterable[RoundDetail]) -> dict[str, list[ClientFigures]]:
    """Return each client's figures in the last rounds."""
    found: dict[str, list[ClientFigures]] = defaultdict(list)
    for detail in details:
        for figures in detail.clients:
            found[figures.client_id].append(figures)
    return found


@dataclass(frozen=True, slots=True)
class _Present:
    """The members' parts of the round under way, the factors below 1 of their last results, and who trains ahead."""

    parts: Mapping[ClientId, float]
    factors: Mapping[ClientId, float]
    ahead: frozenset[ClientId]

    @classmethod
    def of(cls, run: Run) -> Self:
        return cls(parts_of(run), lowered_factors(run), frozenset() if run.round is None else ahead_in(run.round))


def _row_of(
    run: Run,
    member: Member,
    known: KnownMember | None,
    lately: Sequence[ClientFigures],
    silent_s: float,
    present: _Present,
) -> MemberFigures:
    """Return the row of a present member; `lately` is its part of the last rounds, `silent_s` since it was heard."""
    known = known or KnownMember(member.client_id)
    rest_s = member.conduct.rest_s(run.clock.now_s)
    return MemberFigures(
        client_id=member.client_id,
        name=member.name,
        software=member.software,
        trainer=member.trainer,
        ready=run.is_ready(member),
        in_roster=run.round is not None and member.client_id in run.round.tasks.plan.positions,
        ahead_step=run.progress.step + 1 if member.client_id in present.ahead else None,
        share=0 if run.round is None else total_batches(run.round.tasks.plan.assignments.get(member.client_id, ())),
        part=present.parts.get(member.client_id, 0.0),
        factor=present.factors.get(member.client_id),
        claim=member.claim,
        missed=member.conduct.misses,
        last_miss=member.conduct.last_miss,
        rest_s=None if rest_s is None else round(rest_s, _PLACES),
        silent_s=round(silent_s, _PLACES),
        joined_s=known.joined_s,
        **_counted(known, lately),
        last_loss=known.last_loss,
    )


def _gone_row(known: KnownMember, lately: Sequence[ClientFigures], now_s: float) -> MemberFigures:
    """Return the row of a former member."""
    return MemberFigures(
        client_id=known.client_id,
        name=known.name,
        software=known.software,
        trainer=known.trainer,
        silent_s=round(max(0.0, now_s - (known.left_s or now_s)), _PLACES),
        joined_s=known.joined_s,
        left=known.left or "unknown",
        **_counted(known, lately),
        last_loss=next((one.loss for one in reversed(lately) if one.loss is not None), None),
    )


def _counted(known: KnownMember, lately: Sequence[ClientFigures]) -> dict[str, Any]:
    """Return the fields of a row that its history gives."""
    trained = [one.train_s for one in lately if one.train_s is not None]
    waited = [one.data_s for one in lately if one.data_s is not None]
    gpu = next((one for one in reversed(lately) if one.gpu_utilisation is not None), None)
    in_trainer_s = math.fsum(trained) + math.fsum(waited)
    return {
        "applied": known.applied,
        "lost": known.lost,
        "tokens": known.tokens,
        "tokens_per_s": _per_s(sum(one.tokens for one in lately if one.train_s is not None), math.fsum(trained)),
        "data_wait": round(math.fsum(waited) / in_trainer_s, _PLACES) if waited and in_trainer_s else None,
        "data_wait_s": round(known.data_wait_s, _PLACES),
        "train_s": round(median(trained), _PLACES) if trained else None,
        "result_bytes": known.result_bytes,
        "uploaded_bytes": known.uploaded_bytes,
        "downloaded_bytes": known.downloaded_bytes,
        **{name: gpu and getattr(gpu, name) for name in GPU_FIGURES},
    }


def _per_s(tokens: int, train_s: float) -> float | None:
    """Return tokens per second; None of no time, or where a client's claims are absurd."""
    speed = tokens / train_s if train_s > 0 and math.isfinite(train_s) else math.inf
    return round(speed, 1) if math.isfinite(speed) else None
