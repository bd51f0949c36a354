"""The traffic: users who talk to agents, and one tenant who sends everything at once."""

from __future__ import annotations

import asyncio
from asyncio import Event, Queue, TaskGroup
from collections import Counter
from contextlib import suppress

from poolhand import Draining, Pool, Status, Ticket, wait
from stage.agents import Pace, call_tool, rank, think
from stage.flags import Flags
from stage.ledger import Ledger
from stage.plan import Habit, Session, Turn, make_round

IMPORTERS = 3
STILL_OPEN = 0.1
IN_A_THREAD = {Habit.TOOL, Habit.HANGS}
IN_A_PROCESS = {Habit.RANKS, Habit.KILLED}
PROCESS_SECONDS = 30.0  # the first job of a process waits until it is up


class Traffic:
    """Everybody who submits to the pool.

    Counts from the callers' side what was `accepted` and what they `heard` of it, so that the
    pool's own figures can be held against it.
    """

    def __init__(self, pool: Pool, ledger: Ledger, flags: Flags) -> None:
        self.accepted = 0
        self.heard: Counter[Status] = Counter()
        self._pool = pool
        self._ledger = ledger
        self._flags = flags
        self._pace = Pace(flags.speed)
        self._stopping = Event()
        self._done = Event()
        self._open = 0
        self._burst: Queue[Session] = Queue()

    def stop(self) -> None:
        """Let nobody begin anything new."""
        self._stopping.set()

    async def run(self) -> None:
        """Send one round, or round after round; returns when every caller has heard the end."""
        async with TaskGroup() as crowd:
            importers = [crowd.create_task(self._import(crowd)) for _ in range(IMPORTERS)]
            await self._send(crowd, 1)
            number = 1
            while not self._flags.once and not self._stopping.is_set():
                number += 1
                await self._send(crowd, number)
            while self._open:
                self._done.clear()
                await self._done.wait()
            for importer in importers:
                importer.cancel()

    async def _send(self, crowd: TaskGroup, number: int) -> None:
        """Begin the sessions of a round at their times; wait until the next one may come."""
        sessions = make_round(self._flags, number)
        self._ledger.begin_round(number, sessions)
        passed = 0.0
        for session in sessions:
            if await self._pause(session.starts_at - passed):
                return
            passed = max(passed, session.starts_at)
            self._open += 1
            if session.burst:
                self._burst.put_nowait(session)
            else:
                crowd.create_task(self._converse(session))
        if await self._pause(self._flags.seconds - passed) or self._flags.once:
            return
        while self._open > len(sessions) * STILL_OPEN and not self._stopping.is_set():
            await self._pause(0.1)

    async def _converse(self, session: Session) -> None:
        """Ask, wait for the answer, think about it, ask again."""
        self._ledger.begin_session(session)
        for turn in session.turns:
            ticket = await self._submit(session, turn)
            if ticket is None:
                break
            await self._hear(ticket, turn)
            if await self._pause(turn.pause):
                break
        self._end(session)

    async def _import(self, crowd: TaskGroup) -> None:
        """Hand in one session after the other, as fast as the pool lets it."""
        while True:
            session = await self._burst.get()
            if self._stopping.is_set():
                self._end(session)
                continue
            self._ledger.begin_session(session)
            tickets = [await self._submit(session, turn) for turn in session.turns]
            crowd.create_task(self._follow(session, tickets))

    async def _follow(self, session: Session, tickets: list[Ticket[str] | None]) -> None:
        for ticket, turn in zip(tickets, session.turns, strict=True):
            if ticket is not None:
                await self._hear(ticket, turn)
        self._end(session)

    async def _submit(self, session: Session, turn: Turn) -> Ticket[str] | None:
        """Submit a turn; None when the pool takes nothing any more."""
        if turn.habit is not Habit.DOUBLED:
            ticket = await self._submit_once(session, turn)
            self.accepted += ticket is not None
            return ticket
        pair = await asyncio.gather(
            self._submit_once(session, turn), self._submit_once(session, turn)
        )
        tickets = [ticket for ticket in pair if ticket is not None]
        jobs = {ticket.id for ticket in tickets}
        self.accepted += len(jobs)
        if len(tickets) > len(jobs):
            self._ledger.note_double(session)
        return tickets[0] if tickets else None

    async def _submit_once(self, session: Session, turn: Turn) -> Ticket[str] | None:
        view = self._pool.with_options(
            tenant_id=session.tenant,
            tenant=session.tenant,
            user=session.user,
            session=session.id,
            idempotency_key=f"{session.id}/{turn.number}",
        )
        try:
            if turn.habit in IN_A_PROCESS:
                apart = view.with_options(
                    run_in="process", timeout=PROCESS_SECONDS, soft_timeout=None
                )
                return await apart.submit(rank, turn, self._pace)
            if turn.habit in IN_A_THREAD:
                return await view.submit(call_tool, turn, self._pace)
            return await view.submit(think, turn, self._pace)
        except Draining:
            self._ledger.note_refusal(session)
            return None

    async def _hear(self, ticket: Ticket[str], turn: Turn) -> None:
        """Wait for what becomes of a turn; some users lose patience."""
        if turn.habit is Habit.ABANDONED:
            job = await wait(ticket, timeout=self._pace.patience)
            if not job.status.terminal:
                await ticket.cancel()
        job = await wait(ticket)
        self.heard[job.status] += 1

    def _end(self, session: Session) -> None:
        self._ledger.end_session(session)
        self._open -= 1
        self._done.set()

    async def _pause(self, seconds: float) -> bool:
        """Let time pass; tell whether it is time to stop."""
        if seconds > 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._pace.seconds(seconds)):
                    await self._stopping.wait()
        return self._stopping.is_set()
