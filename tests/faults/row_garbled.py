"""The row of random bytes: stored requests and wake-ups that cannot be read."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from random import Random

import msgspec

from poolhand.contract import JobBatch, JobRequest
from poolhand.durable.calls.call_record import CallRecord, write_call_record
from poolhand.rules.job import Job, Status
from poolhand.runtime import Runtime
from poolhand.stores.sqlite.wake import folder_of
from tests.faults import outside
from tests.faults.aim import Progress
from tests.faults.checker import Verdict, check
from tests.faults.crew import begin, until
from tests.faults.ground import SQLITE, Ground
from tests.faults.history import History
from tests.faults.load import Item, Plan
from tests.faults.opened import opened
from tests.faults.rows import Settings

GOOD, GARBLED = 100, 50
HINTS = 200
LONGEST = 4000
LIFE = "harness"


def garbled(ground: Ground, settings: Settings) -> Verdict:
    """Put random bytes into stored requests and wake-ups while others work."""
    random = Random(f"garbled {settings.seed}")
    bad = [Item(GOOD + number, "garbled", lane=1) for number in range(GARBLED)]
    plan = Plan((*(Item(number, "brief", 0.02) for number in range(GOOD)), *bad))
    with begin(ground, plan) as crew:
        progress = Progress(ground.folder, plan)
        crew.start("one", lanes=[0], pause=0.02, slots=4)
        crew.start("other", slots=4)
        until("they work", progress.look)
        asyncio.run(hand_in(ground, bad, random))
        settings.say(f"{GARBLED} orders of random bytes are in, and {hint(ground, random)} hints")
        crew.finish()
    verdict = check(ground.folder)
    history = History(ground.folder)
    if ran := [run.job for run in history.attempts if run.number >= GOOD]:
        verdict.faults.append(f"unfounded_effect: {ran} ran, though nobody can have read them")
    verdict.figures["garbled"] = sum(job["dead"] for job in history.jobs.values())
    return verdict


async def hand_in(ground: Ground, items: list[Item], random: Random) -> None:
    """Store unreadable requests, as a user with write access could."""
    acks = outside.Lines(ground.folder / outside.ACKS)
    async with opened(ground.url) as store:
        for item in items:
            id, mark = f"garbled-{item.number}", f"{LIFE}/{item.number}"
            job = Job(
                id=id,
                pool=item.pool,
                pool_id="",
                status=Status.QUEUED,
                submitted_at=Runtime().wall(),
                name=f"{item.pool}.{item.task}",
                user=mark,
            )
            acks.write("asked", number=item.number, mark=mark, life=LIFE)
            await store.add([JobBatch((JobRequest(job, noise(random)),))])
            acks.write("ack", number=item.number, mark=mark, job=id)
    acks.close()


def noise(random: Random) -> bytes:
    """Return bytes that are not a request, some of them nearly one."""
    some = random.randbytes(random.randrange(LONGEST))
    brief = write_call_record(CallRecord("plain.garbled", some))
    match random.randrange(5):
        case 0:
            return some
        case 1:
            return b""
        case 2:
            return brief[: random.randrange(len(brief))]
        case 3:
            return msgspec.msgpack.encode([some, {"task": 1}])
        case _:
            return brief


def hint(ground: Ground, random: Random) -> int:
    """Send random bytes to all wake-up sockets; return how often."""
    return (_send if ground.store == SQLITE else _notify)(ground, random)


def _send(ground: Ground, random: Random) -> int:
    sent = 0
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as speaker:
        speaker.setblocking(False)
        for _ in range(HINTS):
            for listener in Path(folder_of(str(ground.folder / outside.STORE))).iterdir():
                try:
                    speaker.sendto(random.randbytes(random.randrange(LONGEST)), str(listener))
                except OSError:
                    continue  # It is gone, or its buffer is full.
                sent += 1
    return sent


def _notify(ground: Ground, random: Random) -> int:
    from poolhand.stores.postgres.connections import address_of
    from poolhand.stores.postgres.notify import PostgresSignals

    channel = PostgresSignals(address_of(ground.url), Runtime()).channel
    letters = [chr(code) for code in range(1, 0x2000) if chr(code) not in "'\\"]
    for _ in range(HINTS // 10):
        many = (
            f"NOTIFY {channel}, '{''.join(random.choices(letters, k=1000))}'" for _ in range(10)
        )
        ground.server.query(";".join(many), ground.url)
    return HINTS
