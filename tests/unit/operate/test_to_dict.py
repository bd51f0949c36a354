"""Views of an operator as plain data: any JSON encoder accepts them."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator

from poolhand import App
from poolhand.operate import actions, store_findings
from poolhand.rules.plain import PlainView


def views() -> Iterator[type[PlainView]]:
    waiting = [PlainView]
    while waiting:
        kind = waiting.pop()
        yield kind
        waiting.extend(kind.__subclasses__())


def test_every_view_has_a_to_dict() -> None:
    # Imported above, so that their views are known.
    assert {actions.__name__, store_findings.__name__} <= sys.modules.keys()
    names = {kind.__name__ for kind in views()}
    assert names >= {
        "Job", "Fault", "Explanation", "JobEvent", "DrainReport", "WorkerReport", "PoolHealth",
        "WorkerHealth", "PoolSnapshot", "PoolStats", "JobView", "JobsView", "PoolView", "AuditView",
        "ControlResult", "Summary", "WorkersView", "FarmRecord", "SessionView", "ScheduleView",
        "Finding",
    }  # fmt: skip


async def test_operator_views_can_be_encoded_as_json() -> None:
    app = App("memory://")

    @app.task(name="work", pool="shown")
    async def work(number: int) -> int:
        return number

    async with app, app.worker():
        await (await work.submit(1))
        for one in (await app.operator().jobs(), await app.operator().workers()):
            json.dumps(one.to_dict(), allow_nan=False)
        (job,) = await app.operator().jobs()
        assert job.to_dict()["status"] == "completed"
        assert job.to_dict()["submitted_at"] == job.submitted_at.isoformat()
