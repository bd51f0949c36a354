"""The ledger: figures of all processes together, read from the audit log of the store.

Every submit, start, retry and outcome is there, written with its change. So the figures are right
whatever dies, also for what a killed process could not report any more.
"""

from __future__ import annotations

from asyncio import Lock
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from poolhand.operate.actions import Operator
from poolhand.operate.views import AuditView, JobView
from poolhand.rules import audit
from poolhand.views import Status
from stage.agents import OPERATOR
from stage.kept import POOL
from stage.news import GOOD, Newsroom, jobs
from stage.plan import Session

RECENT = 5.0  # seconds that "now" means for rates and shares
BUCKET = 0.5
KEPT_WAITS = 5_000
LINES_AT_ONCE = 1_000
LOST = "poolhand.errors.JobLost"  # the error of an attempt whose process died


class Origin(StrEnum):
    """The origin of a job: a turn of this run, a retried dead letter, or an earlier run."""

    TURN = "turn"
    RERUN = "rerun"
    FOUND = "found"


@dataclass(slots=True)
class Known:
    """A job that is not over."""

    tenant: str
    origin: Origin
    running: bool = False


@dataclass(slots=True)
class Figures:
    """The share of one tenant in the pool."""

    sessions: int = 0
    turns: int = 0
    waiting: int = 0
    running: int = 0
    retried: int = 0
    doubled: int = 0
    rerun: int = 0
    done: int = 0
    ended: Counter[Status] = field(default_factory=Counter)
    waits: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT_WAITS))

    def wait(self, share: float) -> float | None:
        """Return the wait that this share of the turns did not exceed."""
        ordered = sorted(self.waits)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else None


class Ledger:
    """Figures of bounded size; `mark` is the prefix of the idempotency keys of this run.

    `recovered` counts jobs whose process died while it ran them, `recovered_over` those that have
    ended since.
    """

    def __init__(self, tenants: Iterable[str], newsroom: Newsroom, mark: str) -> None:
        self.tenants = {name: Figures() for name in tenants}
        self.newsroom = newsroom
        self.round = 0
        self.planned = 0
        self.submitted = 0
        self.ended: Counter[Status] = Counter()
        self.reruns: Counter[Status] = Counter()
        self.found = 0
        self.recovered = 0
        self.recovered_over = 0
        self.live: dict[str, Known] = {}
        self._mark = mark
        self._read = 0
        self._reading = Lock()
        self._done = 0
        self._orphans: set[str] = set()
        self._titles: dict[str, str] = {}
        self._starts: deque[tuple[float, str]] = deque()
        self._buckets: Counter[int] = Counter()

    @property
    def done(self) -> int:
        """The number of jobs that ended in this run, of any origin."""
        return self._done

    def alive(self, origin: Origin) -> int:
        """Count the jobs of this origin that are not over."""
        return sum(known.origin is origin for known in self.live.values())

    def title(self, session: str | None) -> str:
        """Return the topic of a session as its user wrote it; else its name."""
        return self._titles.get(session or "") or str(session)

    def rate(self) -> float:
        """Return how many jobs per second ended lately."""
        now = self.newsroom.elapsed
        span = min(RECENT, max(now, BUCKET))
        first = int((now - span) / BUCKET)
        return sum(count for bucket, count in self._buckets.items() if bucket > first) / span

    def history(self, length: int) -> list[int]:
        """Return how many jobs ended in each of the latest half seconds, oldest first."""
        last = int(self.newsroom.elapsed / BUCKET)
        return [self._buckets[bucket] for bucket in range(last - length, last)]

    def shares(self) -> dict[str, float]:
        """Return the share of each tenant in the jobs that began lately."""
        while self._starts and self._starts[0][0] < self.newsroom.elapsed - RECENT:
            self._starts.popleft()
        counts = Counter(tenant for _, tenant in self._starts)
        total = counts.total() or 1
        return {tenant: counts[tenant] / total for tenant in self.tenants}

    # Reports of the traffic

    def begin_round(self, number: int, sessions: list[Session]) -> None:
        self.round = number
        self.planned += sum(len(session.turns) for session in sessions)
        if number > 1:
            self.newsroom.tell("", f"round {number}: {len(sessions)} more sessions", GOOD)

    def begin_session(self, session: Session) -> None:
        self._titles[session.id] = session.title
        self.tenants[session.tenant].sessions += 1

    def end_session(self, session: Session) -> None:
        self._titles.pop(session.id, None)

    def note_double(self, session: Session) -> None:
        self.tenants[session.tenant].doubled += 1
        self.newsroom.tell(session.tenant, f"{session.id} sent twice, runs once", GOOD)

    # Records of the store

    async def begin(self, operator: Operator) -> None:
        """Begin at the end of the log."""
        last = await operator.last_audit(1)
        self._read = last[-1].number if last else 0

    def find(self, job: JobView) -> None:
        """Add a job that an earlier run has left."""
        self.found += 1
        self.planned += 1
        self.live[job.id] = Known(job.key, Origin.FOUND)
        self._figures(job.key).waiting += 1

    async def catch_up(self, operator: Operator) -> None:
        """Read the records since the last time."""
        # One at a time: a line that is read twice would count twice.
        async with self._reading:
            while lines := await operator.audit(self._read, LINES_AT_ONCE):
                for line in lines:
                    self._read = line.number
                    if line.pool == POOL:
                        self.take(line)

    def take(self, line: AuditView) -> None:
        """Add one line of the log."""
        id = line.job or ""
        if line.kind == audit.SUBMIT:
            self._submit(id, line)
            return
        known = self.live.get(id)
        if known is None:
            return
        match line.kind:
            case audit.DEQUEUE:
                self._start(known, line)
            case audit.RETRY:
                self._wait_again(id, known, line)
            case audit.OUTCOME:
                self._end(id, known, Status(line.record["status"]))
            case _:
                pass

    def _submit(self, id: str, line: AuditView) -> None:
        origin = Origin.FOUND
        figures = self._figures(line.record["key"])
        if line.by == OPERATOR:
            origin = Origin.RERUN
            figures.rerun += 1
            self.planned += 1
        elif str(line.record["idempotency_key"]).startswith(self._mark):
            origin = Origin.TURN
            figures.turns += 1
            self.submitted += 1
        figures.waiting += 1
        self.live[id] = Known(line.record["key"], origin)

    def _start(self, known: Known, line: AuditView) -> None:
        figures = self._figures(known.tenant)
        known.running = True
        figures.waiting -= 1
        figures.running += 1
        self._starts.append((self.newsroom.elapsed, known.tenant))
        if line.record["attempt"] == 1 and known.origin is Origin.TURN:
            figures.waits.append(line.record["queued_for_ms"] / 1000)

    def _wait_again(self, id: str, known: Known, line: AuditView) -> None:
        figures = self._figures(known.tenant)
        known.running = False
        figures.retried += 1
        figures.running -= 1
        figures.waiting += 1
        if line.record["error"] == LOST and id not in self._orphans:
            self.recovered += 1
            self._orphans.add(id)

    def _end(self, id: str, known: Known, status: Status) -> None:
        del self.live[id]
        figures = self._figures(known.tenant)
        if known.running:
            figures.running -= 1
        else:
            figures.waiting -= 1
        figures.done += 1
        self._done += 1
        if known.origin is Origin.TURN:
            figures.ended[status] += 1
            self.ended[status] += 1
        elif known.origin is Origin.RERUN:
            self.reruns[status] += 1
        self._buckets[int(self.newsroom.elapsed / BUCKET)] += 1
        if len(self._buckets) > 1_000:
            del self._buckets[min(self._buckets)]
        if id in self._orphans:
            self._orphans.remove(id)
            self.recovered_over += 1
            if not self._orphans:
                text = f"all {jobs(self.recovered)} whose process was killed have ended since"
                self.newsroom.headline("", text, GOOD)

    def _figures(self, tenant: str) -> Figures:
        return self.tenants.setdefault(tenant, Figures())
