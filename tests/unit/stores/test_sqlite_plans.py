"""Query plans of SQLite: no statement scans a queue or the finished jobs."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

import pytest

from poolhand.contract import Filter
from poolhand.rules.job import Status
from poolhand.stores.sql import claims as sql_claims
from poolhand.stores.sql import facts as sql_facts
from poolhand.stores.sql import find as sql_find
from poolhand.stores.sql import log as sql_log
from poolhand.stores.sql import pools as sql_pools
from poolhand.stores.sql import rows as sql_rows
from poolhand.stores.sql import sessions as sql_sessions
from poolhand.stores.sql import steps as sql_steps
from poolhand.stores.sql import upkeep as sql_upkeep
from poolhand.stores.sql.migrations import steps
from poolhand.stores.sqlite.tables import SqliteTables, for_lot

HOT = {
    "the next of a queue": sql_facts.NEXT,
    "the next of a lane": sql_facts.NEXT_OF_LANE,
    "the permits of a key": sql_facts.HELD,
    "the next of a gate": sql_facts.NEXT_OF_GATE,
    "the holders of sessions": for_lot(sql_sessions.HOLDERS, 10),
    "who is next in sessions": for_lot(sql_sessions.NEXT_TURNS, 10),
    "the oldest of a crowd": sql_facts.OLDEST,
    "the first of the parked": sql_facts.FIRST_BLOCKED_SUBMITTER,
    "the best lanes": sql_facts.BEST,
    "a lane": sql_facts.ONE,
    "a key": sql_sessions.FIND,
    "the oldest key": sql_sessions.FIRST,
    "what was claimed": for_lot(sql_claims.CLAIMED, 10),
    "what is stuck": sql_claims.STUCK,
    "what was renewed": for_lot(sql_claims.RENEWED, 10),
    "a job by its number": sql_rows.BY_SEQ,
    "a job by its id": sql_rows.BY_ID,
    "jobs by their ids": for_lot(sql_rows.BY_IDS, 10),
    "a pool": sql_pools.BY_NAME,
    "what has expired": sql_steps.EXPIRED,
    "what an owner has parked": sql_claims.BLOCKED_SUBMITTERS_OF,
    "what is due": sql_upkeep.DUE,
    "when something is due": sql_upkeep.NEXT_DUE,
    "when something expires": sql_upkeep.NEXT_CLOSING,
    "the end of a stream": sql_log.LAST,
    "a stream": sql_log.READ,
}


@pytest.fixture
def connection() -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(":memory:")
    for step in steps():
        connection.executescript(step.text)
    yield connection
    connection.close()


def plan(connection: sqlite3.Connection, text: str) -> list[str]:
    count = text.count("?") if "?1" not in text else 2
    rows = connection.execute(f"EXPLAIN QUERY PLAN {text}", [1] * count)
    return [row[3] for row in rows]


def scans(found: list[str]) -> list[str]:
    """Return the steps that scan a whole table or sort their result."""
    return [step for step in found if step.startswith("SCAN") or "TEMP B-TREE" in step]


@pytest.mark.parametrize("what", HOT)
def test_every_query_on_the_hot_path_uses_an_index(
    connection: sqlite3.Connection, what: str
) -> None:
    scanned = [step for step in scans(plan(connection, HOT[what])) if "CONSTANT ROW" not in step]
    assert scanned == []


def test_a_plan_that_scans_is_found(connection: sqlite3.Connection) -> None:
    assert scans(plan(connection, "SELECT seq FROM poolhand_waits WHERE since = ? ORDER BY turn"))


def test_running_jobs_are_scanned_once_however_many_owners_there_are(
    connection: sqlite3.Connection,
) -> None:
    found = plan(connection, sql_claims.LEASES)
    assert [step for step in found if step.startswith("SCAN poolhand")] == ["SCAN poolhand_claims"]
    assert not [step for step in found if "CORRELATED" in step and "poolhand_claims" in step]


def test_overdue_pools_are_found_by_a_covering_index(connection: sqlite3.Connection) -> None:
    index = "SEARCH poolhand_waits USING COVERING INDEX poolhand_waits_closing"
    assert plan(connection, sql_steps.OVERDUE)[0].startswith(index)


@pytest.mark.parametrize(
    ("which", "column"),
    [
        (Filter(name="n"), "name"),
        (Filter(key="k"), "key"),
        (Filter(session="s"), "session"),
        (Filter(tenant="t"), "tenant"),
        (Filter(name="n", key="k", tenant="t"), "key"),
        (Filter("p", (), "n", "k", "s", "t"), "session"),
        (Filter(name="n", tenant="t", dead=True), "tenant"),
        (Filter(name="n", statuses=(Status.FAILED,)), "name"),
        (Filter(tenant="t", statuses=(Status.QUEUED, Status.FAILED)), "tenant"),
        (Filter(key="k", statuses=(Status.QUEUED,)), "key"),
    ],
    ids=str,
)
def test_jobs_are_found_and_counted_by_the_most_selective_column(
    connection: sqlite3.Connection, which: Filter, column: str
) -> None:
    asked: list[str] = []
    connection.set_trace_callback(asked.append)
    sql_find.find(SqliteTables(connection), which, None, 10)
    sql_find.count(SqliteTables(connection), which)
    connection.set_trace_callback(None)
    for text in asked:
        found = plan(connection, text)
        taken = [step.replace("COVERING ", "") for step in found]
        assert f"SEARCH j USING INDEX poolhand_jobs_by_{column} ({column}=?)" in taken
        assert not [step for step in found if step.startswith("SCAN")]


@pytest.mark.parametrize(
    ("which", "table"),
    [
        (Filter(dead=True), "e USING INDEX poolhand_ends_dead"),
        (Filter(dead=True, name="n"), "e USING INDEX poolhand_ends_dead"),
        (Filter(statuses=(Status.RUNNING,)), "c USING INDEX poolhand_claims_by_job"),
        (Filter(statuses=(Status.QUEUED, Status.BLOCKED), name="n"), "w"),
        (Filter(statuses=(Status.FAILED,)), "e USING INDEX poolhand_ends_by_job"),
        (Filter(key=""), "j"),
    ],
    ids=["dead", "dead of a name", "running", "waiting", "over", "any"],
)
def test_a_search_begins_where_the_fewest_are_and_sorts_nothing(
    connection: sqlite3.Connection, which: Filter, table: str
) -> None:
    asked: list[str] = []
    connection.set_trace_callback(asked.append)
    sql_find.find(SqliteTables(connection), which, None, 10)
    connection.set_trace_callback(None)
    found = plan(connection, asked[0])
    assert found[0].startswith(("SCAN " + table, "SEARCH " + table))
    assert not [step for step in found if "TEMP B-TREE" in step]
