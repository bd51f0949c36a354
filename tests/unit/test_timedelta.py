"""A timedelta is accepted wherever seconds are."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from poolhand import (
    AgentPool,
    AgentRequest,
    Pool,
    Retry,
    RetryLater,
    Snooze,
    UsageError,
    agent_fanout,
    bounded,
    pool_lifespan,
    priority,
    tool,
    wait,
)
from poolhand.agents.session import SessionTerms
from poolhand.app import App
from poolhand.pool.config import configure
from poolhand.pool.options import Options, with_changes
from poolhand.rules.scaling.worker_count import FarmOptions
from poolhand.rules.schedule import every
from poolhand.rules.validation import to_seconds
from poolhand.setting_table import SETTINGS, check_farm
from poolhand.settings import Autoscale, FarmSettings, Keep, suggest_workers
from poolhand.testing import SeededRuntime
from poolhand.wire.payload import encode
from tests.unit.pool.support import seeded

LONG = timedelta(minutes=2)
SECONDS = 120.0
SUBMIT = ("timeout", "soft_timeout", "delay", "expires")
POOL = ("timeout", "soft_timeout", "key_ttl", "stale_after", "drain_timeout", "cancel_grace")


def submit_option(name: str, value: Any) -> Any:
    return getattr(with_changes(Options(), configure("p", {}), {name: value}), name)


def pool_option(name: str, value: Any) -> Any:
    return getattr(configure("p", {name: value}), name)


def task_option(name: str, value: Any) -> Any:
    app = App("memory://")

    async def call() -> None: ...

    return getattr(app.task(name="call", **{name: value})(call)._terms().options, name)


def keep(name: str, value: Any) -> Any:
    made = Keep(**{name: value})
    App("memory://", keep=made)
    return getattr(made, name)


def drain_timeout(value: Any) -> Any:
    return App("memory://").worker(drain_timeout=value)._settings.drain_timeout


def tool_term(name: str, value: Any) -> Any:
    async def call() -> None: ...

    return getattr(tool(**{name: value})(call).terms, name)


FARM = [name for name in FarmOptions.__annotations__ if name.endswith("_s")]


def farm_setting(name: str, value: Any) -> Any:
    made = FarmSettings(**{name: value})
    check_farm(made)
    return getattr(made, name)


PLACES: dict[str, Callable[[Any], Any]] = {
    **{f"submit {name}": partial(submit_option, name) for name in SUBMIT},
    **{f"pool {name}": partial(pool_option, name) for name in POOL},
    **{f"task {name}": partial(task_option, name) for name in SUBMIT[:2]},
    **{f"keep {name}": partial(keep, name) for name in ("results", "dead", "audit")},
    **{f"farm {name}": partial(farm_setting, name) for name in FARM},
    "Retry first": lambda value: Retry(first=value).first,
    "Retry cap": lambda value: Retry(cap=value).cap,
    "Autoscale interval": lambda value: Autoscale(interval=value).interval,
    "Autoscale cooldown": lambda value: Autoscale(cooldown=value).cooldown,
    "bounded wait_timeout": lambda value: bounded(1, wait_timeout=value).wait_timeout,  # type: ignore[union-attr]
    "priority aging": lambda value: priority(value).aging,  # type: ignore[union-attr]
    "every": lambda value: every(value).seconds,
    "worker drain_timeout": drain_timeout,
    "tool timeout": lambda value: tool_term("timeout", value),
    "tool dedupe_ttl": lambda value: tool_term("dedupe_ttl", value),
    "agent ttl": lambda value: SessionTerms(ttl=value).ttl,
    "fan-out timeout": lambda value: AgentRequest(len, timeout=value).timeout,
    "agent pool timeout": lambda value: (
        AgentPool(agent_factory=list, timeout=value).pool._config.timeout
    ),
}


@pytest.mark.parametrize("place", PLACES)
def test_a_timedelta_is_as_good_as_seconds(place: str) -> None:
    found = PLACES[place](LONG)
    assert (found, type(found)) == (SECONDS, float)


@pytest.mark.parametrize("value", [timedelta(seconds=-1), True, "1"], ids=str)
@pytest.mark.parametrize("place", [one for one in PLACES if not one.startswith("fan-out")])
def test_an_invalid_duration_is_still_refused(place: str, value: Any) -> None:
    with pytest.raises(UsageError):
        PLACES[place](value)


def test_all_farm_settings_in_seconds_are_recognized_by_their_suffix() -> None:
    names = {one.name for one in SETTINGS if one.kind.allowed.startswith("seconds")}
    assert names == set(FARM)
    assert set(FarmOptions.__annotations__) == set(FarmSettings.__struct_fields__)


def test_other_values_are_passed_on_unchanged() -> None:
    assert [to_seconds(one) for one in (None, 5, "x", True)] == [None, 5, "x", True]
    assert to_seconds(timedelta(milliseconds=1)) == 0.001


def test_a_number_that_is_no_duration_takes_no_timedelta() -> None:
    for name in ("max_concurrent", "history", "max_per_key"):
        with pytest.raises(UsageError, match=f"{name}="):
            Pool("p", **{name: timedelta(seconds=1)})  # type: ignore[arg-type]


def test_workers_are_suggested_for_jobs_of_a_timedelta() -> None:
    assert suggest_workers(rate=20, seconds=timedelta(seconds=5)) == 100


def test_a_signature_expiry_accepts_a_timedelta() -> None:
    with pytest.raises(UsageError, match=r"expires_in=60\.0 needs a key ring"):
        encode(1, expires_in=timedelta(minutes=1))


@seeded
async def test_a_pool_wait_and_drain_accept_a_timedelta(runtime: SeededRuntime) -> None:
    minute = timedelta(minutes=1)
    async with Pool(runtime=runtime) as pool:
        began = runtime.monotonic()
        ticket = await pool.submit(asyncio.sleep, 600)
        with pytest.raises(TimeoutError, match="is not over after 60 s: it runs: attempt 1"):
            await ticket.result(timeout=minute)
        await wait(ticket, timeout=minute)
        assert runtime.monotonic() - began == pytest.approx(120)
        report = await pool.drain(timeout=minute)
        assert report.seconds == pytest.approx(60, abs=2)


@seeded
async def test_retry_later_and_snooze_accept_a_timedelta(runtime: SeededRuntime) -> None:
    began: list[float] = []

    async def job() -> str:
        began.append(runtime.monotonic())
        if len(began) == 1:
            raise RetryLater(timedelta(minutes=1))
        if len(began) == 2:
            raise Snooze(timedelta(hours=1))
        return "done"

    async with Pool(retry=Retry(attempts=2, jitter=0), runtime=runtime) as pool:
        assert await pool.run(job) == "done"
    first, second, third = began
    assert [second - first, third - second] == pytest.approx([60, 3_600])


def test_directives_with_a_timedelta_read_well() -> None:
    assert "the job asked to be retried after 0:01:00 [" in str(RetryLater(timedelta(minutes=1)))
    assert "the job asked to be retried after 5 s [" in str(RetryLater(5))


@seeded
async def test_a_request_of_a_fan_out_ends_after_a_timedelta(runtime: SeededRuntime) -> None:
    async def slow() -> None:
        await asyncio.sleep(60)

    second = timedelta(seconds=1)
    requests: list[Any] = [AgentRequest(slow, timeout=second), {"call": slow, "timeout": second}]
    found = await agent_fanout(requests, runtime=runtime)
    assert [one["status"] for one in found] == ["failed"] * 2
    with pytest.raises(UsageError, match=r"timeout=-1\.0 is not allowed"):
        await agent_fanout([AgentRequest(slow, timeout=-second)])


@seeded
async def test_a_lifespan_drains_for_a_timedelta(runtime: SeededRuntime) -> None:
    pool = Pool(runtime=runtime)
    async with pool_lifespan(pool, drain_timeout=timedelta(seconds=3))(None):
        ticket = await pool.submit(asyncio.sleep, 600)
        began = runtime.monotonic()
    assert runtime.monotonic() - began == pytest.approx(3, abs=2)
    assert ticket.status.terminal
