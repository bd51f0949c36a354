"""The ledger: what the demo shows, put together from the events of the pool."""

from __future__ import annotations

import re
import time
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from poolhand import Event, Job, Status
from poolhand.observe.events import (
    DrainSlow,
    DrainStarted,
    JobEnded,
    JobMarked,
    JobRetried,
    JobStarted,
    JobSubmitted,
    LoopBlocked,
    PoolResized,
    SlotFreed,
    SlotStuck,
    SubmitterParked,
    WorkerVanished,
)
from stage.plan import Session

RECENT = 5.0  # seconds that "now" means for rates and shares
BUCKET = 0.5
KEPT_WAITS = 5_000
KEPT_NEWS = 200
HEADLINE_SECONDS = 4.0
BAD = "bad"
GOOD = "good"
PLAIN = "plain"
FRAME = re.compile(r'File "(.+)", line (\d+), in (\S+)')


@dataclass(slots=True)
class Figures:
    """What one tenant has had of the pool."""

    sessions: int = 0
    turns: int = 0
    waiting: int = 0
    running: int = 0
    retried: int = 0
    doubled: int = 0
    refused: int = 0
    ended: Counter[Status] = field(default_factory=Counter)
    waits: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT_WAITS))

    def wait(self, share: float) -> float | None:
        """Return the wait that this share of the turns did not exceed."""
        ordered = sorted(self.waits)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else None


@dataclass(frozen=True, slots=True)
class News:
    """One line of the ticker."""

    at: float
    tenant: str
    text: str
    tone: str = PLAIN
    headline: bool = False


@dataclass(slots=True)
class Incidents:
    """What happened to the pool rather than to a tenant; `resized` is the latest change of size."""

    grown: int = 0
    shrunk: int = 0
    most_slots: int = 0
    resized: str = ""
    blocked: int = 0
    blocker: str = ""
    killed: int = 0
    recovered: int = 0


class Ledger:
    """Listens to the pool, on its event loop, and keeps figures that are bounded in size."""

    def __init__(self, tenants: Iterable[str]) -> None:
        self.tenants = {name: Figures() for name in tenants}
        self.news: deque[News] = deque(maxlen=KEPT_NEWS)
        self.headlines: deque[News] = deque(maxlen=KEPT_NEWS)
        self.incidents = Incidents()
        self.round = 0
        self.planned = 0
        self.began = time.monotonic()
        self.slots: dict[str, tuple[Job, float]] = {}
        self._titles: dict[str, str] = {}
        self._running: set[str] = set()
        self._orphans: set[str] = set()
        self._starts: deque[tuple[float, str]] = deque()
        self._buckets: Counter[int] = Counter()
        self._parked_at = 0.0

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self.began

    @property
    def ended(self) -> int:
        return sum(figures.ended.total() for figures in self.tenants.values())

    def title(self, job: Job) -> str:
        """Return what a job is about, as its user wrote it."""
        return self._titles.get(job.session or "", "")

    def rate(self) -> float:
        """Return how many turns per second ended lately."""
        now = self.elapsed
        span = min(RECENT, max(now, BUCKET))
        first = int((now - span) / BUCKET)
        return sum(count for bucket, count in self._buckets.items() if bucket > first) / span

    def history(self, length: int) -> list[int]:
        """Return how many turns ended in each of the latest half seconds, oldest first."""
        last = int(self.elapsed / BUCKET)
        return [self._buckets[bucket] for bucket in range(last - length, last)]

    def latest(self, count: int) -> list[News]:
        """Return the latest news, in which headlines keep their place for a few seconds."""
        news = list(self.news)
        since = self.elapsed - HEADLINE_SECONDS
        kept = [one for one in news if one.headline and one.at > since][-((count + 1) // 2) :]
        others = [one for one in reversed(news) if one not in kept][: count - len(kept)]
        return sorted([*kept, *others], key=lambda one: one.at)

    def shares(self) -> dict[str, float]:
        """Return which part of the turns that began lately was whose."""
        while self._starts and self._starts[0][0] < self.elapsed - RECENT:
            self._starts.popleft()
        counts = Counter(tenant for _, tenant in self._starts)
        total = counts.total() or 1
        return {tenant: counts[tenant] / total for tenant in self.tenants}

    # What the traffic tells

    def begin_round(self, number: int, sessions: list[Session]) -> None:
        self.round = number
        self.planned += sum(len(session.turns) for session in sessions)
        if number > 1:
            self._tell("", f"round {number}: {len(sessions)} more sessions", GOOD)

    def begin_session(self, session: Session) -> None:
        self._titles[session.id] = session.title
        self.tenants[session.tenant].sessions += 1

    def end_session(self, session: Session) -> None:
        self._titles.pop(session.id, None)

    def note_double(self, session: Session) -> None:
        self.tenants[session.tenant].doubled += 1
        self._tell(session.tenant, f"{session.id} sent twice, runs once", GOOD)

    def note_refusal(self, session: Session) -> None:
        self.tenants[session.tenant].refused += 1

    # What the pool tells

    def hear(self, event: Event) -> None:
        """Take in one event of the pool."""
        match event:
            case JobSubmitted(job=job):
                figures = self._figures(job)
                figures.turns += 1
                figures.waiting += 1
            case JobStarted(job=job, slot=slot):
                self._start(job, slot)
            case JobRetried(job=job):
                self._retry(job)
            case JobEnded(job=job):
                self._end(job)
            case SubmitterParked(job=job, blocked_submitters=parked):
                self._park(job, parked)
            case _:
                self._hear_rare(event)

    def _hear_rare(self, event: Event) -> None:
        match event:
            case JobMarked(job=job, mark=mark) if mark != "cancel":
                self._tell_of(job, f"told to stop by its {mark.replace('_', ' ')}", BAD)
            case SlotStuck(job=job, slot=slot):
                self._tell_of(job, f"does not stop, {slot} is stuck", BAD)
            case SlotFreed(slot=slot):
                self._tell("", f"{slot} is free again", GOOD)
            case DrainStarted(waiting=waiting, running=running):
                self._tell("", f"draining {waiting} waiting and {running} running", GOOD)
            case DrainSlow(seconds_left=left):
                self._tell("", f"the drain is slow, {left:.1f} s left", BAD)
            case _:
                self._hear_incident(event)

    def _hear_incident(self, event: Event) -> None:
        incidents = self.incidents
        match event:
            case PoolResized(before=before, after=after, why=why):
                incidents.grown += after > before
                incidents.shrunk += after < before
                incidents.most_slots = max(incidents.most_slots, before, after)
                incidents.resized = f"{before} → {after} slots: {why}"
                self._headline("", incidents.resized, GOOD)
            case LoopBlocked(job=job, seconds=seconds, stack=stack):
                # Told by the thread of the watchdog, while the loop stands still.
                who, tenant = ("no job", "") if job is None else (str(job.session), job.key)
                incidents.blocked += 1
                incidents.blocker = who
                text = f"{who} blocks the event loop, {seconds:.2f} s by now: {_place(stack)}"
                self._headline(tenant, text, BAD)
            case WorkerVanished(job=job, why=why):
                incidents.killed += 1
                self._orphans.add(job.id)
                reason = why.partition(" was lost: ")[2] or why
                self._headline(job.key, f"{job.session}: {reason}", BAD)
            case _:
                pass

    def _start(self, job: Job, slot: str) -> None:
        figures = self._figures(job)
        figures.waiting -= 1
        figures.running += 1
        self._running.add(job.id)
        self.slots[slot] = (job, time.monotonic())
        self._starts.append((self.elapsed, job.key))
        if job.attempts == 1 and job.waited is not None:
            figures.waits.append(job.waited)

    def _retry(self, job: Job) -> None:
        figures = self._figures(job)
        figures.retried += 1
        figures.running -= 1
        figures.waiting += 1
        self._running.discard(job.id)
        why = job.error.message if job.error is not None else "asked for it"
        if job.id in self._orphans:
            self._headline(job.key, f"{job.session} runs again, in another process")
            return
        if "timeout" in why:
            why = "timed out"
        self._tell_of(job, f"runs again: {why}")

    def _end(self, job: Job) -> None:
        figures = self._figures(job)
        if job.id in self._running:
            self._running.remove(job.id)
            figures.running -= 1
        else:
            figures.waiting -= 1
        figures.ended[job.status] += 1
        self._buckets[int(self.elapsed / BUCKET)] += 1
        if len(self._buckets) > 1_000:
            del self._buckets[min(self._buckets)]
        if job.id in self._orphans:
            self._orphans.remove(job.id)
            self.incidents.recovered += job.status is Status.COMPLETED
            text = f"{job.session} {job.status.value} at attempt {job.attempts}"
            self._headline(job.key, text, GOOD if job.status is Status.COMPLETED else BAD)
        elif job.status is Status.FAILED:
            why = job.error.message if job.error is not None else "no reason given"
            self._tell_of(job, f"failed: {why}", BAD)
        elif job.status is not Status.COMPLETED:
            self._tell_of(job, job.status.value)
        elif job.marks and job.attempts == 1:
            self._tell_of(job, "answered in short after its soft timeout", GOOD)

    def _park(self, job: Job, parked: int) -> None:
        if self.elapsed - self._parked_at > 2.0:
            self._parked_at = self.elapsed
            self._tell(job.key, f"pool full, {parked} of its submitters wait for a place")

    def _figures(self, job: Job) -> Figures:
        return self.tenants[job.key]

    def _tell_of(self, job: Job, text: str, tone: str = PLAIN) -> None:
        self._tell(job.key, f"{job.session} {text} ({self.title(job)})", tone)

    def _tell(self, tenant: str, text: str, tone: str = PLAIN) -> None:
        self.news.append(News(self.elapsed, tenant, text, tone))

    def _headline(self, tenant: str, text: str, tone: str = PLAIN) -> None:
        """Tell what is worth a line in a pipe as well."""
        news = News(self.elapsed, tenant, text, tone, headline=True)
        self.news.append(news)
        self.headlines.append(news)


def _place(stack: str) -> str:
    """Return the innermost line of a stack: file, line and function."""
    frames = FRAME.findall(stack)
    if not frames:
        return "somewhere"
    path, line, function = frames[-1]
    return f"{function}, {Path(path).name} line {line}"
