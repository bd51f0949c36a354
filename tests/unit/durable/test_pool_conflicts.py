"""A pool that several apps declare with different settings: the log and the doctor say so."""

from __future__ import annotations

import os

import pytest

from poolhand import Pool, bounded, fair_round_robin
from poolhand.app import App
from poolhand.operate.doctor import examine
from poolhand.operate.store_findings import Finding, Level
from poolhand.stores.open import store_of
from tests.unit.durable.support import connected


def declaring(url: str, **settings: object) -> App:
    app = App(url)
    app.pool("research", **settings)  # type: ignore[arg-type]

    @app.task(name="call", pool="research")
    async def call() -> None: ...

    return app


def warned(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if "was declared with" in one.getMessage()]


async def conflicts(app: App) -> list[Finding]:
    findings = await examine(store_of(app.url, app.core.runtime), app.core.runtime)
    return [finding for finding in findings if finding.check == "pools"]


async def test_a_declaration_that_changes_settings_of_another_app_is_warned_of_once(
    shared_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    place = store_of(shared_url, App(shared_url).core.runtime).place
    one = declaring(shared_url, max_concurrent=3)
    other = declaring(shared_url, max_concurrent=5, backpressure=bounded(7), queue="fifo")
    async with one:
        assert await one.ready()
    async with declaring(shared_url, max_concurrent=3):
        pass
    assert warned(caplog) == []
    async with other:
        assert await other.ready()
    (text,) = warned(caplog)
    assert text == (
        f"pool 'research' was declared with other settings before, in the store {place}: "
        "max_concurrent 3 -> 5, queue priority -> fifo, backpressure unbounded -> "
        "bounded(7, block_submitter); the last declaration holds in all processes: declare the "
        "pool alike in all apps and versions that use this store"
    )


async def test_settings_with_the_same_short_form_are_shown_with_their_difference(
    shared_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    for weight in (2, 3):
        queue = fair_round_robin("tenant", weights={"acme": weight})
        async with declaring(shared_url, queue=queue):
            pass
    (text,) = warned(caplog)
    assert "weights=(('acme', 2" in text
    assert "-> FairRoundRobin(field='tenant', weights=(('acme', 3" in text


async def test_a_pool_that_was_only_used_before_is_declared_without_a_warning(
    shared_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    app = App(shared_url)

    @app.task(name="call", pool="research")
    async def call() -> None: ...

    async with app:
        await call.submit()
    async with declaring(shared_url, max_concurrent=3):
        pass
    assert warned(caplog) == []


async def test_a_pool_resized_by_its_own_process_logs_no_warning(
    shared_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    pool = Pool("p", scope="pipeline", scope_id="x", store=shared_url, max_concurrent=2)
    async with pool:
        await pool.resize(4)
    assert warned(caplog) == []


async def test_the_doctor_names_workers_that_declare_a_pool_differently(shared_url: str) -> None:
    one, other = declaring(shared_url, max_concurrent=3), declaring(shared_url, max_concurrent=5)
    me = f"{one.core.runtime.identity()[0]} pid {os.getpid()}"
    async with one, one.worker():
        await connected(one, 1)
        assert await conflicts(one) == []
        async with other, other.worker():
            await connected(one, 2)
            (finding,) = await conflicts(one)
            assert finding.level is Level.WARN
            assert finding.text == (
                "pool 'research' is declared with different settings: max_concurrent 5 is in force,"
                f" 3 is declared by {me}"
            )
            assert finding.fix is not None
            assert finding.fix.startswith("declare it the same in all apps and versions")
        await connected(one, 1)
        # The other worker is gone; its declaration is still in force.
        assert len(await conflicts(one)) == 1
    assert await conflicts(one) == []


async def test_workers_that_agree_are_no_finding(shared_url: str) -> None:
    one, other = declaring(shared_url, max_concurrent=3), declaring(shared_url, max_concurrent=3)
    async with one, one.worker(), other, other.worker():
        await connected(one, 2)
        assert await conflicts(one) == []
