"""A farm that a user's program runs itself."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from poolhand import App, UsageError
from poolhand.observe.events import Event, Events, ProcessReady
from poolhand.settings import FarmSettings
from tests.system import farm_app
from tests.system.farmhouse import APP


@pytest.mark.slow
async def test_a_program_runs_a_farm_and_stops_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    monkeypatch.setenv("FARM_STORE", url)
    monkeypatch.setenv("FARM_STORY", str(tmp_path / "story"))
    heard, ready = Events(), asyncio.Event()

    def hear(event: Event) -> None:
        if isinstance(event, ProcessReady):
            ready.set()

    heard.subscribe(hear)
    app = App(url, events=heard)
    note = app.task(name="tests.system.farm_app.note")(farm_app.note)
    farm = app.farm(APP, FarmSettings(prefetch_per_worker=3))
    running = asyncio.create_task(farm.run())
    await ready.wait()
    assert await (await note.submit(7)).result() == 7
    assert [one.slots for one in farm.record().workers] == [3]
    farm.stop()
    await running
    assert await app.operator().farms() == []
    await app.close()


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        (None, "FarmSettings"),
        (FarmSettings(min_workers=-1), "min_workers=-1"),
        (FarmSettings(max_workers=0), "max_workers=0"),
        (
            FarmSettings(min_workers=3, max_workers=2),
            "max_workers=2 is not allowed; it must be at least min_workers=3",
        ),
        (FarmSettings(prefetch_per_worker=True), "prefetch_per_worker=True"),
        (FarmSettings(heartbeat_interval_s=0.0), "heartbeat_interval_s=0.0"),
        (FarmSettings(hard_timeout_s=float("nan")), "hard_timeout_s=nan"),
        (FarmSettings(prefetch_per_worker="5"), "prefetch_per_worker='5'"),  # type: ignore[arg-type]
        (FarmSettings(soft_timeout_s=9.0, hard_timeout_s=3.0), "at least soft_timeout_s=9.0"),
        (FarmSettings(timezone="Nowhere"), "timezone='Nowhere'"),
    ],
)
def test_invalid_settings_are_refused_by_name(settings: Any, named: str) -> None:
    with pytest.raises(UsageError, match=named):
        App("sqlite:///never.db").farm("agents:app", settings)


def test_settings_accept_their_limits() -> None:
    settings = FarmSettings(
        min_workers=0, max_workers=1, worker_shutdown_grace_s=0, soft_timeout_s=1, hard_timeout_s=1
    )
    assert App("sqlite:///never.db").farm("agents:app", settings).settings == settings


def test_an_in_memory_store_is_refused_for_a_farm() -> None:
    with pytest.raises(UsageError, match="lives inside one process"):
        App("memory://").farm("agents:app")


def test_pools_of_a_farm_are_names() -> None:
    with pytest.raises(UsageError, match="list of names"):
        App("sqlite:///never.db").farm("agents:app", pools="research")


def test_a_pool_name_close_to_a_declared_one_is_refused() -> None:
    app = App("sqlite:///never.db")
    app.pool("research")
    with pytest.raises(UsageError, match="'research' is"):
        app.farm("agents:app", pools=["reserch"])
