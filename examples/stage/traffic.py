"""The traffic: users who talk to agents, and one tenant that sends everything at once."""

from __future__ import annotations

import asyncio
from asyncio import Event, Queue, TaskGroup
from collections import Counter
from collections.abc import Awaitable, Callable

from poolhand import Ticket, wait
from poolhand.errors import Unavailable
from poolhand.operate.actions import Operator
from poolhand.views import Status
from stage.flags import Flags
from stage.kept import Kept
from stage.ledger import Ledger
from stage.plan import Habit, Session, Turn, make_round

IMPORTERS = 3
STILL_OPEN = 0.1
AGAIN_AFTER = 0.5

AfterRound = Callable[[], Awaitable[None]]


class Traffic:
    """All submitters.

    Counts from the callers' side how many jobs were `accepted` and which outcomes they `heard`, to
    compare them with the store. `open` are jobs without an outcome; `unknown` counts interrupted
    submits, which may have been accepted or not.
    """

    def __init__(self, kept: Kept, ledger: Ledger, flags: Flags, mark: str) -> None:
        self.accepted = 0
        self.heard: Counter[Status] = Counter()
        self.open: set[str] = set()
        self.unknown = 0
        self.lost = 0
        self.left = 0
        self._kept = kept
        self._ledger = ledger
        self._flags = flags
        self._mark = mark
        self._pace = kept.pace
        self._done = Event()
        self._talking = 0
        self._burst: Queue[Session] = Queue()

    async def run(self, after_round: AfterRound) -> None:
        """Send one round, or round after round; return when every caller has its outcome."""
        async with TaskGroup() as crowd:
            importers = [crowd.create_task(self._import(crowd)) for _ in range(IMPORTERS)]
            await self._send(crowd, 1)
            number = 1
            while not self._flags.once:
                await after_round()
                number += 1
                await self._send(crowd, number)
            while self._talking:
                self._done.clear()
                await self._done.wait()
            for importer in importers:
                importer.cancel()

    async def settle(self, operator: Operator) -> None:
        """Look up the outcomes of jobs that no caller awaits any more."""
        for id in sorted(self.open):
            job = await operator.job(id)
            if job is None:
                self.lost += 1
            elif job.status.terminal:
                self.heard[job.status] += 1
            else:
                self.left += 1
        self.open.clear()

    async def _send(self, crowd: TaskGroup, number: int) -> None:
        """Begin the sessions of a round at their times; wait until the next one may come."""
        sessions = make_round(self._flags, number)
        self._ledger.begin_round(number, sessions)
        passed = 0.0
        for session in sessions:
            await self._pause(session.starts_at - passed)
            passed = max(passed, session.starts_at)
            self._talking += 1
            if session.burst:
                self._burst.put_nowait(session)
            else:
                crowd.create_task(self._converse(session))
        if self._flags.once:
            return
        await self._pause(self._flags.seconds - passed)
        while self._talking > len(sessions) * STILL_OPEN:
            await self._pause(0.1)

    async def _converse(self, session: Session) -> None:
        """Ask, wait for the answer, think about it, ask again."""
        self._ledger.begin_session(session)
        for turn in session.turns:
            await self._hear(await self._submit(session, turn), turn)
            await self._pause(turn.pause)
        self._end(session)

    async def _import(self, crowd: TaskGroup) -> None:
        """Submit one session after the other, as fast as the pool allows."""
        while True:
            session = await self._burst.get()
            self._ledger.begin_session(session)
            tickets = [await self._submit(session, turn) for turn in session.turns]
            crowd.create_task(self._follow(session, tickets))

    async def _follow(self, session: Session, tickets: list[Ticket[str]]) -> None:
        for ticket, turn in zip(tickets, session.turns, strict=True):
            await self._hear(ticket, turn)
        self._end(session)

    async def _submit(self, session: Session, turn: Turn) -> Ticket[str]:
        """Submit a turn; one that is sent twice is one job."""
        times = 2 if turn.habit is Habit.DOUBLED else 1
        tickets = await asyncio.gather(*(self._submit_once(session, turn) for _ in range(times)))
        jobs = {ticket.id for ticket in tickets}
        self.accepted += len(jobs)
        self.open |= jobs
        if len(jobs) < times:
            self._ledger.note_double(session)
        return tickets[0]

    async def _submit_once(self, session: Session, turn: Turn) -> Ticket[str]:
        task = self._kept.task_for(turn).with_options(
            tenant_id=session.tenant,
            user=session.user,
            session=session.id,
            idempotency_key=f"{self._mark}/{session.id}/{turn.number}",
        )
        self.unknown += 1
        while True:
            try:
                ticket = await task.submit(turn, self._pace)
            except Unavailable:
                # Accepted or not, it can be submitted again under its key.
                await asyncio.sleep(AGAIN_AFTER)
            else:
                self.unknown -= 1
                return ticket

    async def _hear(self, ticket: Ticket[str], turn: Turn) -> None:
        """Wait for the outcome of a turn; some users cancel it."""
        if turn.habit is Habit.ABANDONED:
            job = await wait(ticket, timeout=self._pace.patience)
            if not job.status.terminal:
                await ticket.cancel()
        job = await wait(ticket)
        self.heard[job.status] += 1
        self.open.discard(job.id)

    def _end(self, session: Session) -> None:
        self._ledger.end_session(session)
        self._talking -= 1
        self._done.set()

    async def _pause(self, seconds: float) -> None:
        if seconds > 0:
            await asyncio.sleep(self._pace.seconds(seconds))
