"""Invariants of every schedule, checked from outside.

The checker imports nothing of poolhand. It knows what user code saw (begins and ends of bodies,
answers of callers, calls of the pool), the pool's public snapshots and its events.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from tests.schedules.plan import Call, Plan

HARD_STOP_SECONDS = 0.1  # seconds from a hard timeout to the caller's JobTimedOut
DRAIN_SECONDS = 1.0  # seconds that a drain may take beyond its deadline
THREAD_SECONDS = 0.051  # seconds within which a seeded thread has begun
RESTING = {"idle": "idle", "stopped": "idle"}  # the states of workers that run nothing
TINY = 1e-6
FINAL = ("completed", "failed", "cancelled", "expired", "rejected")
WRAPPED = (SystemExit, KeyboardInterrupt, GeneratorExit, StopIteration, StopAsyncIteration)


class Attempt:
    """One JobStarted: its slot, and the observed behaviour of its code."""

    __slots__ = (
        "at", "begun", "error", "gone", "gone_at", "record", "settled", "told", "value",
    )  # fmt: skip

    def __init__(self, record: Record, at: float) -> None:
        self.record = record
        self.at = at
        self.begun = self.gone = self.settled = False
        self.told = ""
        self.gone_at = 0.0
        self.error: BaseException | None = None
        self.value: object = None


class Offer:
    """One submit of a call, which may be repeated by a rerun or a retry of its outer job."""

    __slots__ = ("call",)

    def __init__(self, call: Call) -> None:
        self.call = call


class Record:
    """A job by its events: parked, waiting, running, over."""

    __slots__ = (
        "attempt", "call", "delayed", "ended_at", "excused", "final", "held", "id", "key",
        "offer", "order", "session", "snoozes", "stage", "starts",
    )  # fmt: skip

    def __init__(self, job: Any, offer: Offer, order: int, stage: str) -> None:
        self.id: str = job.id
        self.key: str = job.key
        self.session = None if job.session is None else (job.tenant, job.session)
        self.delayed = job.run_at is not None
        self.offer = offer
        self.call = offer.call
        self.order = order
        self.stage = stage
        self.attempt: Attempt | None = None
        self.starts = self.snoozes = 0
        self.held = self.excused = False
        self.final: Any = None
        self.ended_at = 0.0


class Checker:
    """Follows one schedule; `faults` lists every broken promise."""

    def __init__(self, plan: Plan, time: Callable[[], float]) -> None:
        self.faults: list[str] = []
        self.seen: Counter[str] = Counter()  # events by name, ended jobs by status
        self.trace: list[str] | None = None
        self.snapshot: Callable[[], Any] | None = None
        self.size: int = plan.options["max_concurrent"]
        self.paused = False
        self.deadline: float | None = None  # of a drain
        self.jobs: dict[str, Record] = {}
        self.open = 0  # callers who wait for an outcome
        self.occupied: dict[Attempt, None] = {}
        self.told_dead: list[str] = []
        self._offer: Offer | None = None
        self._plan = plan
        self._time = time
        self._max_per_key: int = plan.options.get("max_per_key", 1 << 30)
        self._drained = False
        self._parked: dict[str, Record] = {}
        self._overtaken: set[str] = set()
        self._turns: dict[object, list[Record]] = {}
        self._waiting = self._accepted = self._active = 0
        self._swollen = 0  # retries return without admission and may raise the queue to this
        self._slots: dict[str, Attempt] = {}
        self._unseen: dict[Attempt, None] = {}  # given up before their thread began

    def fault(self, name: str, text: str) -> None:
        self.faults.append(f"{name}: {text} (at {self._time() - 1000:g} s)")

    # Events of the pool

    def see(self, event: Any) -> None:
        """Record an event; the subscriber of the pool."""
        try:
            self._see(type(event).__name__, event)
        except Exception as error:
            # The pool only logs exceptions of a subscriber: a fault here must be kept.
            self.fault("checker", f"{error!r} at {event!r}")

    def _see(self, name: str, event: Any) -> None:
        self.seen[name] += 1
        if self.trace is not None:
            self._note(name, event)
        handler = getattr(self, f"_on_{name}", None)
        if handler is not None:
            handler(event)
        if self.snapshot is not None:
            shown = self.snapshot()
            total = _sum(shown)
            if total != shown.total:
                self.fault("counters", f"at {name}: total {shown.total}, states add up to {total}")
            if shown.active + shown.stuck > shown.max_concurrent:
                self.fault("cap", f"at {name}: {shown.active} active, {shown.stuck} stuck")

    def _note(self, name: str, event: Any) -> None:
        job = getattr(event, "job", None)
        told = ""
        if job is not None:
            record = self.jobs.get(job.id)
            order = len(self.jobs) if record is None else record.order
            offer = self._offer if record is None else record.offer
            number = "" if offer is None else offer.call.number
            told = f"job {order} #{number} {job.status} {job.blocked_on or ''}"
        rest = {
            key: getattr(event, key)
            for key in event.__struct_fields__
            if key not in ("pool", "job")
        }
        assert self.trace is not None
        self.trace.append(f"{self._time() - 1000:.4f} {name} {told} {rest or ''}")

    def _on_SubmitterParked(self, event: Any) -> None:
        if event.job.id in self.jobs and self.jobs[event.job.id].stage == "parked":
            return  # Another submitter of the same key.
        record = self._meet(event.job, "parked")
        self._parked[record.id] = record

    def _wanting(self) -> int:
        """Count entries that have or want a slot, except jobs that return at their time."""
        fresh = (one for one in self.jobs.values() if one.stage == "waiting")
        return len(self.occupied) + sum(not one.delayed and not one.starts for one in fresh)

    def _on_JobSubmitted(self, event: Any) -> None:
        record = self._parked.pop(event.job.id, None)
        if record is None:
            record = self._meet(event.job, "waiting")
        if record.id in self._overtaken:
            self.fault("parked", f"{record.id} got in after one that came later")
        # A submitter that is leaving at this moment may be passed: it counts only if admitted.
        self._overtaken.update(
            one.id
            for one in self._parked.values()
            if one.order < record.order and not one.call.is_keyed
        )
        record.stage = "waiting"
        self._accepted += 1
        self._waiting += 1
        if record.session is not None:
            turns = self._turns.setdefault(record.session, [])
            turns.append(record)
            turns.sort(key=_order)
        if self._plan.policy == "fail_fast" and self._wanting() > self.size:
            self.fault("bound", f"fail_fast took {record.id} without a free slot")
        if self._drained:
            self.fault("drain", f"{record.id} was accepted by a pool that is drained")

    def _on_JobStarted(self, event: Any) -> None:
        record = self._known(event.job, "waiting")
        attempt = self._slots.get(event.slot)
        if attempt in self.occupied:
            self.fault("slot", f"{event.slot} was given out while its code runs")
        if attempt is not None:
            self._unseen.pop(attempt, None)
        attempt = record.attempt = self._slots[event.slot] = Attempt(record, self._time())
        self.occupied[attempt] = None
        self._waiting -= 1
        self._active += 1
        self._swollen = min(self._swollen, self._waiting)
        record.stage = "running"
        record.starts += 1
        if event.job.attempts != record.starts - record.snoozes:
            self.fault("attempts", f"{record.id} says {event.job.attempts}")
        if len(self.occupied) > self.size:
            self.fault("cap", f"{len(self.occupied)} run in {self.size} slots")
        if self.paused or self._drained:
            self.fault("pause", f"{record.id} started in a pool that is paused or drained")
        mine = sum(one.record.key == record.key for one in self.occupied)
        if record.key and mine > self._max_per_key:
            self.fault("key", f"{mine} jobs of key {record.key!r} run")
        if record.session is not None:
            self._check_turn(record)

    def _check_turn(self, record: Record) -> None:
        for other in self._turns[record.session]:
            if other is record:
                continue
            if other.starts:
                self.fault("session", f"{record.id} started within the turn of {other.id}")
            elif other.order < record.order and not other.delayed:
                self.fault("session", f"{record.id} started before the turn of {other.id}")

    def _on_JobMarked(self, event: Any) -> None:
        attempt = self._known(event.job, "running").attempt
        if attempt is not None:
            attempt.told = event.mark

    def _on_JobRetried(self, event: Any) -> None:
        record = self._known(event.job, "running")
        attempt = self._settle(record)
        record.stage = "waiting"
        self._waiting += 1
        self._swollen = max(self._swollen, self._waiting)
        if type(attempt.error).__name__ == "Snooze" and attempt.told != "hard_timeout":
            record.snoozes += 1
        elif event.job.attempts >= record.call.attempts:
            self.fault("attempts", f"{record.id} is retried after {event.job.attempts}")

    def _on_JobEnded(self, event: Any) -> None:
        job = event.job
        record = self.jobs.get(job.id)
        if record is None or record.stage not in ("waiting", "running"):
            stage = "unknown" if record is None else record.stage
            self.fault("resolution", f"{job.id} ended {job.status}, it was {stage} before")
            return
        if job.status == "rejected" and job.rejection_policy != "draining":
            self._check_full(f"{record.id} was dropped")
        if record.stage == "running":
            self._settle(record)
        else:
            self._waiting -= 1
            if job.status != "rejected":
                self._swollen = min(self._swollen, self._waiting)
        record.stage = "over"
        record.final = job
        record.ended_at = self._time()
        self.seen[job.status.value] += 1
        if record.session is not None:
            self._turns[record.session].remove(record)
        self._check_ending(record)

    def _on_SlotStuck(self, event: Any) -> None:
        attempt = self._slots[event.slot]
        if not attempt.settled or attempt.gone:
            self.fault("stuck", f"{event.slot} is called stuck")
        if not attempt.begun:
            self._unseen[attempt] = None

    def _on_SlotFreed(self, event: Any) -> None:
        attempt = self._slots[event.slot]
        if not attempt.settled or (attempt.begun and not attempt.gone):
            self.fault("stuck", f"{event.slot} is called free")
        self._unseen.pop(attempt, None)

    def _on_SubmitRefused(self, event: Any) -> None:
        if event.code == "PH-POL-003":
            if self.deadline is None:
                self.fault("refusal", "Draining from a pool that nobody drains")
        elif event.code != "PH-TOL-003" and not self._parked:
            self._check_full(f"a submit was refused with {event.code}")

    def _on_CallbackFailed(self, event: Any) -> None:
        self.fault("callback", event.error)

    def _on_PoolDrained(self, _: Any) -> None:
        self._drained = True

    # Observations of user code

    def enter(self, job_id: str | None, call: Call) -> Attempt:
        """Record that a body has begun."""
        record = self.jobs[str(job_id)]
        attempt = record.attempt
        if record.stage != "running" or attempt is None or attempt.begun:
            self.fault("run", f"{record.id} begins while it is {record.stage}")
        if record.call is not call:
            self.fault("run", f"{record.id} runs the call of another")
        attempt = attempt or Attempt(record, self._time())
        attempt.begun = True
        self.look()
        return attempt

    def leave(self, attempt: Attempt, value: object, error: BaseException | None) -> None:
        """Record that the code of an attempt has ended."""
        attempt.gone = True
        attempt.gone_at = self._time()
        attempt.value = value
        attempt.error = error
        if attempt.settled:
            self.occupied.pop(attempt, None)

    def offer(self, call: Call) -> Offer:
        """Record that a call is submitted now."""
        self._offer = Offer(call)
        return self._offer

    def taken(self, call: Call, job_id: str) -> None:
        """Record that a submit returned a ticket."""
        record = self.jobs.get(job_id)
        if record is None or record.stage == "parked":
            self.fault("resolution", f"ticket {job_id} stands for a job that was never accepted")
            return
        record.held = True
        if record.call is not call and not call.is_keyed:
            self.fault("resolution", f"call #{call.number} got the ticket of another")

    def turned_away(self, offer: Offer) -> None:
        """Record that a submit raised."""
        for record in self.jobs.values():
            if record.offer is offer and not offer.call.is_keyed:
                self._parked.pop(record.id, None)
                # If it was admitted just when its submitter gave up, the pool has to cancel it,
                # unless it was over before.
                record.excused = True
                record.held = record.stage == "over"

    def excuse(self, job_id: str) -> None:
        """Record that this job is to be cancelled."""
        record = self.jobs.get(job_id)
        if record is not None:
            record.excused = True

    def hear(
        self, job_id: str, since: float, value: object, error: BaseException | None = None
    ) -> None:
        """Record the answer to a caller that awaited a ticket."""
        record = self.jobs[job_id]
        if record.final is None:
            self.fault("resolution", f"{job_id}: an outcome before its end: {error!r}")
            return
        if self._time() > max(since, record.ended_at) + TINY:
            late = self._time() - max(since, record.ended_at)
            self.fault("resolution", f"a caller of {job_id} hears of it {late:g} s late")
        self._check_outcome(record, value, error)

    def look(self) -> None:
        """Compare a snapshot with the known facts; between two steps of the pool."""
        if self.snapshot is None:
            return
        shown = self.snapshot()
        waiting = shown.queued + shown.blocked + shown.scheduled
        running = shown.active + shown.stuck
        if _sum(shown) != shown.total:
            self.fault("counters", f"total {shown.total}, states add up to {_sum(shown)}")
        if shown.max_concurrent != max(self.size, running):
            self.fault("cap", f"{running} run of {shown.max_concurrent}, asked for {self.size}")
        known = (self._active, self._waiting, self._accepted)
        if known != (shown.active, waiting, shown.total):
            self.fault(
                "counters",
                f"active {shown.active}, waiting {waiting}, total {shown.total}; {known}",
            )
        if any(getattr(shown, status) != self.seen[status] for status in FINAL):
            self.fault("counters", f"ended jobs: {dict(self.seen)}")
        self._look_at_slots(shown)
        self._look_at_places(shown, waiting, running)

    def _look_at_slots(self, shown: Any) -> None:
        now = self._time()
        for attempt in [one for one in self._unseen if one.at + THREAD_SECONDS < now]:
            del self._unseen[attempt]
        least = 0
        for attempt in self.occupied:
            least += attempt.settled
            if attempt.gone and now > attempt.gone_at + TINY:
                self.fault("slot", f"the code of {attempt.record.id} is gone, its slot is not free")
        if not least <= shown.stuck <= least + len(self._unseen):
            self.fault("stuck", f"{shown.stuck} slots, known are {least}")
        states = Counter(
            "stuck" if worker.stuck else RESTING.get(worker.state, "busy")
            for worker in shown.workers.values()
        )
        if (states["busy"], states["stuck"]) != (shown.active, shown.stuck):
            self.fault("slot", f"the workers are {dict(states)}")
        if states["idle"] < self.size - shown.active - shown.stuck:
            self.fault("slot", f"lost: the workers are {dict(states)} of {self.size}")
        paused = self.paused or (self.deadline is not None and now >= self.deadline - TINY)
        if shown.queued and not paused and shown.active + shown.stuck < self.size:
            self.fault("slot", f"idle while {shown.queued} jobs are queued")
        if shown.paused and not paused:
            self.fault("pause", "the pool is paused, and nobody asked for it")

    def _look_at_places(self, shown: Any, waiting: int, running: int) -> None:
        bound = self._plan.bound
        if bound is None:
            return
        if waiting > max(bound, self._swollen):
            self.fault("bound", f"{waiting} wait in {bound} places")
        has_room = waiting < bound and running + waiting < self.size + bound
        if shown.blocked_submitters and has_room and not shown.draining:
            self.fault("parked", f"{shown.blocked_submitters} submitters wait for a free place")

    # Judging

    def _meet(self, job: Any, stage: str) -> Record:
        assert self._offer is not None
        if job.id in self.jobs:
            self.fault("resolution", f"{job.id} was accepted twice")
        record = self.jobs[job.id] = Record(job, self._offer, len(self.jobs), stage)
        return record

    def _known(self, job: Any, stage: str) -> Record:
        record = self.jobs[job.id]
        if record.stage != stage:
            self.fault("resolution", f"{job.id} was {record.stage}, not {stage}")
        return record

    def _settle(self, record: Record) -> Attempt:
        attempt = record.attempt
        assert attempt is not None
        attempt.settled = True
        self._active -= 1
        if attempt.gone or not attempt.begun:
            self.occupied.pop(attempt, None)
        limit = record.call.timeout
        # A job that is asked to stop has its grace instead of the rest of its timeout.
        if (
            limit is not None
            and attempt.told != "cancel"
            and self._time() > attempt.at + limit + HARD_STOP_SECONDS
        ):
            self.fault("timeout", f"{record.id} ran {self._time() - attempt.at:g} s of {limit:g}")
        return attempt

    def _check_full(self, what: str) -> None:
        assert self.snapshot is not None
        shown = self.snapshot()
        waiting, running = self._waiting, shown.active + shown.stuck
        bound = self._plan.bound or 0
        room = running + waiting < self.size + bound
        if room and (waiting < bound or self._plan.policy == "fail_fast"):
            self.fault("refusal", f"{what}: {running} run in {self.size} slots, {waiting} wait")

    def _check_ending(self, record: Record) -> None:
        job, attempt = record.final, record.attempt
        running = attempt is not None and attempt.gone
        error = attempt.error if attempt is not None else None
        match job.status.value:
            case "completed":
                if not running or error is not None or job.result != attempt.value:  # type: ignore[union-attr]
                    self.fault("outcome", f"{job.id} completed with {job.result!r}")
            case "failed":
                if job.attempts > record.call.attempts or job.error is None:
                    self.fault("attempts", f"{job.id} failed after {job.attempts}")
            case "cancelled":
                itself = running and type(error).__name__ == "CancelledError"
                stopped = self.deadline is not None and self._time() >= self.deadline - TINY
                # A caller with cancel_with_caller reports its end after the job has ended.
                record.excused = record.excused or itself or stopped
            case "expired":
                if "expires" not in record.call.options:
                    self.fault("outcome", f"{job.id} expired")
            case "rejected" if job.rejection_policy == "draining":
                if self.deadline is None or self._time() < self.deadline - TINY:
                    self.fault("drain", f"{job.id} was rejected before the deadline")

    def _check_outcome(self, record: Record, value: object, error: BaseException | None) -> None:
        job, kind = record.final, type(error).__name__
        own = record.attempt.error if record.attempt is not None else None
        match job.status.value:
            case "completed":
                good = error is None and value == job.result
            case "failed" if kind == "JobTimedOut" and error is not own:
                good = "hard_timeout" in job.marks or "soft_timeout" in job.marks
            case "failed" if kind == "JobFailed" and error is not own:
                cause = error.__cause__ if error is not None else None
                good = isinstance(cause, WRAPPED)
            case "failed":
                good = error is own and error is not None
            case status:
                good = kind == {"cancelled": "JobCancelled"}.get(status, f"Job{status.title()}")
        if not good:
            self.fault("outcome", f"{job.id} is {job.status}, its caller got {value!r} {error!r}")

    # The end

    def conclude(self, report: Any) -> None:
        """Judge the rest when the pool is drained and every caller has its answer."""
        if self.open:
            self.fault("resolution", f"{self.open} callers were never told")
        for record in self.jobs.values():
            if record.stage in ("waiting", "running"):
                self.fault("resolution", f"{record.id} is left {record.stage}")
            cancelled = record.final is not None and record.final.status == "cancelled"
            ran = record.stage == "over" and not cancelled
            if ran and not record.held and not record.call.is_keyed:
                self.fault("orphan", f"{record.id} was accepted though its submit raised")
            # A caller that was cancelled while parked cancelled its job as that was admitted.
            left = not record.held and record.call.options.get("cancel_with_caller")
            if cancelled and not record.excused and not left:
                self.fault("outcome", f"{record.id} was cancelled by nobody")
            if record.starts - record.snoozes > record.call.attempts:
                self.fault("attempts", f"{record.id} was started {record.starts} times")
        ended = {status: getattr(report, status) for status in FINAL}
        if report.submitted != self._accepted or any(
            count != self.seen[status] for status, count in ended.items()
        ):
            self.fault("drain", f"the report says {report}, seen were {dict(self.seen)}")
        if self._plan.on_dead and self.seen["failed"] != len(set(self.told_dead)):
            self.fault("callback", f"on_dead heard of {len(set(self.told_dead))} dead jobs")
        if len(set(self.told_dead)) != len(self.told_dead):
            self.fault("callback", "on_dead heard of a job twice")

    def check_empty(self) -> None:
        """Judge the slots when no code of any job is left."""
        assert self.snapshot is not None
        self.look()
        shown = self.snapshot()
        if shown.active or shown.stuck or shown.blocked_submitters:
            self.fault("slot", f"{shown.active} active, {shown.stuck} stuck after the end")
        if any(worker.state not in RESTING for worker in shown.workers.values()):
            self.fault("slot", f"not idle after the end: {shown.workers}")


def _sum(shown: Any) -> int:
    total: int = (
        shown.active + shown.queued + shown.blocked + shown.scheduled + shown.completed
        + shown.failed + shown.cancelled + shown.rejected + shown.expired
    )  # fmt: skip
    return total


def _order(record: Record) -> int:
    return record.order
