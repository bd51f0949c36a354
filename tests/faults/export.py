"""Exports the jobs and the audit of a store, for the checker.

python -m tests.faults.export FOLDER
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec

from poolhand.contract import Filter, Store
from poolhand.rules.audit import STREAM
from tests.faults import outside
from tests.faults.opened import opened

PAGE = 500


async def jobs(store: Store) -> AsyncIterator[dict[str, Any]]:
    after: int | None = None
    while True:
        page = await store.find(Filter(), after, PAGE)
        for stored in page.jobs:
            yield {**msgspec.to_builtins(stored.job), "dead": stored.dead}
        after = page.after
        if after is None:
            return


async def audit(store: Store) -> AsyncIterator[dict[str, Any]]:
    after = 0
    while lines := await store.read(STREAM, after, PAGE):
        for line in lines:
            yield {"number": line.number, "kind": line.kind, "body": json.loads(line.body)}
        after = lines[-1].number


async def export(folder: Path) -> None:
    async with opened((folder / outside.URL).read_text(encoding="utf-8")) as store:
        for name, lines in ((outside.JOBS, jobs(store)), (outside.AUDIT, audit(store))):
            texts = [json.dumps(line) async for line in lines]
            (folder / name).write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")


if __name__ == "__main__":
    asyncio.run(export(Path(sys.argv[1])))
