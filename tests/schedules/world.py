"""Runs a plan: bodies that behave as planned, callers, and the driver of the steps."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine
from itertools import count
from typing import Any

from poolhand import Pool, Refused, Ticket, UsageError, subscribe, wait
from poolhand.errors import Deadlock, Draining, IdempotencyConflict
from poolhand.testing import SeededRuntime, run_seeded
from tests.schedules.bodies import Bodies, job_id_here, pass_time
from tests.schedules.checker import Checker
from tests.schedules.plan import Call, Plan, Step, make_plan

CALM_SECONDS = 1000.0
STUBBORN_SECONDS = 60.0
CANCEL_SECONDS = 0.1  # beyond the grace
MAX_STEPS = 30_000
NUMBERS = count()


class ScheduleFailed(AssertionError):
    """A schedule broke a promise; the message begins with its seed."""


def run_schedule(
    seed: int, ignore: frozenset[str] = frozenset(), trace: list[str] | None = None
) -> Counter[str]:
    """Run the schedule of a seed and return what occurred in it; raises ScheduleFailed."""
    plan = make_plan(seed)
    world: list[World] = []

    async def main(runtime: SeededRuntime) -> None:
        world.append(World(runtime, plan, trace))
        await world[0].run()

    failure: BaseException | None = None
    try:
        run_seeded(main, seed, max_steps=MAX_STEPS)
    except BaseException as error:
        if not world:
            raise
        failure = error
    finally:
        if world:
            world[0].close()
    faults = [one for one in world[0].watch.faults if one.partition(":")[0] not in ignore]
    if failure is not None:
        notes = getattr(failure, "__notes__", [])
        faults.insert(0, f"escaped: {failure!r} {' '.join(notes)}")
    if faults:
        raise ScheduleFailed(f"seed={seed}: " + "\n  ".join([*faults[:8], str(plan)])) from failure
    return world[0].watch.seen


class World:
    """One running schedule."""

    def __init__(self, runtime: SeededRuntime, plan: Plan, trace: list[str] | None) -> None:
        self.watch = Checker(plan, runtime.loop.time)
        self.watch.trace = trace
        self.runtime = runtime
        self.plan = plan
        self.time = runtime.loop.time
        self.bodies = Bodies(runtime, self.watch, self)
        self.close = subscribe(self.watch.see)
        self.tickets: list[Ticket[Any]] = []
        self.tasks: list[asyncio.Task[None]] = []
        self.draining = False
        self.report: Any = None
        options = dict(plan.options)
        if plan.on_dead:
            options["on_dead"] = self.told_plainly if plan.on_dead == "plain" else self.told
        # A name of its own: a failing schedule may leave its pool behind.
        self.pool = Pool(f"schedule-{next(NUMBERS)}", runtime=runtime, **options)
        self.grace: float = options["cancel_grace"]

    async def run(self) -> None:
        pool, watch = self.pool, self.watch
        await pool.start()
        watch.snapshot = pool.snapshot
        for step in self.plan.steps:
            await pass_time(self.runtime, step.pause)
            watch.look()
            self.take(step)
            watch.look()
        if not self.draining:
            await self.calm_down()
            await self.probe()
        await self.drain(self.plan.drain_timeout)
        await self.settle(STUBBORN_SECONDS)
        await pass_time(self.runtime, 0.1)
        watch.conclude(self.report)
        watch.check_empty()
        try:
            pool.submit_nowait(int)
        except Draining:
            return
        watch.fault("drain", "a drained pool took a job")

    # Steps

    def take(self, step: Step) -> None:
        """Take one step; a step that may wait continues in its own task."""
        call, pool, watch = step.call, self.pool, self.watch
        match step.verb:
            case "submit":
                assert call is not None
                self.spawn(self.submit_and_await(call, step.number % 4))
            case "run":
                assert call is not None
                self.spawn(self.run_call(call))
            case "impatient":
                assert call is not None
                task = self.spawn(self.run_call(call))
                self.runtime.loop.call_later(step.seconds, task.cancel)
            case "submit_nowait":
                assert call is not None
                self.submit_nowait(call, step.number % 4)
            case "resize" | "pause" | "resume" if self.is_stopped():
                self.expect_refusal()
            case "resize":
                watch.size = step.number
                self.spawn_now(pool.resize(step.number))
            case "pause":
                watch.paused = True
                pool.pause()
            case "resume":
                watch.paused = False
                pool.resume()
            case "rerun":
                self.spawn(self.rerun(step.number))
            case "drain":
                self.draining = True
                self.spawn(self.drain(step.seconds))
            case _:
                self.ask(step)

    def ask(self, step: Step) -> None:
        """Take a step that needs a ticket, if there is one."""
        if not self.tickets:
            return
        ticket = self.tickets[step.number % len(self.tickets)]
        match step.verb:
            case "cancel":
                self.spawn(self.cancel(ticket))
            case "wait":
                self.spawn(self.wait_for(self.tickets[-3:], step.seconds))
            case _:
                self.spawn(self.explain(ticket))

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self.runtime.loop.create_task(work)
        self.tasks.append(task)
        return task

    def spawn_now(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run to its end what never waits; a wait is a fault."""
        try:
            work.send(None)
        except StopIteration as done:
            return done.value
        work.close()
        self.watch.fault("run", "waits though it should not")
        return None

    def submit_nowait(self, call: Call, awaiters: int) -> None:
        offer = self.watch.offer(call)
        try:
            ticket = self.view(call).submit_nowait(self.bodies.function(call), call)
        except (Refused, IdempotencyConflict):
            self.watch.turned_away(offer)
            return
        self.keep(call, ticket)
        for _ in range(min(awaiters, 2)):
            self.spawn(self.hear(ticket))

    async def submit_and_await(self, call: Call, awaiters: int) -> None:
        try:
            ticket = await self.hand_in(call)
        except (Refused, IdempotencyConflict):
            return
        for _ in range(min(awaiters, 2)):
            self.spawn(self.hear(ticket))
        if awaiters == 3:
            try:
                await ticket.result(timeout=0.1)
            except asyncio.CancelledError:
                raise
            except BaseException as error:
                if not ticket.status.terminal and not isinstance(error, TimeoutError):
                    self.watch.fault("outcome", f"{error!r} from a job that is not over")

    async def run_call(self, call: Call) -> None:
        try:
            await self.hear(await self.hand_in(call))
        except (Refused, IdempotencyConflict):
            return

    async def hand_in(self, call: Call) -> Ticket[Any]:
        offer = self.watch.offer(call)
        try:
            ticket: Ticket[Any] = await self.view(call).submit(self.bodies.function(call), call)
        except BaseException:
            self.watch.turned_away(offer)
            raise
        self.keep(call, ticket)
        return ticket

    def keep(self, call: Call, ticket: Ticket[Any]) -> None:
        self.watch.taken(call, ticket.id)
        self.tickets.append(ticket)

    async def hear(self, ticket: Ticket[Any], *, inside: bool = False) -> Any:
        """Await a ticket and report the answer to the checker; inside a job, raise it too."""
        watch, since = self.watch, self.time()
        watch.open += 1
        try:
            value = await ticket
        except asyncio.CancelledError:
            self.check_cancelled(ticket)
            raise
        except BaseException as error:
            if inside and isinstance(error, Deadlock) and error.job_id == job_id_here():
                raise
            watch.hear(ticket.id, since, None, error)
            if inside:
                raise
        else:
            watch.hear(ticket.id, since, value)
            return value
        finally:
            watch.open -= 1

    def check_cancelled(self, ticket: Ticket[Any]) -> None:
        task = asyncio.current_task()
        if task is None or not task.cancelling():
            self.watch.fault("outcome", f"a bare CancelledError from {ticket.id}")
        record = self.watch.jobs[ticket.id]
        if record.call.options.get("cancel_with_caller"):
            record.excused = True

    async def rerun(self, number: int) -> None:
        dead = self.pool.dead()
        if not dead:
            return
        job = dead[number % len(dead)]
        call = self.watch.jobs[job.id].call
        offer = self.watch.offer(call)
        try:
            ticket: Ticket[Any] = await self.pool.rerun(job)
        except (Refused, IdempotencyConflict):
            self.watch.turned_away(offer)
            if job.id not in [one.id for one in self.pool.dead()]:
                self.watch.fault("rerun", f"{job.id} is lost: its rerun was refused")
            return
        except UsageError as error:
            self.watch.fault("rerun", repr(error))
            return
        self.keep(call, ticket)
        await self.hear(ticket)

    async def cancel(self, ticket: Ticket[Any]) -> None:
        watch, began = self.watch, self.time()
        record = watch.jobs[ticket.id]
        stage = record.stage
        watch.excuse(ticket.id)
        ended = await ticket.cancel()
        took = self.time() - began
        if took > (self.grace + CANCEL_SECONDS if stage == "running" else 0.0):
            watch.fault("cancel", f"{ticket.id} was {stage}, its cancel took {took:g} s")
        if ended is not (ticket.status == "cancelled") or not ticket.status.terminal:
            watch.fault("cancel", f"{ticket.id} is {ticket.status}, its cancel said {ended}")

    async def wait_for(self, tickets: list[Ticket[Any]], seconds: float) -> None:
        began = self.time()
        jobs = await wait(tickets, timeout=seconds)
        if [job.id for job in jobs] != [ticket.id for ticket in tickets]:
            self.watch.fault("wait", "the snapshots are not in the order of the tickets")
        took = self.time() - began
        if took > seconds + 1e-6:
            self.watch.fault("wait", f"took {took:g} s of {seconds:g}")
        if took < seconds and not all(job.status.terminal for job in jobs):
            self.watch.fault("wait", "came back early")

    async def explain(self, ticket: Ticket[Any]) -> None:
        explanation = await ticket.explain()
        if not str(explanation):
            self.watch.fault("explain", "says nothing")

    def is_stopped(self) -> bool:
        return self.pool._engine().stopped

    def expect_refusal(self) -> None:
        try:
            self.pool.pause()
        except UsageError:
            return
        self.watch.fault("drain", "a drained pool could be paused")

    # The end

    async def calm_down(self) -> None:
        """Let everything end by itself."""
        self.watch.paused = False
        if not self.is_stopped():
            self.pool.resume()
        await self.settle(CALM_SECONDS)
        if self.pool.size() or self.watch.open:
            self.watch.fault("hang", f"{self.pool.size()} jobs, {self.watch.open} callers wait")

    async def settle(self, seconds: float) -> None:
        """Wait until every task of the schedule is done and no code of any job is left."""
        until = self.time() + seconds
        while (tasks := [task for task in self.tasks if not task.done()]) and self.time() < until:
            await asyncio.wait(tasks, timeout=until - self.time())
        while self.busy() and self.time() < until:
            await pass_time(self.runtime, 0.1)
        if tasks:
            self.watch.fault("hang", f"{len(tasks)} callers, stages {self.stages()}")
        self.tasks = tasks

    def busy(self) -> bool:
        shown = self.pool.snapshot()
        return bool(self.watch.occupied or self.pool.size() or shown.stuck)

    def stages(self) -> dict[str, str]:
        jobs = self.watch.jobs.values()
        return {job.id[11:16]: job.stage for job in jobs if job.stage != "over"}

    async def probe(self) -> None:
        """Fill every slot of the idle pool once: none may have been lost."""
        size = self.watch.size
        together = asyncio.Event()
        inside: list[str | None] = []

        async def meet(call: Call) -> str:
            attempt = self.watch.enter(job_id_here(), call)
            inside.append(job_id_here())
            if len(inside) == size:
                together.set()
            await together.wait()
            self.watch.leave(attempt, "met", None)
            return "met"

        tickets = []
        for number in range(size):
            key = "tenant_id" if self.plan.strategy == "fair by field" else "key"
            options = {key: f"probe {number}", "timeout": 5.0, "soft_timeout": None, "retry": None}
            call = Call(-number, "async", ("return",), 0, 0, options, (), 1, 5.0)
            self.watch.offer(call)
            try:
                ticket = self.view(call).submit_nowait(meet, call)
            except (Refused, IdempotencyConflict) as error:
                self.watch.fault("slot", f"{number} of {size} slots are free: {error}")
                break
            self.watch.taken(call, ticket.id)
            tickets.append(ticket)
        jobs = await wait(tickets, timeout=10.0)
        if not all(job.status == "completed" for job in jobs) or len(inside) != size:
            self.watch.fault("slot", f"{len(inside)} of {size} slots were usable")

    async def drain(self, seconds: float) -> None:
        watch = self.watch
        deadline = self.time() + seconds
        watch.deadline = deadline if watch.deadline is None else min(watch.deadline, deadline)
        idle = not self.draining and not self.pool.size()
        began = self.time()
        report = await self.pool.drain(seconds)
        if self.time() > max(began, watch.deadline + 1.0):
            watch.fault("drain", f"took until {self.time() - watch.deadline:g} s past its deadline")
        if idle and self.time() > began:
            watch.fault("drain", "of an idle pool took time")
        if self.report not in (None, report):
            watch.fault("drain", "two drains, two reports")
        self.report = report

    def told_plainly(self, job: Any) -> None:
        self.watch.told_dead.append(job.id)

    async def told(self, job: Any) -> None:
        await asyncio.sleep(0)
        self.watch.told_dead.append(job.id)

    def view(self, call: Call) -> Any:
        return self.pool.with_options(**call.options) if call.options else self.pool
