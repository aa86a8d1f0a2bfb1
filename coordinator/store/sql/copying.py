"""Copying a run's rows from one database into another, and removing one that lies elsewhere now."""

from epochal.coordinator.store.sql.database import BULK_S, ROWS_AT_A_TIME, Database, Statement
from epochal.coordinator.store.sql.history import JOURNAL_SIZE
from epochal.coordinator.store.sql.notes import OF_A_PLACE, Notes
from epochal.coordinator.store.sql.schema import COLUMNS
from epochal.runtime.long_work import LongWork
from epochal.state.errors import InvalidInput, StoreFailed

_CUT = (
    "DELETE FROM epochal_records WHERE run_id = :run AND sequence > :sequence",
    "DELETE FROM epochal_segments WHERE run_id = :run AND number > :segment",
    *(f"DELETE FROM epochal_notes WHERE run_id = :run AND name = '{name}'" for name in OF_A_PLACE),
)
"""Removes what was appended while the rows were copied, and notes that are true of the other place only."""
_END = f"""
INSERT INTO epochal_runs (run_id, sequence, head, version, segment, opened_at, journal_bytes, changed_s)
SELECT :run, :sequence, :head, :version, :segment, :opened_at, {JOURNAL_SIZE}, :changed_s
WHERE NOT EXISTS (SELECT 1 FROM epochal_runs WHERE run_id = :run) RETURNING run_id
"""
_IS_THERE = "SELECT 1 FROM epochal_runs WHERE run_id = :run"


async def copy_rows(source: Database, target: Database, run_id: str, notes: dict[str, bytes], work: LongWork) -> None:
    """Copy all of a run's rows, as far as its last record at the beginning. The run is there, whole, at the end.

    Whoever copies keeps the source from being swept meanwhile.

    Args:
        source: holds the run.
        target: has the tables.
        run_id: the run.
        notes: that are kept besides.
        work: counts rows.

    Raises:
        InvalidInput: the target holds such a run already.
        StoreFailed: one of them cannot be used.
    """
    if (await target.transact(Statement(_IS_THERE, {"run": run_id})))[0]:
        raise InvalidInput(f"{target.name} holds a run {run_id!r} already; allowed: a database without it")
    await remove_run(target, run_id)  # a copy that was killed may have left rows
    tables = dict(COLUMNS)
    columns = tables.pop("epochal_runs")
    select = f"SELECT {', '.join(columns)} FROM epochal_runs WHERE run_id = :run"
    (rows,) = await source.transact(Statement(select, {"run": run_id}))
    if not rows:
        raise StoreFailed(f"{source.name} holds no journal")
    run = dict(zip(columns, rows[0], strict=True)) | {"run": run_id}
    for table in tables:
        await _copy_table(source, target, table, run_id, work)
    writing = [Notes(target, run_id).writing(name, value) for name, value in notes.items()]
    *_, ended = await target.transact(
        *(Statement(sql, run) for sql in _CUT), *writing, Statement(_END, run), limit_s=BULK_S
    )
    if not ended:
        raise InvalidInput(f"{target.name} holds a run {run_id!r} already; allowed: a database without it")


async def _copy_table(source: Database, target: Database, table: str, run_id: str, work: LongWork) -> None:
    columns = COLUMNS[table]
    key, named = columns[0], ", ".join(columns)
    values = ", ".join(f":{column}" for column in columns)
    insert = f"INSERT INTO {table} (run_id, {named}) VALUES (:run, {values})"
    last: object = None
    while True:
        follows = "" if last is None else f"AND {key} > :last"
        select = f"SELECT {named} FROM {table} WHERE run_id = :run {follows} ORDER BY {key} LIMIT {ROWS_AT_A_TIME}"
        (rows,) = await source.transact(Statement(select, {"run": run_id, "last": last}), limit_s=BULK_S)
        if not rows:
            return
        copied = (dict(zip(columns, row, strict=True)) | {"run": run_id} for row in rows)
        await target.transact(*(Statement(insert, row) for row in copied), limit_s=BULK_S)
        last = rows[-1][0]
        work.advance(len(rows))


async def remove_run(database: Database, run_id: str) -> None:
    """Remove a run with its journal, notes and blobs. Raise `StoreFailed` if the database cannot be used."""
    removing = (Statement(f"DELETE FROM {table} WHERE run_id = :run", {"run": run_id}) for table in COLUMNS)
    await database.transact(*removing, limit_s=BULK_S)
