"""The URL of a database: a wrong one is refused without its password. A list of its runs is waited for with a limit."""

import psycopg
import pytest

from epochal.coordinator.store.open import runs_in
from epochal.coordinator.store.postgres.address import parse_address
from epochal.coordinator.store.postgres.database import OWN_TABLES
from epochal.coordinator.store.sql.schema import TABLES
from epochal.state.errors import InvalidInput, StoreFailed
from tests.support.servers.postgres_server import PostgresServer


@pytest.mark.parametrize(
    "rest", ["u:s3%cret@h/x", "u:s3#cret@h/x", "u:s3/cret@h/x", "u:s3@cret@h/x", "u:s3cret@[::1/x"]
)
def test_url_with_a_wrong_password_is_refused_without_it(rest: str) -> None:
    with pytest.raises(InvalidInput, match=r"the store postgresql://u:…@\S+ cannot be opened: .* %25") as refused:
        parse_address(f"postgresql://{rest}")
    assert "s3" not in str(refused.value)
    assert "cret" not in str(refused.value)


@pytest.mark.nightly
def test_list_of_runs_does_not_wait_for_a_lock_without_bound(database_server: PostgresServer) -> None:
    url = database_server.new_database()
    with psycopg.connect(url, autocommit=True) as locking:
        for sql in (*TABLES, *OWN_TABLES):
            locking.execute(sql.encode())
        with locking.transaction():
            locking.execute("LOCK TABLE epochal_runs")
            with pytest.raises(StoreFailed, match="timeout"):
                runs_in(url)
    assert runs_in(url) == []
