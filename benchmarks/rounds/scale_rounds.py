"""Rounds of three members, where each waits for the store: on files, on PostgreSQL, and its transactions alone."""

import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.figures import Figure
from benchmarks.rounds.bare_round import BARE_NAME, CLIENTS, ROUNDS, bare_round_s, null_round_s
from benchmarks.rounds.scale_load import Case, Measured, load_state, rounds_of
from benchmarks.rounds.scale_serving import InDatabase, Serving, serving
from benchmarks.servers import bare_process, run_state
from epochal.state.errors import EpochalError
from tests.support.servers.postgres_server import PostgresServer

RAW_ROUNDS = 60
STORE_TARGET = "≤ 1.5 x"

_TABLES = """
CREATE TABLE bare_runs (run_id text PRIMARY KEY, sequence bigint NOT NULL, changed_at timestamptz NOT NULL);
CREATE TABLE bare_records (
  run_id text NOT NULL, sequence bigint NOT NULL, body bytea NOT NULL, PRIMARY KEY (run_id, sequence)
);
INSERT INTO bare_runs SELECT run_id, 0, clock_timestamp() FROM epochal_runs
"""
_TRANSACTION = """
WITH moved AS (
  UPDATE bare_runs SET sequence = %(sequence)s, changed_at = clock_timestamp() WHERE sequence < %(sequence)s
  RETURNING run_id
)
INSERT INTO bare_records SELECT run_id, %(sequence)s, %(body)s FROM moved
"""


@dataclass(frozen=True, slots=True)
class BareRounds:
    """A run's transactions, executed again with nothing around them.

    Attributes:
        round_s: time of those of one round, in seconds.
        per_round: their number in one round.
    """

    round_s: float
    per_round: float


def bare_rounds(server: PostgresServer, url: str, rounds: int) -> BareRounds:
    """Move a row and insert a record in one transaction for each record of a run, with the same bytes, one by one.

    Args:
        server: the same that has kept the run, with the same settings.
        url: the run's database; tables are added.
        rounds: number of rounds that the records are of.
    """
    import psycopg

    bodies = server.execute("SELECT sequence, body FROM epochal_records ORDER BY sequence", url)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(_TABLES)
        began_s = time.perf_counter()
        for sequence, body in bodies:
            connection.execute(_TRANSACTION, {"sequence": sequence, "body": body}, prepare=True)
        took_s = time.perf_counter() - began_s
    return BareRounds(took_s / rounds, len(bodies) / rounds)


@asynccontextmanager
async def _served(state: str, folder: Path, server: PostgresServer | None, count: int = 1) -> AsyncIterator[Serving]:
    with tempfile.TemporaryDirectory(dir=folder) as own:
        async with serving(state, Path(own), server, count) as served:
            yield served


async def _raw(folder: Path, rounds: int, server: PostgresServer | None, count: int = 1) -> Measured:
    async with _served(load_state(CLIENTS, rounds), folder, server, count) as served:
        return await rounds_of(Case(CLIENTS, rounds, count if server else None), served)


async def _raw_and_bare(folder: Path, rounds: int, server: PostgresServer) -> tuple[Measured, BareRounds]:
    async with _served(load_state(CLIENTS, rounds), folder, server) as served:
        found = await rounds_of(Case(CLIENTS, rounds, 1), served)
    assert isinstance(served.kept, InDatabase)
    steps = rounds + 1 + 2  # the warming ones, and the one in which the measurement ended
    return found, bare_rounds(server, served.kept.url, steps)


async def _null(folder: Path, server: PostgresServer | None) -> float:
    state = run_state(init_min_clients=CLIENTS, total_steps=ROUNDS)
    async with _served(state, folder, server) as served:
        return (await null_round_s(served.children, served.urls[0], served.store))[0]


async def raw_figures(folder: Path, server: PostgresServer | str, rounds: int = RAW_ROUNDS) -> list[Figure]:
    """Measure rounds of raw members, on files and on a database; `server` may say instead why there is none."""
    files = await _raw(folder, rounds, None)
    name = f"a round, {CLIENTS} raw members"
    figures = [Figure(f"{name}, on files", files.round_s * 1000, "ms")]
    if isinstance(server, str):
        return [*figures, Figure(f"{name}, on PostgreSQL", None, "ms", STORE_TARGET, baseline_name=server)]
    one, bare = await _raw_and_bare(folder, rounds, server)
    three = await _raw(folder, rounds, server, 3)
    alone = f"its {bare.per_round:.1f} transactions in bare SQL, one by one"
    return [
        *figures,
        Figure(f"{name}, on PostgreSQL", one.round_s * 1000, "ms", STORE_TARGET, files.round_s * 1000, "on files"),
        Figure("the same", one.round_s * 1000, "ms", "", bare.round_s * 1000, alone),
        Figure(f"{name}, on PostgreSQL, 3 replicas", three.round_s * 1000, "ms", "", files.round_s * 1000, "on files"),
    ]


async def null_figures(folder: Path, server: PostgresServer | str) -> list[Figure]:
    """Measure rounds of null clients, each a process of its own, as `raw_figures` does."""
    files_s = await _null(folder, None)
    async with bare_process(folder) as url:
        bare_s = await bare_round_s(url)
    name = f"a round, {CLIENTS} null clients"
    figures = [Figure(f"{name}, on files", files_s * 1000, "ms", "≤ 50 ms", bare_s * 1000, BARE_NAME)]
    name = f"{name}, on PostgreSQL"
    if isinstance(server, str):
        return [*figures, Figure(name, None, "ms", STORE_TARGET, baseline_name=server)]
    try:
        database_s = await _null(folder, server)
    except EpochalError as error:
        return [*figures, Figure(name, None, "ms", STORE_TARGET, baseline_name=str(error))]
    return [*figures, Figure(name, database_s * 1000, "ms", STORE_TARGET, files_s * 1000, "on files")]
