"""One of several processes that share the file of a SQLite store: it submits, then it works.

Its actions are lines in a file outside of the store: `begin` is written after the commit of a claim
and `end` before that of its outcome, so intervals that overlap there did overlap.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path

from poolhand.contract import (
    Change,
    Claim,
    ClaimRequest,
    Filter,
    JobBatch,
    JobRequest,
    Owner,
    Refusal,
)
from poolhand.rules import lifecycle
from poolhand.rules.job import Job, Status
from poolhand.runtime import Runtime
from poolhand.stores.sqlite.store import SqliteStore

SLOTS = 8
LONGEST_PAUSE = 0.2  # seconds between polls: hints may be lost


class Hand:
    """A process that submits and works until so many jobs are over."""

    def __init__(self, path: Path, story: Path, name: str) -> None:
        self.name = name
        self.runtime = Runtime()
        self.store = SqliteStore(path, self.runtime)
        self.heard = asyncio.Event()
        self.story = os.open(story, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    async def open(self) -> None:
        await self.store.open()
        self.store.subscribe(lambda topic: self.heard.set())
        host, boot, pid, started = self.runtime.identity()
        await self.store.enroll(Owner(self.name, host, boot, pid, started))

    async def close(self) -> None:
        await self.store.close()
        os.close(self.story)

    def tell(self, what: str, claim: Claim) -> None:
        job = claim.job
        line = f"{what} {job.id} {claim.token} {job.pool} {job.key} {job.session or ''}\n"
        os.write(self.story, line.encode())

    async def submit(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            (answer,) = await self.store.add([JobBatch((JobRequest(job, b"brief"),), self.name)])
            assert not isinstance(answer, Refusal)

    async def work(self, total: int) -> None:
        wanted = ClaimRequest(self.name, tuple(range(SLOTS)))
        changes: list[Change] = []
        while True:
            self.heard.clear()
            answer = await self.store.replace(changes, wanted)
            assert all(answer.made)
            changes = await self.run(answer.claims)
            if changes:
                continue
            if (await self.store.count(Filter(statuses=(Status.COMPLETED,)))) == {
                Status.COMPLETED: total
            }:
                return
            await self.pause()

    async def run(self, claims: Sequence[Claim]) -> list[Change]:
        """Run all claimed jobs at once."""
        for claim in claims:
            self.tell("begin", claim)
        await asyncio.sleep(0)
        for claim in claims:
            self.tell("end", claim)
        at = self.runtime.wall()
        return [Change(lifecycle.complete(one.job, b"", at, 0.0), one.token) for one in claims]

    async def pause(self) -> None:
        """Wait until another process has changed something."""
        try:
            async with asyncio.timeout(LONGEST_PAUSE):
                await self.heard.wait()
        except TimeoutError:
            return


def take_part(path: Path, story: Path, name: str, jobs: Sequence[Job], total: int) -> None:
    """Submit some jobs, and work beside it until all jobs of all processes are over."""

    async def main() -> None:
        hand = Hand(path, story, name)
        await hand.open()
        async with asyncio.TaskGroup() as group:
            group.create_task(hand.submit(jobs))
            group.create_task(hand.work(total))
        await hand.close()

    asyncio.run(main())
