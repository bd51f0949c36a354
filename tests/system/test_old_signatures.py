"""Calls that an earlier version signed, before signatures named their job."""

from __future__ import annotations

from pathlib import Path

import pytest

from poolhand import App, PoolhandError, Ticket
from poolhand.settings import KeyRing
from poolhand.views import Filter
from tests.extent import ALSO_POSTGRES
from tests.old_store.agents import SECRET, Somewhere, World, make_signed_app
from tests.old_store.load import load_postgres, load_sqlite

pytestmark = pytest.mark.slow


class Signed:
    """The app that signs, on the old store, with the present code."""

    def __init__(self, url: str, runtime: Somewhere, folder: Path) -> None:
        self.world = World(folder / "ledger.txt")
        self._url = url
        self._runtime = runtime

    def app(self, ring: KeyRing) -> App:
        return make_signed_app(self._url, self.world, self._runtime, ring)[0]


@pytest.fixture(params=["sqlite", ALSO_POSTGRES])
async def old(request: pytest.FixtureRequest, tmp_path: Path) -> Signed:
    """Return the store as an earlier version left it, with a signed call that waits."""
    if request.param == "sqlite":
        at = load_sqlite(tmp_path / "jobs.db")
        url = f"sqlite:///{tmp_path / 'jobs.db'}"
    else:
        url = request.getfixturevalue("schema")
        at = await load_postgres(url)
    return Signed(url, Somewhere("alpha", "second", at), tmp_path)


async def waiting(app: App) -> Ticket[str]:
    page = await app.operator().jobs(Filter(name="signs"))
    ticket = await app.get(page.jobs[0].id)
    assert ticket is not None
    return ticket


async def test_a_call_signed_without_a_job_id_runs_with_accept_unbound(old: Signed) -> None:
    app = old.app(KeyRing(SECRET, current="k1", accept_unbound=True))
    async with app, app.worker(pools=["signed"]):
        assert await (await waiting(app)) == "signed"
    assert old.world.lines() == ["signs signed"]


async def test_a_call_signed_without_a_job_id_is_refused_with_instructions(
    old: Signed,
) -> None:
    app = old.app(KeyRing(SECRET, current="k1"))
    async with app, app.worker(pools=["signed"]):
        with pytest.raises(PoolhandError, match="accept_unbound"):
            await (await waiting(app))
    assert old.world.lines() == []
