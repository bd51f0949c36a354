"""Views of a pool as plain data: any JSON encoder accepts them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest

from poolhand import AgentPool, Pool, Retry, bounded, fair_round_robin

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)


@dataclass
class Box:
    content: Any


async def fail(what: Any) -> Any:
    raise LookupError(what)


async def test_all_views_of_a_pool_can_be_encoded_as_json() -> None:
    options: Any = {
        "queue": fair_round_robin("tenant"),
        "backpressure": bounded(5),
        "retry": Retry(attempts=1),
        "on_dead": print,
    }
    async with Pool("shown", **options) as pool:
        await pool.run(lambda: Box({1, 2}))
        ticket = await pool.submit(fail, NOON)
        with pytest.raises(LookupError):
            await ticket
        for one in (pool.health(), pool.snapshot(), pool.stats(), ticket.snapshot()):
            json.dumps(one.to_dict(), allow_nan=False)
        shown = pool.snapshot().to_dict()
        assert shown["created_at"] == pool.snapshot().created_at.isoformat()
        assert [job["status"] for job in shown["jobs"]] == ["failed", "completed"]
        assert shown["jobs"][1]["result"] == {"content": [1, 2]}
        assert shown["workers"]["worker-000"]["state"] == "idle"
        assert shown["config"]["backpressure"]["max_depth"] == 5
        explained = await ticket.explain()
        json.dumps(explained.to_dict(), allow_nan=False)
        report = await pool.drain()
    assert report.to_dict()["failed"] == 1


async def test_the_health_of_a_pool_is_a_dict_awaited_or_not() -> None:
    async with Pool("checked", max_concurrent=2) as pool:
        found = await pool.health_check()
        assert found["pool_size"] == 2
        assert found["stale_workers"] == []
        assert pool.health_check()["pool_size"] == 2
        json.dumps(found, allow_nan=False)
    agents = AgentPool(2, 5, lambda: None)
    assert (await agents.health_check())["queue_capacity"] == 5
    assert agents.health_check()["queue_capacity"] == 5


def test_none_means_the_default_strategy_and_policy() -> None:
    pool = Pool("defaults", queue=None, backpressure=None)
    assert pool._config == Pool("defaults too")._config.__class__("defaults")
