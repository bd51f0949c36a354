"""The scheduler: submits tasks at their moments, once over all processes that share a store.

It is a loop on the store thread while this process has a worker. It submits each moment under its
own idempotency key, then records that in the store: a process that crashed in between, or one that
submits at the same time, joins the job of that key.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from msgspec.structs import replace

from poolhand.contract import JobBatch, JobRequest, Put
from poolhand.durable.calls.task_registry import TaskCode, TaskRegistry
from poolhand.durable.client.submit import StoreClient, StoreSubmitter
from poolhand.durable.client.task import Task
from poolhand.durable.connection.connection import OpenStore, StoreConnection
from poolhand.durable.scheduled_call import (
    CALLS,
    DOCUMENTS,
    KEEP,
    PAUSES,
    ScheduledCall,
    SchedulePause,
    ScheduleRecord,
    pack_call,
)
from poolhand.errors import PoolhandError, StoreError, UsageError
from poolhand.rules import schedule as rules
from poolhand.rules.explain import is_same_task
from poolhand.rules.json_values import digest
from poolhand.rules.schedule import Cron, Past, Schedule, When
from poolhand.rules.validation import is_short, shown

SUBMITTER = "schedule"
LOOK_EVERY = 1.0  # the clock may have been changed
SOONEST = 0.005
AGAIN = timedelta(seconds=1)  # until a refused submit is retried
PATIENCE = (0.1, 0.6)  # seconds, from and to: the lead of the process that submitted last
AT_ONCE = 100
RENEW_EVERY = timedelta(days=1)  # how often a declared schedule renews its call and its pause
KEY_TTL = 3600.0
MOST_KEYS = 1_000
CALL_DIGITS = 12
MOST_SCHEDULES = 10_000
NEVER = datetime.max.replace(tzinfo=UTC)
TWIN = (
    "they seem to be one function whose module was started under two names, and each submits jobs "
    "of its own; start the module in one way, or name the schedule: name=…"
)


class TimedTask:
    """A task with its arguments and one of its schedules, as this process knows them.

    The next check is due at `look_at`, by the wall clock. It is `ours` if this process was the last
    to record it. Its call is packed by `prepare`, before the store thread needs it.
    """

    def __init__(
        self,
        schedule: Schedule,
        task: Task[..., Any, Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        self.schedule = schedule
        self.task = task
        self.look_at: datetime | None = None
        self.ours = False
        self.renewed_at: datetime | None = None
        self._args = args
        self._kwargs = kwargs
        self._call: ScheduledCall | None = None

    @property
    def document(self) -> str:
        return f"{DOCUMENTS}{self.schedule.id}"

    @property
    def pause_document(self) -> str:
        return f"{PAUSES}{self.schedule.id}"

    def is_renewed(self, now: datetime) -> bool:
        """Return whether call and pause were renewed lately; not if the clock was set back."""
        at = self.renewed_at
        return at is not None and at <= now < at + RENEW_EVERY

    @property
    def what(self) -> str:
        return f"schedule of {self.schedule.id}"

    def prepare(self, client: StoreClient, code: TaskCode) -> None:
        """Pack the call, once for all moments; raise if the task cannot be called so."""
        self._call = pack_call(client, self.task, code, self._args, self._kwargs)

    def request(self, moment: datetime) -> JobRequest:
        """Return the request for the job of a moment."""
        return self._packed().request_for(self.schedule.key(moment), SUBMITTER)

    def single(self) -> JobRequest:
        """Return the request for a job of no moment; the call is packed anew, here."""
        return self.task.with_options(idempotency_key=None).request(*self._args, **self._kwargs)

    def call(self) -> Put:
        """Return the request to be stored for processes that do not have the code of the task."""
        key, value = f"{CALLS}{self.schedule.id}", self._packed().as_document()
        return Put(key, value, ttl=KEEP.total_seconds())

    def _packed(self) -> ScheduledCall:
        if self._call is None:
            raise UsageError(f"the call of the {self.what} was not packed before a worker started")
        return self._call

    def record(self, past: Past, now: datetime, ran: datetime) -> Put:
        """Return the record to be stored."""
        schedule = self.schedule
        coming = rules.upcoming(schedule, past, now)
        zone = schedule.when.zone if isinstance(schedule.when, Cron) else None
        times = schedule.when.text, zone, schedule.missed, past, coming
        record = ScheduleRecord(schedule.task, *times, self._packed().text, ran)
        # Longer than any time without a write: a schedule whose record expires starts anew.
        keep = KEEP if coming is None else max(KEEP, 2 * (coming - past.last))
        return Put(self.document, msgspec.json.encode(record), ttl=keep.total_seconds())


class Scheduler:
    """All schedules of an app, and the loop that submits what is due.

    `zone` returns the time zone of schedules that name none.
    """

    def __init__(self, client: StoreClient, codes: TaskRegistry, zone: Callable[[], str]) -> None:
        self._client = client
        self.zone = zone
        self._codes = codes
        self._timed: dict[str, TimedTask] = {}
        self._is_checked = False
        self._connection: StoreConnection | None = None
        self._loop: tuple[StoreConnection, asyncio.Task[None]] | None = None

    def add(
        self,
        task: Task[..., Any, Any],
        when: When,
        missed: rules.Missed,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        """Run a task at these moments, from the next one on."""
        code, call = self._checked_call(task, args, kwargs)
        schedule = Schedule(task.name, when, missed, call)
        self._check_name(schedule)
        timed = TimedTask(schedule, task, args, kwargs)
        if self._is_checked:
            timed.prepare(self._client, code)
        self._timed = {**self._timed, schedule.id: timed}
        if self._connection is not None:
            self.begin(self._connection)

    def check_unscheduled(self, fn: object) -> None:
        """Raise for a scheduled task: options that it gets later do not apply to its schedule."""
        if isinstance(fn, Task) and any(one.task is fn for one in self._timed.values()):
            raise _made_again(fn.name)

    def request(self, id: str) -> JobRequest | None:
        """Return the request for one more job of a schedule that this process declares."""
        found = self._timed.get(id)
        return None if found is None else found.single()

    def check(self) -> None:
        """Raise for faults that could not be known when the schedules were declared."""
        # Called on the thread that starts a worker: user code may run here.
        self._is_checked = True
        for one in self._timed.values():
            if self._codes.find(one.task.name) is not one.task.code:
                raise _made_again(one.task.name)
            # Types may be defined after the task: only now are they all known.
            one.prepare(self._client, one.task.code)
            config = self._client.declared.find(one.task.pool)
            if config.key_ttl < KEY_TTL or config.max_keys < MOST_KEYS:
                raise UsageError(
                    f"pool {one.task.pool!r} forgets idempotency keys too soon for the scheduled "
                    f"task {one.task.name!r}, whose moments would run twice; give it key_ttl of at "
                    f"least {KEY_TTL:,.0f} and max_keys of at least {MOST_KEYS:,}, or give the "
                    "task another pool"
                )

    def begin(self, connection: StoreConnection) -> None:
        """Submit what is due while this store connection has workers; from any thread."""
        self._connection = connection
        if self._timed:
            connection.thread.post(self._begin, connection)

    def _begin(self, connection: StoreConnection) -> None:
        if self._loop is not None and self._loop[0] is connection and not self._loop[1].done():
            return
        if not connection.thread.closed:
            work = SchedulerLoop(connection, self._client, lambda: list(self._timed.values()))
            self._loop = connection, connection.thread.start("scheduler", work.run)

    def _checked_call(
        self, task: Task[..., Any, Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[TaskCode, str]:
        """Return the code that packs a call of a task, and a digest of the arguments for names.

        Raise if it cannot be called with them.
        """
        code = task.code
        if self._codes.find(task.name) is not code:
            raise UsageError(f"task {task.name!r} is one of another app; schedule it there")
        # With a separate signature: that of the task would cache types that are not yet defined.
        trial = TaskCode(code.name, code.fn, code.wire)
        try:
            trial.pack(args, kwargs)
        except UsageError as error:
            raise UsageError(
                f"{error.message}; a scheduled task is called with the args=(…) and kwargs={{…}} "
                "of its schedule: give them there, or give its parameters defaults"
            ) from None
        given = trial.signature.bind(args, kwargs)[2]
        return trial, digest(given).hex()[:CALL_DIGITS] if given else ""

    def _check_name(self, schedule: Schedule) -> None:
        if not is_short(schedule.key(NEVER)):
            raise UsageError(
                f"the task {shown(schedule.task)} cannot be scheduled under so long a name; give "
                "it a shorter one: @app.task(name=…)"
            )


def _made_again(name: str) -> UsageError:
    return UsageError(
        f"{name!r} was made a task again after it was scheduled; write "
        "@app.cron(…) and @app.every(…) above @app.task(…)"
    )


class SchedulerLoop:
    """The loop of one store connection; everything runs on its store thread."""

    def __init__(
        self,
        connection: StoreConnection,
        opened: OpenStore,
        timed: Callable[[], Sequence[TimedTask]],
    ) -> None:
        self._connection = connection
        self._thread = connection.thread
        self._runtime = connection.thread.runtime
        self._timed = timed
        self._seen = self._runtime.wall()
        self._submissions = StoreSubmitter(opened, connection.events, self._thread.relay.emit)
        for one in timed():
            # Nothing known from before this loop is valid.
            one.look_at = None
            one.renewed_at = None

    async def run(self) -> None:
        while True:
            await self._look()
            await asyncio.sleep(self._pause())
            # Only after the pause: the worker that started this may not be attached yet.
            if not self._connection.workers:
                return

    async def _look(self) -> None:
        now = self._runtime.wall()
        moved = now < self._seen
        self._seen = now
        for one in self._timed():
            if one.look_at is not None and one.look_at > now and not moved:
                continue
            try:
                await self._attend(one)
            except StoreError:
                raise  # The store thread reports it, and restarts this loop in a second.
            except Exception as error:
                self._thread.trouble(one.what, error)
                one.look_at = self._runtime.wall() + AGAIN
            else:
                self._thread.well(one.what)
        self._thread.well("scheduler")

    def _pause(self) -> float:
        """Return the seconds to the next check; at most LOOK_EVERY, as the clock may change."""
        now = self._runtime.wall()
        looks = [now if one.look_at is None else one.look_at for one in self._timed()]
        left = (min(looks) - now).total_seconds() if looks else LOOK_EVERY
        return min(LOOK_EVERY, max(SOONEST, left))

    async def _attend(self, one: TimedTask) -> None:
        """Submit what is due, and record it."""
        if not one.is_renewed(self._runtime.wall()):
            # Before the record: a schedule that is visible must be triggerable.
            await self._renew(one)
            await self._report_twin(one)
        found = await self._thread.store.get_document(one.document)
        kept = await self._thread.store.get_document(one.pause_document)
        pause = None if kept is None else kept.read(SchedulePause)
        now = self._runtime.wall()
        # One that a newer version has written counts as new: nothing is repeated.
        record = None if found is None else found.read(ScheduleRecord)
        before = None if record is None else record.past
        past = rules.begin(now) if before is None else before
        ran = past.last if record is None or record.ran is None else record.ran
        if pause is not None:
            past = rules.pass_over(one.schedule, past, pause.until(now))
        paused = pause is not None and pause.paused
        moments = [] if paused else rules.due(one.schedule, past, now)
        refusal: PoolhandError | None = None
        if moments:
            self._report_cut(one, past, moments)
            done, refusal = await self._submit(one, moments)
            if done:
                past, ran = rules.settle(one.schedule, past, done), done[-1]
        written = True
        if past is not before:
            put = replace(one.record(past, now, ran), expect=0 if found is None else found[1])
            written = one.ours = await self._thread.store.put([put]) is not None
        if refusal is not None:
            raise refusal
        # If another process wrote first, look again: it may have seen less than this one, or more.
        one.look_at = self._next_look(one, past, now) if written else now

    async def _renew(self, one: TimedTask) -> None:
        """Store the call and the pause for another year: the schedule is still declared."""
        store = self._thread.store
        await store.put([one.call()])
        kept = await store.get_document(one.pause_document)
        pause = None if kept is None else kept.read(SchedulePause)
        if kept is not None and pause is not None and pause.paused:
            # Nothing is written if the schedule is resumed meanwhile.
            ttl = KEEP.total_seconds()
            await store.put([Put(one.pause_document, kept.value, kept.version, ttl)])
        one.renewed_at = self._runtime.wall()

    async def _report_twin(self, one: TimedTask) -> None:
        """Report an active schedule that seems to be the same function under another name."""
        store, own, now = self._thread.store, one.schedule, self._runtime.wall()
        times = own.id.removeprefix(own.task)
        for key in await store.scan(DOCUMENTS, limit=MOST_SCHEDULES):
            task = key.removeprefix(DOCUMENTS).removesuffix(times)
            if task == own.task or not key.endswith(times) or not is_same_task(task, own.task):
                continue
            kept = await store.get_document(key)
            record = None if kept is None else kept.read(ScheduleRecord)
            if record is not None and record.next is not None and record.next > now:
                self._thread.trouble(f"{one.what} and that of {task}{times}", PoolhandError(TWIN))

    def _next_look(self, one: TimedTask, past: Past, now: datetime) -> datetime:
        coming = rules.upcoming(one.schedule, past, now)
        wait = 0.0 if one.ours else self._runtime.random.uniform(*PATIENCE)
        at = NEVER if coming is None else coming + timedelta(seconds=wait)
        return min(at, now + RENEW_EVERY)

    async def _submit(
        self, one: TimedTask, moments: Sequence[datetime]
    ) -> tuple[list[datetime], PoolhandError | None]:
        """Submit the jobs of moments; return those accepted before the first refused one."""
        done: list[datetime] = []
        for start in range(0, len(moments), AT_ONCE):
            part = moments[start : start + AT_ONCE]
            # Without an owner: a pool that blocks submitters refuses it, and it is retried.
            batches = [JobBatch((one.request(moment),)) for moment in part]
            refusal: PoolhandError | None = None
            for moment, answer in zip(part, await self._thread.store.add(batches), strict=True):
                try:
                    self._submissions.accepted(answer, one.task.name)
                except PoolhandError as error:
                    refusal = refusal or error
                if refusal is None:
                    done.append(moment)
            if refusal is not None:
                return done, refusal
        return done, None

    def _report_cut(self, one: TimedTask, past: Past, moments: Sequence[datetime]) -> None:
        if len(moments) == rules.MOST and rules.leaves_out(one.schedule, past, moments[0]):
            text = (
                f"more than {rules.MOST:,} moments were missed since {past.last.isoformat()}; "
                f"those before {moments[0].isoformat()} are left out"
            )
            self._thread.trouble(one.what, PoolhandError(text))
