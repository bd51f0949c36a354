"""A server that refuses some actions: missing rights are reported, missing signals are not.

Roles belong to the whole server, so each test has its own and drops it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

import pytest

from poolhand import App, Task
from poolhand.errors import ReadOnly
from tests.private_servers.postgres_server import PostgresServer

pytestmark = pytest.mark.slow

TABLES = "ALL TABLES IN SCHEMA public"
SEQUENCES = "ALL SEQUENCES IN SCHEMA public"
_numbers = count(1)

Say = Task[[str], Coroutine[Any, Any, str], str]


class Guest:
    """A user of a database that another user owns."""

    def __init__(self, server: PostgresServer, database: str) -> None:
        self.name = f"guest_{next(_numbers)}"
        self.url = database.replace("//poolhand@", f"//{self.name}@")
        self._server = server
        self._database = database
        self.do(f"CREATE ROLE {self.name} LOGIN")
        self.do("REVOKE CREATE ON SCHEMA public FROM PUBLIC")

    def do(self, sql: str) -> None:
        """Run a statement as the owner."""
        self._server.query(sql, self._database)

    def may(self, *rights: str) -> None:
        """Grant rights, such as "SELECT ON a table"."""
        for right in rights:
            self.do(f"GRANT {right} TO {self.name}")

    def leave(self) -> None:
        self.do(f"DROP OWNED BY {self.name}")
        self.do(f"DROP ROLE {self.name}")


@pytest.fixture
def guest(postgres: PostgresServer, database: str) -> Iterator[Guest]:
    one = Guest(postgres, database)
    yield one
    one.leave()


def app_at(url: str) -> tuple[App, Say]:
    app = App(url)

    @app.task(name="say")
    async def say(word: str) -> str:
        return word

    return app, say


@asynccontextmanager
async def at_work(url: str) -> AsyncIterator[Say]:
    app, say = app_at(url)
    async with app, app.worker():
        yield say


async def test_a_user_without_the_right_to_create_tables_gets_an_error(
    guest: Guest, database: str
) -> None:
    app, say = app_at(guest.url)
    with pytest.raises(ReadOnly, match=r"permission denied.*GRANT statements"):
        async with app:
            pass
    # Once another user has created the tables, the rights to use them are enough.
    async with App(database):
        pass
    guest.may(f"SELECT, INSERT, UPDATE, DELETE ON {TABLES}", f"USAGE ON {SEQUENCES}")
    async with app, app.worker():
        assert await (await say.submit("hello")) == "hello"


async def test_a_read_only_user_gets_an_error_and_changes_nothing(
    guest: Guest, database: str
) -> None:
    async with at_work(database) as say:
        kept = await say.submit("before")
        assert await kept == "before"
    guest.may(f"SELECT ON {TABLES}")
    app, say = app_at(guest.url)
    with pytest.raises(ReadOnly, match=r"permission denied.*GRANT statements"):
        async with app:
            await say.submit("after")
    async with App(database) as owner:
        assert sum((await owner.operator().count()).values()) == 1


async def test_a_table_without_privileges_is_named_and_other_verbs_still_work(
    guest: Guest, database: str
) -> None:
    async with App(database):
        pass
    guest.may(f"SELECT, INSERT, UPDATE, DELETE ON {TABLES}", f"USAGE ON {SEQUENCES}")
    guest.do(f"REVOKE ALL ON poolhand_keys FROM {guest.name}")
    async with at_work(guest.url) as say:
        with pytest.raises(ReadOnly, match=r"poolhand_keys.*GRANT statements"):
            await say.with_options(idempotency_key="k").submit("keyed")
        guest.may("ALL ON poolhand_keys")
        assert await (await say.with_options(idempotency_key="k").submit("keyed")) == "keyed"


async def test_without_notifications_work_continues_by_polling(guest: Guest, database: str) -> None:
    """A full queue of notifications refuses each of them, as this server does."""
    async with App(database):
        pass
    guest.may(f"SELECT, INSERT, UPDATE, DELETE ON {TABLES}", f"USAGE ON {SEQUENCES}")
    guest.do("REVOKE EXECUTE ON FUNCTION pg_catalog.pg_notify(text, text) FROM PUBLIC")
    app, say = app_at(guest.url)
    async with app, at_work(guest.url):
        tickets = [await say.submit(str(number)) for number in range(20)]
        later = await say.with_options(delay=0.1).submit("later")
        assert await asyncio.gather(*tickets) == [str(number) for number in range(20)]
        assert await later == "later"
