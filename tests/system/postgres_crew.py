"""One of several processes that share a PostgreSQL store: random actions by a seed.

Its runs are lines in a file outside of the store: `begin` is written after the commit of a claim
and `end` before that of its outcome, so intervals that overlap there did overlap.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path
from random import Random

from poolhand.contract import (
    Change,
    Claim,
    ClaimRequest,
    Filter,
    JobBatch,
    JobRequest,
    LogLine,
    Owner,
    Put,
    Refusal,
)
from poolhand.rules import lifecycle
from poolhand.rules.audit import STREAM as AUDIT
from poolhand.rules.job import Job, Status
from poolhand.rules.queue.backpressure import OnFull, bounded
from poolhand.rules.queue.stored_desk import PoolSpec
from poolhand.rules.queue.strategy import fair_round_robin
from poolhand.runtime import Runtime
from poolhand.stores.postgres.store import PostgresStore
from tests.contract.support import order, over, spec

POOLS = ("free", "capped", "fair", "tight")
SLOTS = 6  # of the pool "capped"
PER_KEY = 2  # of the pool "fair"
COUNTER, STREAM = "counter", "stream"


def pools() -> list[PoolSpec]:
    return [
        spec("free"),
        spec("capped", slots=SLOTS, backpressure=bounded(10_000)),
        spec("fair", queue=fair_round_robin(), max_per_key=PER_KEY),
        spec("tight", slots=2, backpressure=bounded(5, on_full=OnFull.FAIL_SUBMITTER)),
    ]


class Hand:
    """A process that submits, works, cancels and looks."""

    def __init__(self, url: str, story: Path, name: str, seed: int) -> None:
        self.name = name
        self.runtime = Runtime()
        self.random = Random(seed)
        self.store = PostgresStore(url, self.runtime)
        self.story = os.open(story, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self.running: dict[int, Claim] = {}
        self.submitted: list[str] = []

    async def open(self) -> None:
        await self.store.open()
        host, boot, pid, started = self.runtime.identity()
        await self.store.enroll(Owner(self.name, host, boot, pid, started))

    def tell(self, what: str, *words: object) -> None:
        os.write(self.story, f"{what} {' '.join(map(str, words))}\n".encode())

    async def act(self, number: int) -> None:
        """Do one random action."""
        chosen = self.random.choices(
            (self.submit, self.work, self.give_up, self.look, self.count, self.keep_house),
            (5, 8, 1, 1, 1, 1),
        )[0]
        await chosen(f"{self.name}-{number}")

    async def submit(self, name: str) -> None:
        orders = [self.order(f"{name}-{n}") for n in range(self.random.choice((1, 1, 4)))]
        (answer,) = await self.store.add([JobBatch(tuple(orders))])
        if isinstance(answer, Refusal):
            self.tell("refused", name, answer.reason)
            return
        for added in answer:
            self.tell("added", added.job.id, added.entry, added.job.idempotency_key or "")
        self.submitted += [one.job.id for one in orders]

    def order(self, id: str) -> JobRequest:
        random = self.random
        return order(
            id,
            random.choice(POOLS),
            key=random.choice("ABCD"),
            session=random.choice((None, None, "s1", "s2")),
            idempotency_key=random.choice((None, None, None, f"k{random.randrange(20)}")),
            delay=random.choice((None, None, None, 0.05)),
        )

    async def work(self, name: str) -> None:
        done = [claim for claim in self.running.values() if self.random.random() < 0.7]
        changes = [self.ended(claim) for claim in done]
        wanted = ClaimRequest(self.name, tuple(range(4 - len(self.running) + len(done))))
        for claim in done:
            self.say("end", claim)
            del self.running[claim.token]
        replaced = await self.store.replace(changes, wanted)
        assert all(replaced.made)
        self.start(replaced.claims)

    def start(self, claims: Sequence[Claim]) -> None:
        for claim in claims:
            self.say("begin", claim)
            self.running[claim.token] = claim

    def say(self, what: str, claim: Claim) -> None:
        job = claim.job
        self.tell(what, job.id, claim.token, job.pool, job.key, job.session or "-")

    def ended(self, claim: Claim) -> Change:
        if self.random.random() < 0.2:
            return Change(lifecycle.hand_back(claim.job), claim.token)
        job: Job = lifecycle.complete(claim.job, b"", self.runtime.wall(), 0.0)
        put = Put(f"done {job.id}", b"", expect=0)
        return Change(job, claim.token, documents=(put,), log=(LogLine(STREAM, "done", b""),))

    async def give_up(self, name: str) -> None:
        some = self.random.sample(self.submitted, min(2, len(self.submitted)))
        await self.store.cancel(some, self.name)

    async def look(self, name: str) -> None:
        await self.store.find(Filter(pool=self.random.choice(POOLS)))
        await self.store.count(Filter())
        extended = await self.store.extend(self.name, list(self.running))
        assert extended.alive
        assert extended.lost == ()
        await self.store.read(AUDIT, limit=10)

    async def count(self, name: str) -> None:
        """Increment one document together with all other processes."""
        while True:
            found = await self.store.get_document(COUNTER)
            value, version = (b"0", 0) if found is None else found[:2]
            if await self.store.put([Put(COUNTER, b"%d" % (int(value) + 1), expect=version)]):
                self.tell("counted")
                return

    async def keep_house(self, name: str) -> None:
        await self.store.promote()
        await self.store.prune(over(3600.0))
        pool = self.random.choice(POOLS)
        await self.store.set_pool(pool, self.name, paused=True)
        await self.store.set_pool(pool, self.name, paused=False)

    async def finish(self) -> None:
        """Work until no job is left."""
        while True:
            await self.store.promote()
            await self.work("last")
            counts = await self.store.count(Filter())
            left = {Status.QUEUED, Status.BLOCKED, Status.SCHEDULED, Status.RUNNING} & counts.keys()
            if not left and not self.running:
                return


def take_part(url: str, story: Path, name: str, seed: int, rounds: int) -> None:
    """Do so many actions, and work beside it until all jobs of all processes are over."""

    async def main() -> None:
        hand = Hand(url, story, name, seed)
        await hand.open()
        for number in range(rounds):
            await hand.act(number)
        await hand.finish()
        await hand.store.close()

    asyncio.run(main())
