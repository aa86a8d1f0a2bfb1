"""Records in PostgreSQL are durable before they are told of, whatever the server's settings say of commits."""

from collections.abc import Iterator

import pytest

from epochal.coordinator.machine.journal_records import JournalRecord, Snapshot
from tests.support.data.database_store import database_store
from tests.support.servers.postgres_server import PostgresServer, postgres_server

NOTE_SETTING = """
CREATE TABLE noted (setting text);
CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS
  'BEGIN INSERT INTO noted VALUES (current_setting(''synchronous_commit'')); RETURN NULL; END';
CREATE TRIGGER noted AFTER INSERT ON epochal_records FOR EACH ROW EXECUTE FUNCTION note()
"""


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with postgres_server() as running:
        yield running


@pytest.mark.parametrize(
    ("setting", "kept_under"), [("off", "on"), ("local", "local"), ("remote_apply", "remote_apply")]
)
async def test_record_is_never_kept_by_a_commit_that_is_not_durable(
    server: PostgresServer, setting: str, kept_under: str
) -> None:
    url = server.new_database()
    server.execute(f"ALTER DATABASE {url.rpartition('/')[2]} SET synchronous_commit = '{setting}'")
    store = await database_store(url)
    try:
        assert server.execute("SHOW synchronous_commit", url) == [(setting,)], "that of every other session"
        assert await store.journal.load() is None
        await store.journal.open_segment(Snapshot(0, b"start"))
        server.execute(NOTE_SETTING, url)
        await store.journal.append(JournalRecord(1, b"one"))
        server.disconnect(url.rpartition("/")[2])
        await store.journal.tail(1)  # by a new connection
        await store.journal.append(JournalRecord(2, b"two"))
    finally:
        await store.aclose()
    assert server.execute("SELECT setting FROM noted", url) == [(kept_under,)] * 2
