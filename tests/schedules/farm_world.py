"""Schedules of a whole farm: machines that come and go over one store, in virtual time.

Whatever happens, every accepted job ends exactly once, nothing is lost, and no cap is exceeded.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine
from contextlib import suppress
from random import Random
from typing import Any

import msgspec
from msgspec import Struct

from poolhand import JobError, Retry, RetryLater, Snooze, bounded, fail_fast
from poolhand.app import App
from poolhand.context import fencing_token
from poolhand.contract import Filter, Stored
from poolhand.durable.client.task import Task
from poolhand.durable.worker.executor import crashed
from poolhand.durable.worker.worker import Worker
from poolhand.errors import IdempotencyConflict, Refused, Unavailable
from poolhand.observe.events import Event, Events
from poolhand.rules.audit import CANCEL, DROP, OUTCOME, STREAM
from poolhand.testing import SeededRuntime, run_seeded
from poolhand.views import Status
from tests.unit.durable.support import SharedStore, StoreApp

MACHINES = 3
STEPS = 30
MAX_STEPS = 2_000_000
CALM = 600.0  # virtual seconds within which everything must end
GOOD = """
SELECT c.token, p.name, j.session FROM poolhand_claims c
JOIN poolhand_pools p ON p.no = c.pool JOIN poolhand_jobs j ON j.seq = c.seq WHERE c.stuck = 0
"""
CAPS = {"chat": 2, "narrow": 1, "fast": 2}


class FarmFailed(AssertionError):
    """A schedule broke a promise; the message begins with its seed."""


class Body(Struct, frozen=True):
    """The behaviour of a job. `stubborn`: seconds for which it ignores a stop."""

    number: int
    kind: str = "sleep"
    seconds: float = 0.0
    stubborn: float = 0.0


class Ran(Struct, frozen=True):
    """The result of a job: its number, and its lease."""

    number: int
    token: int


def run_farm(seed: int) -> Counter[str]:
    """Run the schedule of a seed and return what occurred in it; raises FarmFailed."""
    worlds: list[FarmWorld] = []

    async def main(runtime: SeededRuntime) -> None:
        worlds.append(FarmWorld(runtime, seed))
        await worlds[0].run()

    try:
        run_seeded(main, seed, max_steps=MAX_STEPS)
    except BaseException as error:
        notes = "\n".join(getattr(error, "__notes__", []))
        log = "\n".join(worlds[0].log[-60:]) if worlds else ""
        raise FarmFailed(f"seed={seed}: {error!r}\n{notes}\n{log}") from error
    world = worlds[0]
    if world.faults:
        text = "\n  ".join(world.faults[:8])
        raise FarmFailed(f"seed={seed}: {text}\n" + "\n".join(world.log[-60:]))
    return world.seen


class FarmWorld:
    """One running schedule."""

    def __init__(self, runtime: SeededRuntime, seed: int) -> None:
        self.runtime = runtime
        self.dice = Random(seed)
        self.store = SharedStore(runtime)
        self.seen: Counter[str] = Counter()
        self.faults: list[str] = []
        self.log: list[str] = []
        self.events = Events()
        self.events.subscribe(self.hear)
        self.tasks: dict[tuple[App, str], Task[Any, Any, Any]] = {}
        self.apps: list[App] = [self.machine() for _ in range(MACHINES)]
        self.workers: list[tuple[App, Worker]] = []
        self.begun: list[asyncio.Task[None]] = []
        self.callers: list[asyncio.Task[None]] = []
        self.accepted: dict[str, set[int]] = {}
        self.unknown: set[int] = set()
        self.numbers = 0
        self.keyed: dict[tuple[str, str], Body] = {}
        self.inside: dict[int, Body] = {}
        self.tokens: dict[int, list[int]] = {}
        if self.dice.random() < 0.7:
            self.store.lag = lambda: self.dice.choice([0.0, 0.001, 0.02, 0.3])

    def machine(self) -> App:
        app = StoreApp(self.store, self.runtime, events=self.events)
        app.pool("chat", max_concurrent=CAPS["chat"], max_per_key=1)
        app.pool("narrow", max_concurrent=1, backpressure=bounded(2, wait_timeout=40))
        app.pool("fast", max_concurrent=CAPS["fast"], backpressure=fail_fast())
        retry = Retry(attempts=3, first=1.0)

        # Not findable by name: a suspect must not run in a real process here.
        async def work(body: Body) -> Ran:
            return await self.work(body)

        for pool in ("chat", "narrow", "fast", "open"):
            declare = app.task(pool=pool, name=f"work in {pool}", retry=retry)
            self.tasks[app, pool] = declare(work)
        return app

    def hear(self, event: Event) -> None:
        self.seen[type(event).__name__] += 1
        job = getattr(event, "job", None)
        text = "" if job is None else f"{job.id[-5:]} {job.status.value} {job.attempts}"
        self.note(f"{type(event).__name__} {text} {getattr(event, 'error', '')}")

    def note(self, text: str) -> None:
        self.log.append(f"{self.runtime.monotonic():9.3f} {text}")

    # The code of jobs.

    async def work(self, body: Body) -> Ran:
        token = fencing_token()
        assert token is not None
        self.enter(body, token)
        try:
            await self.behave(body, self.runtime)
        finally:
            del self.inside[token]
        return Ran(body.number, token)

    def enter(self, body: Body, token: int) -> None:
        tokens = self.tokens.setdefault(body.number, [])
        self.inside[token] = body
        good = {token: job for token, *job in self.store.query(GOOD)}
        if token not in good:
            # Its lease was lost meanwhile: its actions do not count, as it will be told.
            tokens.append(token)
            return
        if token <= max(tokens, default=0):
            self.faults.append(f"token: {body.number} runs under {token} after {tokens}")
        tokens.append(token)
        valid = [good[one] for one in self.inside if one in good]
        for name, cap in CAPS.items():
            if sum(pool == name for pool, _ in valid) > cap:
                self.faults.append(f"cap: {name} runs more than {cap}")
        sessions = [(pool, session) for pool, session in valid if session]
        if len(sessions) != len(set(sessions)):
            self.faults.append(f"session: two turns at once of {sessions}")

    async def behave(self, body: Body, runtime: SeededRuntime) -> None:
        end = runtime.monotonic() + body.stubborn
        while True:
            try:
                await asyncio.sleep(body.seconds)
                break
            except asyncio.CancelledError:
                if runtime.monotonic() >= end:
                    raise
        attempt = len(self.tokens[body.number])
        match body.kind:
            case "fail":
                raise ValueError(body.number)
            case "flaky" if attempt < 2:
                raise OSError("once")
            case "snooze" if attempt < 3:
                raise Snooze(2.0)
            case "later" if attempt < 2:
                raise RetryLater(3.0)

    # Actions.

    async def run(self) -> None:
        steps = (
            [self.submit] * 10
            + [self.cancel] * 3
            + [self.hire] * 4
            + [self.dismiss] * 3
            + [self.kill, self.close, self.expire_owner, self.outage, self.clock]
        )
        await self.hire()
        for _ in range(STEPS):
            await self.pause(self.runtime, self.dice.choice([0, 0, 0.05, 0.5, 3.0, 10.0]))
            await self.dice.choice(steps)()
        await self.calm_down(self.runtime)
        await self.check()

    async def pause(self, runtime: SeededRuntime, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(work)
        self.begun.append(task)
        return task

    async def submit(self) -> None:
        self.callers += [self.begin(self.call()) for _ in range(self.dice.randint(1, 4))]
        if self.dice.random() < 0.2:
            self.dice.choice(self.callers).cancel()

    async def call(self) -> None:
        dice, app = self.dice, self.dice.choice(self.apps)
        self.numbers += 1
        kind = dice.choice(["sleep"] * 5 + ["fail", "flaky", "snooze", "later"])
        seconds = dice.choice([0.0, 0.1, 1.0, 8.0])
        body = Body(self.numbers, kind, seconds, dice.choice([0.0] * 6 + [4.0, 12.0]))
        pool = dice.choice(["chat", "narrow", "fast", "open", "open"])
        options: dict[str, Any] = {
            "key": dice.choice([None, "k1", "k2"]),
            "session": dice.choice([None, None, "s1", "s2"]),
            "delay": dice.choice([None, None, None, 5.0]),
            "expires": dice.choice([None] * 5 + [6.0]),
            "timeout": dice.choice([None, None, 5.0]),
            "idempotency_key": dice.choice([None] * 6 + [f"i{dice.randint(1, 3)}"]),
            "on_crash": dice.choice(["rerun"] * 5 + ["fail"]),
            "cancel_with_caller": dice.random() < 0.2,
        }
        key = options["idempotency_key"]
        if key is not None and dice.random() < 0.8:
            # A key stands for one call; a few calls conflict with it.
            body = self.keyed.setdefault((pool, key), body)
        try:
            ticket = await self.tasks[app, pool].with_options(**options).submit(body)
        except (Refused, IdempotencyConflict):
            self.seen["refused"] += 1
            return
        except Unavailable:
            self.unknown.add(body.number)
            return
        except asyncio.CancelledError:
            self.unknown.add(body.number)
            raise
        self.accepted.setdefault(ticket.id, set()).add(body.number)
        self.note(f"accepted {ticket.id[-5:]} as {body}")
        await self.hear_out(ticket)

    async def hear_out(self, ticket: Any) -> None:
        """Await a ticket, through closed apps and outages, and compare it with the store."""
        while True:
            try:
                value = await ticket
            except Unavailable:
                await self.pause(self.runtime, 1.0)
                continue
            except JobError:
                self.seen["job errors"] += 1
            except (ValueError, OSError, Snooze, RetryLater):
                self.seen["own errors"] += 1
            else:
                if not isinstance(value, Ran):
                    self.faults.append(f"value: {ticket.id} gave {value!r}")
            break
        if not ticket.status.terminal:
            self.faults.append(f"ticket: {ticket.id} answered while it is {ticket.status}")

    async def cancel(self) -> None:
        if not self.accepted:
            return
        id, app = self.dice.choice(sorted(self.accepted)), self.dice.choice(self.apps)

        async def wish() -> None:
            with suppress(Unavailable):
                ticket = await app.get(id)
                assert ticket is not None
                self.note(f"cancel {id[-5:]}")
                await ticket.cancel()

        self.begin(wish())

    async def hire(self) -> None:
        app = self.dice.choice(self.apps)
        worker = app.worker(self.dice.randint(1, 4), drain_timeout=self.dice.choice([0, 3, 60]))
        try:
            await worker.start()
        except Unavailable:
            return
        self.note("hired")
        self.workers.append((app, worker))

    async def dismiss(self) -> None:
        if self.workers:
            _, worker = self.workers.pop(self.dice.randrange(len(self.workers)))
            self.note("dismissed")
            self.begin(self.drain(worker, self.dice.choice([None, 0, 2])))

    async def drain(self, worker: Worker, timeout: float | None) -> None:
        report = await asyncio.shield(asyncio.ensure_future(worker.drain(timeout)))
        self.seen["handed back"] += report.handed_back

    async def kill(self) -> None:
        """End a machine: nothing more is written by it, and its code is gone."""
        app = self.dice.choice(self.apps)
        self.note("killed")
        app.core.slot.abandon()
        for owner, worker in [one for one in self.workers if one[0] is app]:
            self.workers.remove((owner, worker))
            self.begin(self.drain(worker, 0))

    async def close(self) -> None:
        """Close an app normally while its workers run jobs."""
        app = self.dice.choice(self.apps)
        self.note("closed")
        await app.close()
        for owner, worker in [one for one in self.workers if one[0] is app]:
            self.workers.remove((owner, worker))
            self.begin(self.drain(worker, 0))

    async def expire_owner(self) -> None:
        """Count a live owner as dead."""
        with suppress(Unavailable):
            leases = [lease for lease in await self.store.leases() if not lease.expired]
            if leases:
                lease = self.dice.choice(leases)
                claims = await self.store.expire_owner(lease.owner.id, lease.renewal)
                self.note(f"buried with {len(claims)}")
                await self.store.replace([crashed(one, self.runtime.wall()) for one in claims])

    async def outage(self) -> None:
        if not self.store.down:
            self.store.down = True
            self.begin(self.come_back(self.dice.choice([0.5, 4.0, 25.0, 40.0])))

    async def come_back(self, seconds: float) -> None:
        self.note(f"away for {seconds}")
        await self.pause(self.runtime, seconds)
        self.store.down = False

    async def clock(self) -> None:
        self.runtime.wall_offset += self.dice.choice([-3600.0, 3600.0])

    # The end.

    async def calm_down(self, runtime: SeededRuntime) -> None:
        """Let everything end."""
        self.note("calm")
        while self.store.down:  # noqa: ASYNC110 - time has to pass
            await asyncio.sleep(1)
        async with self.machine() as last, last.worker(4):
            until = runtime.monotonic() + CALM
            while await self.open_jobs() and runtime.monotonic() < until:  # noqa: ASYNC110
                await asyncio.sleep(1)
            if self.begun:
                await asyncio.wait(self.begun, timeout=100)
            for task in self.begun:
                if not task.done():
                    self.faults.append(f"hangs: {task.get_coro()}")
        for _, worker in self.workers:
            await worker.drain(0)
        for app in self.apps:
            await app.close()
        # Code that outlived its machine is reaped by the next process.
        async with self.machine():
            await asyncio.sleep(60)

    async def open_jobs(self) -> int:
        counted = await self.store.count(Filter())
        blocked_submitters = sum(row.blocked_submitters for row in await self.store.pools())
        return blocked_submitters + sum(n for status, n in counted.items() if not status.terminal)

    async def check(self) -> None:
        ids = [id for (id,) in self.store.query("SELECT id FROM poolhand_jobs ORDER BY seq")]
        jobs = {one.job.id: one for one in await self.store.get(ids) if one is not None}
        for id in sorted(self.accepted.keys() - jobs.keys()):
            self.faults.append(f"lost: {id}")
        if len(jobs) > len(self.accepted) + len(self.unknown):
            self.faults.append(f"unexpected: {len(jobs)} jobs of {len(self.accepted)}")
        for id, one in sorted(jobs.items()):
            self.seen[one.job.status.value] += 1
            self.check_job(id, one)
        for pool in await self.store.pools():
            places = (
                pool.running,
                pool.queued,
                pool.blocked,
                pool.scheduled,
                pool.blocked_submitters,
            )
            if any(places):
                self.faults.append(f"left: {pool.spec.name} {places}")
        await self.check_audit(jobs)
        if self.inside:
            self.faults.append(f"inside: {self.inside}")

    def check_job(self, id: str, one: Stored) -> None:
        job = one.job
        if not job.status.terminal:
            self.faults.append(f"open: {id} is {job.status} under {one}")
        if job.status is Status.COMPLETED:
            ran = msgspec.json.decode(_body(job.result), type=Ran)
            # Its key may belong to a submit that never learned that it was accepted.
            if ran.number not in self.accepted.get(id, self.unknown) | self.unknown:
                self.faults.append(f"result: {id} has that of {ran.number}")
            if ran.token != max(self.tokens[ran.number]):
                self.faults.append(f"fence: {id} ended by {ran.token}, not by the last one")
        if job.attempts > 3 + job.crashes:
            self.faults.append(f"attempts: {id} has {job.attempts} and {job.crashes} crashes")

    async def check_audit(self, jobs: dict[str, Stored]) -> None:
        ends: Counter[str] = Counter()
        wished: set[str] = set()
        for line in await self.store.read(STREAM, limit=100_000):
            record = msgspec.json.decode(line.body)
            if line.kind in (OUTCOME, DROP):
                ends[record["task_id"]] += 1
            elif line.kind == CANCEL:
                wished.add(record["task_id"])
        for id, one in jobs.items():
            if ends[id] != 1:
                self.faults.append(f"ends: {id} ended {ends[id]} times")
            if one.job.status is Status.CANCELLED and id not in wished:
                self.faults.append(f"cancelled: {id} was, and nobody wished it")


def _body(data: bytes) -> bytes:
    """Return the JSON in an envelope that was neither compressed nor signed."""
    return data[data.index(b"{") :]
