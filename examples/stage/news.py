"""The news: events of all processes that are worth a line."""

from __future__ import annotations

import re
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path

from poolhand.observe.events import (
    JobEnded,
    JobMarked,
    JobRetried,
    LoopBlocked,
    OwnerReaped,
    SlotFreed,
    SlotStuck,
    StoreTrouble,
    SubmitterParked,
    WorkerVanished,
)
from poolhand.views import Event, Job, Status

KEPT_NEWS = 200
HEADLINE_SECONDS = 4.0
PARKED_EVERY = 2.0
BAD = "bad"
GOOD = "good"
PLAIN = "plain"
FRAME = re.compile(r'File "(.+)", line (\d+), in (\S+)')


@dataclass(frozen=True, slots=True)
class News:
    """One line of the ticker."""

    at: float
    tenant: str
    text: str
    tone: str = PLAIN
    headline: bool = False


class Newsroom:
    """Keeps the latest news; headlines are printed in a pipe as well."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self.latest_news: deque[News] = deque(maxlen=KEPT_NEWS)
        self.headlines: deque[News] = deque(maxlen=KEPT_NEWS)
        self.blocked = 0
        self.blocker = ""
        self._orphans: set[str] = set()
        self._parked_at = -PARKED_EVERY

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self.began

    def latest(self, count: int) -> list[News]:
        """Return the latest news, in which headlines keep their place for a few seconds."""
        news = list(self.latest_news)
        since = self.elapsed - HEADLINE_SECONDS
        kept = [one for one in news if one.headline and one.at > since][-((count + 1) // 2) :]
        others = [one for one in reversed(news) if one not in kept][: count - len(kept)]
        return sorted([*kept, *others], key=lambda one: one.at)

    def tell(self, tenant: str, text: str, tone: str = PLAIN) -> None:
        self.latest_news.append(News(self.elapsed, tenant, text, tone))

    def headline(self, tenant: str, text: str, tone: str = PLAIN) -> None:
        """Add a headline, which a pipe prints as well."""
        news = News(self.elapsed, tenant, text, tone, headline=True)
        self.latest_news.append(news)
        self.headlines.append(news)

    def hear(self, event: Event) -> None:
        """Add one event of any process."""
        match event:
            case JobRetried(job=job):
                self._retried(job)
            case JobEnded(job=job):
                self._ended(job)
            case JobMarked(job=job, mark=mark) if mark != "cancel":
                self._tell_of(job, f"told to stop by its {mark.replace('_', ' ')}", BAD)
            case SlotStuck(job=job, slot=slot):
                self._tell_of(job, f"does not stop, {slot} is stuck", BAD)
            case SlotFreed(slot=slot):
                self.tell("", f"{slot} is free again", GOOD)
            case SubmitterParked(job=job) if self.elapsed - self._parked_at > PARKED_EVERY:
                self._parked_at = self.elapsed
                self.tell(job.key, "the pool is full, its submitters wait for a place")
            case _:
                self._hear_incident(event)

    def _hear_incident(self, event: Event) -> None:
        match event:
            case LoopBlocked(job=None, seconds=seconds, stack=stack):
                # On a busy machine even the view may take long to paint.
                self.tell("", f"the event loop is late, {seconds:.2f} s by now: {_place(stack)}")
            case LoopBlocked(job=Job() as job, seconds=seconds, stack=stack):
                self.blocked += 1
                self.blocker = str(job.session)
                text = f"{seconds:.2f} s by now: {_place(stack)}"
                self.headline(job.key, f"{job.session} blocks the event loop, {text}", BAD)
            case WorkerVanished(job=job, why=why):
                self._orphans.add(job.id)
                reason = why.partition(" was lost: ")[2] or why
                self.headline(job.key, f"{job.session}: {reason}", BAD)
            case OwnerReaped(pid=pid, job_ids=ids):
                self.headline("", f"pid {pid} is gone; the {jobs(len(ids))} it ran go on", GOOD)
            case StoreTrouble(what=what, error=error):
                self.headline("", f"the store troubles the {what}: {error}", BAD)
            case _:
                pass

    def _retried(self, job: Job) -> None:
        why = job.error.message if job.error is not None else "it was given back"
        if job.id in self._orphans:
            self.headline(job.key, f"{job.session} runs again, in another process")
            return
        if "timeout" in why:
            why = "timed out"
        self._tell_of(job, f"runs again: {why}")

    def _ended(self, job: Job) -> None:
        if job.id in self._orphans:
            self._orphans.remove(job.id)
            text = f"{job.session} {job.status.value} at attempt {job.attempts}"
            self.headline(job.key, text, GOOD if job.status is Status.COMPLETED else BAD)
        elif job.status is Status.FAILED:
            why = job.error.message if job.error is not None else "no reason given"
            self._tell_of(job, f"is dead: {why}", BAD)
        elif job.status is not Status.COMPLETED:
            self._tell_of(job, job.status.value)
        elif job.marks and job.attempts == 1:
            self._tell_of(job, "answered in short after its soft timeout", GOOD)

    def _tell_of(self, job: Job, text: str, tone: str = PLAIN) -> None:
        self.tell(job.key, f"{job.session} {text}", tone)


def jobs(count: int) -> str:
    return "1 job" if count == 1 else f"{count} jobs"


def _place(stack: str) -> str:
    """Return the innermost line of a stack: file, line and function."""
    frames = FRAME.findall(stack)
    if not frames:
        return "somewhere"
    path, line, function = frames[-1]
    return f"{function}, {Path(path).name} line {line}"
