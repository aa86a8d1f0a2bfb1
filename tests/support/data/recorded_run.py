"""The record of a small run, as `epochal report` and `plot` read it, and the same with hostile words in every field."""

from dataclasses import replace
from pathlib import Path

from epochal.state.messages.evaluation_reports import Evaluation
from epochal.state.wire import ClientId
from epochal.view.figures.run_record import RunRecord, read_record
from tests.support.data.hostile_texts import TEXTS
from tests.support.drive.restarted_run import restarted_run


async def recorded_run(folder: Path, rounds: int = 3) -> RunRecord:
    """Play so many rounds in a new folder; return what its store holds of them, audited."""
    async with restarted_run(folder) as run:
        await run.play(rounds)
    return await read_record(str(folder), audits=True)


def hostile(record: RunRecord) -> RunRecord:
    """The same record, in which everything is hostile that a client or an operator may choose, and more members."""
    first = record.members[0]
    members = tuple(
        replace(
            first,
            client_id=ClientId(f"{number:032x}"),
            name=text,
            software=text,
            trainer=text,
            left=text if number % 2 else "",
        )
        for number, text in enumerate(TEXTS)
    )
    details = tuple(
        replace(
            detail,
            reason=TEXTS[0],
            clients=tuple(
                replace(
                    detail.clients[0], client_id=member.client_id, name=member.name, detail=member.name, train_s=1.0
                )
                for member in members
            ),
        )
        for detail in record.details
    )
    assert record.audit is not None, "the record is of a store"
    return replace(
        record,
        run_id=TEXTS[1],
        phase=TEXTS[2],
        config={"run_id": TEXTS[1], "texts": list(TEXTS)},
        members=members,
        details=details,
        explanation=replace(record.explanation, sentence=" ".join(TEXTS)),
        audit=replace(record.audit, problems=TEXTS, remarks=TEXTS),
    )


def evaluated(record: RunRecord) -> RunRecord:
    """The same record with two evaluations."""
    found = tuple(Evaluation("held-out", step, 2.5, 100, 10, "ab" * 32, record.at_s) for step in (0, 2))  # type: ignore[arg-type]
    return replace(record, evaluations=found)
