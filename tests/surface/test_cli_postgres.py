"""The commands on a PostgreSQL server: what they do not change, what they find, what they hide."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from poolhand import App
from poolhand.cli.session import opened
from poolhand.errors import ReadOnly
from poolhand.operate import store_findings
from poolhand.runtime import Runtime
from poolhand.stores.open import store_of
from poolhand.stores.postgres import connections as postgres_link
from poolhand.stores.sql import migrations
from tests.contract.support import over
from tests.private_servers.postgres_server import PostgresServer
from tests.surface.test_cli import Desk, run

COMMANDS = [
    ["jobs", "list"],
    ["jobs", "show", "x"],
    ["jobs", "cancel", "x"],
    ["jobs", "retry", "x"],
    ["dead", "list"],
    ["dead", "retry", "--all"],
    ["pools", "list"],
    ["pools", "pause", "x"],
    ["audit"],
]
OURS = "SELECT count(*) FROM pg_class WHERE relname LIKE 'poolhand%'"
PAGE = Path(__file__).parents[2] / "docs" / "howto" / "postgresql.md"


pytestmark = pytest.mark.usefixtures("elsewhere")


NEWEST = len(migrations.steps("postgres"))


@pytest.fixture
def desk(schema: str) -> Desk:
    desk = Desk(schema)
    run("migrate", "--store", desk.url)
    return desk


@pytest.fixture
def role(postgres: PostgresServer) -> Iterator[str]:
    """Return a user who may connect, and nothing else."""
    postgres.query("CREATE ROLE clerk LOGIN", postgres.url)
    yield "clerk"
    postgres.query("DROP OWNED BY clerk; DROP ROLE clerk", postgres.url)


def as_user(url: str, user: str) -> str:
    return re.sub(r"//[^@]*@", f"//{user}@", url)


def name_of(url: str) -> str:
    return url.partition("schema=")[2]


@contextmanager
def held(url: str, *statements: str) -> Iterator[int]:
    """Hold a transaction open in which this was done; yield the pid of its backend."""
    with asyncio.Runner() as runner:

        async def begin() -> tuple[Any, int]:
            connection = await asyncpg.connect(url.partition("?")[0])
            await connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
            for statement in statements:
                await connection.execute(statement)
            return connection, connection.get_server_pid()

        connection, pid = runner.run(begin())
        try:
            yield pid
        finally:
            # Wait for its end: closing a connection does not.
            runner.run(connection.execute("ROLLBACK"))
            runner.run(connection.close())


async def check(url: str) -> None:
    store = store_of(url, Runtime())
    async with opened(store):
        await store.check()


def found(desk: Desk, code: int = 0) -> dict[str, dict[str, Any]]:
    """Return the findings of the doctor, by the name of the check."""
    findings = desk.json("doctor", code=code)["findings"]
    assert all(one["fix"] for one in findings if one["level"] != "ok")
    return {one["check"]: one for one in findings}


def wrong(findings: dict[str, dict[str, Any]]) -> set[str]:
    return {name for name, one in findings.items() if one["level"] == "WRONG"}


# What is not changed


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_read_commands_create_nothing_in_a_foreign_database(
    postgres: PostgresServer, database: str, words: list[str]
) -> None:
    place = "postgresql://" + database.partition("@")[2]
    assert run(*words, "--store", database, code=5).stderr == (
        f"poolhand: '{place}' is not a store of poolhand yet; check the name, or make it one with "
        f"`poolhand migrate --store {database}` [PH-STO-001]\n"
    )
    assert postgres.query(OURS, database) == "0"


def test_doctor_and_migrate_check_create_nothing_in_a_foreign_database(
    postgres: PostgresServer, schema: str
) -> None:
    result = run("migrate", "--check", "--store", schema, code=1)
    assert result.stdout == f"the schema is number 0; `poolhand migrate` migrates it to {NEWEST}\n"
    assert wrong(found(Desk(schema), code=1)) == {"schema"}
    assert name_of(schema) not in postgres.query("SELECT nspname FROM pg_namespace", schema)


def test_only_migrate_creates_a_new_store(schema: str) -> None:
    made = run("migrate", "--store", schema).stdout
    assert made == f"the schema is number {NEWEST} now, from 0\n"
    told = json.loads(run("migrate", "--store", schema, "--json").stdout)
    assert told == {"from": NEWEST, "to": NEWEST, "newest": NEWEST}
    assert "nothing to do" in run("migrate", "--check", "--store", schema).stdout


def test_the_doctor_changes_nothing(desk: Desk) -> None:
    desk.add()
    before = desk.json("audit", "--after", "0")
    desk.run("doctor", code=1)
    assert desk.json("audit", "--after", "0") == before


# What is found


def test_a_healthy_store_passes_the_doctor(desk: Desk) -> None:
    lines = desk.run("doctor").stdout.splitlines()
    assert [line.split()[0] for line in lines[2:]] == [
        "version", "server", "rights", "schema", "safety", "connections", "tables", "snapshots",
        "audit", "clock", "store", "leases", "jobs", "schedule", "sessions",
    ]  # fmt: skip
    levels = {name: one["level"] for name, one in found(desk).items()}
    # The server of the tests is faster than it is safe.
    assert {name for name, level in levels.items() if level != "ok"} == {"safety"}


def test_a_newer_schema_is_refused_and_found(postgres: PostgresServer, desk: Desk) -> None:
    table = f"{name_of(desk.url)}.poolhand_schema"
    postgres.query(f"INSERT INTO {table} VALUES (9999, 'x', '', '', 9999)", desk.url)  # noqa: S608
    error = desk.run("jobs", "list", code=5).stderr
    assert "9999" in error
    assert "[PH-STO-004]" in error
    findings = found(desk, code=1)
    assert wrong(findings) == {"schema"}
    assert "store" not in findings
    checked = desk.run("migrate", "--check", code=1).stdout
    assert checked == f"the schema is number 9999, newer than this poolhand, which knows {NEWEST}\n"
    assert "[PH-STO-004]" in desk.run("migrate", code=5).stderr


def test_a_newer_schema_that_is_compatible_with_older_code_is_accepted(
    postgres: PostgresServer, desk: Desk
) -> None:
    table = f"{name_of(desk.url)}.poolhand_schema"
    postgres.query(f"INSERT INTO {table} VALUES ({NEWEST + 1}, 'more', '', '', {NEWEST})", desk.url)  # noqa: S608
    desk.run("jobs", "cancel", desk.add())
    finding = found(desk)["schema"]
    assert finding["text"] == (
        f"the schema is number {NEWEST + 1}; this poolhand knows {NEWEST} and can use it"
    )
    assert f"number {NEWEST + 1}, newer than" in desk.run("migrate").stdout


def test_a_server_that_is_too_old_is_refused_and_found(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_link, "OLDEST", (99,))
    assert "poolhand needs 99 or newer [PH-STO-003]" in desk.run("jobs", "list", code=2).stderr
    assert "poolhand needs 99 or newer" in found(desk, code=1)["store"]["text"]


def test_a_read_only_user_sees_jobs_and_changes_none(
    postgres: PostgresServer, desk: Desk, role: str
) -> None:
    id = desk.add()
    name = name_of(desk.url)
    postgres.query(
        f"GRANT USAGE ON SCHEMA {name} TO {role};"
        f"GRANT SELECT ON ALL TABLES IN SCHEMA {name} TO {role}",
        desk.url,
    )
    reader = Desk(as_user(desk.url, role))
    assert reader.json("jobs", "list")["jobs"][0]["id"] == id
    refused = reader.run("jobs", "cancel", id, code=5).stderr
    assert "permission denied" in refused
    assert "[PH-STO-006]" in refused
    findings = found(reader, code=1)
    assert wrong(findings) == {"rights"}
    assert findings["rights"]["text"].startswith("user 'clerk' may not use poolhand_audit, ")
    assert findings["audit"]["level"] == "warn"
    assert "cannot read the audit log" in findings["audit"]["text"]
    assert "permission denied for table poolhand_audit" in reader.run("audit", code=5).stderr

    assert not asyncio.run(App(reader.url).ready())
    with pytest.raises(ReadOnly, match="permission denied for table"):
        asyncio.run(check(reader.url))


def test_the_doctor_prints_the_grants_that_a_user_without_rights_needs(
    postgres: PostgresServer, desk: Desk, role: str
) -> None:
    desk.add()
    nobody = Desk(as_user(desk.url, role))
    findings = found(nobody, code=1)
    assert findings["rights"]["text"].startswith("user 'clerk' may not use poolhand_audit, ")
    postgres.query(findings["rights"]["fix"].partition(": ")[2], desk.url)
    assert found(nobody, code=1)["rights"]["level"] == "ok"
    assert nobody.run("audit").stdout == desk.run("audit").stdout != ""


def test_the_doctor_finds_a_read_only_server(
    postgres: PostgresServer, desk: Desk, role: str
) -> None:
    postgres.query(f"ALTER ROLE {role} SUPERUSER", desk.url)
    postgres.query(f"ALTER ROLE {role} SET default_transaction_read_only = on", desk.url)
    still = Desk(as_user(desk.url, role))
    findings = found(still, code=1)
    assert wrong(findings) == {"server"}
    assert "and is read-only" in findings["server"]["text"]
    with pytest.raises(ReadOnly, match="read-only"):
        asyncio.run(check(still.url))


@pytest.mark.slow
def test_the_privileges_documented_for_postgresql_are_sufficient(
    postgres: PostgresServer, desk: Desk, role: str
) -> None:
    (grants,) = re.findall(r"```sql\n(GRANT .*?)```", PAGE.read_text(encoding="utf-8"), re.S)
    postgres.query(grants.replace("jobs", name_of(desk.url)).replace("worker", role), desk.url)
    clerk = Desk(as_user(desk.url, role))
    app = App(clerk.url)
    app.pool("chat", max_concurrent=2)

    @app.task(name="answer", pool="chat")
    async def answer(text: str) -> str:
        return text.upper()

    async def work() -> str:
        async with app, app.worker():
            assert await app.ready()
            return await (await answer.with_options(idempotency_key="k").submit("yes"))

    assert asyncio.run(work()) == "YES"
    clerk.dead(session="s", key="k")
    clerk.run("dead", "retry", "--all")
    clerk.run("pools", "pause", "chat")
    clerk.do(lambda world: world.store.prune(over(0.0)))
    assert clerk.json("audit")["lines"]
    assert found(clerk)["rights"]["level"] == "ok"
    clerk.run("migrate")


def test_a_transaction_that_keeps_dead_rows_is_found(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_findings, "OLD", 0.0)
    assert found(desk)["snapshots"]["level"] == "ok"
    with held(desk.url, "SELECT 1") as pid:
        finding = found(desk)["snapshots"]
    assert finding["level"] == "warn"
    assert finding["text"].startswith(f"pid {pid} (")
    assert found(desk)["snapshots"]["level"] == "ok"


def test_the_audit_waits_for_the_oldest_open_writer_of_the_server(
    desk: Desk, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_findings, "LATE", 0.0)
    first = desk.add()
    with held(database, "CREATE TABLE mine ()") as pid:
        second = desk.add()
        assert [line["job"] for line in desk.json("audit")["lines"]] == [first]
        finding = found(desk, code=1)["audit"]
    assert finding["level"] == "warn"
    assert f"pid {pid} " in finding["text"]
    assert [line["job"] for line in desk.json("audit")["lines"]] == [first, second]
    assert found(desk, code=1)["audit"]["level"] == "ok"


def test_a_table_full_of_dead_rows_is_found(
    postgres: PostgresServer, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_findings, "MUCH_DEAD", 100)
    table = f"{name_of(desk.url)}.poolhand_tallies"
    for statement in (
        "ALTER TABLE {} SET (autovacuum_enabled = off)",
        "INSERT INTO {} SELECT 1, 0, 0, 0, 0, 0 FROM generate_series(1, 500)",
        "DELETE FROM {}",
    ):
        postgres.query(statement.format(table), desk.url)
    finding = found(desk)["tables"]
    assert finding["level"] == "warn"
    assert "poolhand_tallies has 500 dead rows and 0 live ones" in finding["text"]


def test_the_doctor_finds_that_connections_are_nearly_exhausted(
    postgres: PostgresServer, desk: Desk, role: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_findings, "NEARLY_ALL", 0.01)
    finding = found(desk)["connections"]
    assert finding["level"] == "warn"
    assert re.fullmatch(r"[1-9]\d* of 100 connections are used", finding["text"])
    postgres.query(f"ALTER ROLE {role} CONNECTION LIMIT 0", desk.url)
    alone = Desk(as_user(desk.url, role))
    assert "it has no connection left" in found(alone, code=1)["store"]["text"]


@pytest.mark.slow
def test_a_server_that_is_down_is_reported_and_found_by_the_doctor(
    own_postgres: PostgresServer,
) -> None:
    desk = Desk(own_postgres.url)
    desk.run("migrate")
    own_postgres.query("ALTER SYSTEM SET autovacuum = off")
    own_postgres.restart()
    findings = found(desk, code=1)
    assert wrong(findings) == {"tables"}
    assert "autovacuum is off" in findings["tables"]["text"]
    assert findings["safety"]["level"] == "ok"
    own_postgres.stop()
    for words in (["jobs", "list"], ["pools", "pause", "x"], ["migrate"], ["migrate", "--check"]):
        error = desk.run(*words, code=5).stderr
        assert f"127.0.0.1:{own_postgres.port}/poolhand" in error
        assert error.count("\n") == 1
    assert wrong(found(desk, code=1)) == {"store"}
    own_postgres.start()
    desk.run("jobs", "list")


# Masked passwords, and wrong URLs


@pytest.mark.parametrize("words", [*COMMANDS, ["doctor"], ["migrate", "--check"]], ids=" ".join)
@pytest.mark.parametrize(
    "how",
    [
        "//poolhand:hunter'2@{place}",
        "//poolhand@{place}&password=hunter'2",
        "//poolhand@{place}&listen=postgresql%3A%2F%2Fme%3Ahunter%272%40nowhere%2Fdb",
    ],
    ids=["login", "query", "listen"],
)
def test_no_command_shows_a_password(schema: str, how: str, words: list[str]) -> None:
    url = "postgresql:" + how.format(place=schema.partition("@")[2])
    for store in (url, url.replace("127.0.0.1", "127.0.0.1:1,127.0.0.1")):
        result = run(*words, "--store", store, code=1 if words[0] in ("doctor", "migrate") else 5)
        assert "hunter" not in result.output + result.stderr


def test_the_doctor_warns_about_a_password_on_the_command_line(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = desk.url.replace("poolhand@", "poolhand:secret@")
    told = run("doctor", "--store", url)
    assert "secret" not in told.output
    assert "password     warn" in told.stdout
    monkeypatch.setenv("POOLHAND_STORE", url)
    assert "password     warn" not in run("doctor").stdout


def test_a_suggested_command_can_be_pasted_into_a_shell(schema: str) -> None:
    told = run("jobs", "list", "--store", schema, code=5).stderr
    assert shlex.split(told.split("`")[1]) == ["poolhand", "migrate", "--store", schema]


def test_a_server_is_reached_by_a_socket_and_as_one_of_several_hosts(
    postgres: PostgresServer, desk: Desk
) -> None:
    id = desk.add()
    several = desk.url.replace("@", "@127.0.0.1:1,") + "&target_session_attrs=primary"
    options = f"host={postgres.folder}&port={postgres.port}&user=poolhand"
    socket = f"postgresql:///poolhand?{options}&schema={name_of(desk.url)}"
    for url in (several, socket):
        assert Desk(url).json("jobs", "list")["jobs"][0]["id"] == id


def test_one_connection_is_enough_to_work(desk: Desk) -> None:
    app = App(f"{desk.url}&connections=1")
    app.pool("narrow", max_concurrent=1)

    @app.task(name="twice", pool="narrow")
    async def twice(number: int) -> int:
        return 2 * number

    async def work() -> list[int]:
        async with app, app.worker(4):
            tickets = await asyncio.gather(*map(twice.submit, range(20)))
            return [await ticket for ticket in tickets]

    assert asyncio.run(work()) == [2 * number for number in range(20)]


@pytest.mark.parametrize(
    ("change", "code", "said"),
    [
        (("/poolhand?", "/nothing?"), 5, "make it with createdb, or name another one"),
        (("//poolhand@", "//nobody@"), 5, "check the user and the password"),
        (("?", "?sslmode=bogus&"), 2, "check the options after the ? of the URL"),
        (("?", "?no_such_setting=1&"), 2, "check the options after the ? of the URL"),
        (("?schema", "?shema"), 2, "did you mean 'schema'?"),
        (("@127.0.0.1", "@::1"), 2, "an IPv6 address in brackets"),
    ],
    ids=["database", "user", "sslmode", "setting", "typo", "ipv6"],
)
def test_an_invalid_url_is_reported_in_one_line(
    schema: str, change: tuple[str, str], code: int, said: str
) -> None:
    for words in (["jobs", "list"], ["migrate"]):
        error = run(*words, "--store", schema.replace(*change), code=code).stderr
        assert said in error
        assert error.count("\n") == 1
