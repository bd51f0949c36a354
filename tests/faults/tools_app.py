"""The app of the row of tools: its jobs call tools whose effects are lines in a file outside.

The signing key and the codec differ from process to process, and so does the order of a set of
texts.
"""

from __future__ import annotations

import os
from random import Random
from typing import Any

from poolhand import App, Retry, Snooze, current_job, tool, tool_context
from poolhand.settings import KeyRing, Wire
from tests.faults import bodies, outside

KEYS = {"a": b"a" * 32, "b": b"b" * 32}
RING = KeyRing(KEYS, current=os.environ.get("FAULTS_RING", "a"))
CODEC = os.environ.get("FAULTS_CODEC", "json")
SOON = 0.02  # seconds for which other runs may use a result
STEP = 0.03  # seconds that a part of a call takes
SNOOZE = 0.1
EXPIRES_IN = 3  # one job in so many sleeps until its receipts have expired
random = Random()

app = App(os.environ["FAULTS_URL"], wire=Wire(ring=RING, codec=CODEC))


def note(what: str, number: int, name: str = "", **more: Any) -> None:
    """Record, outside, the progress of a job."""
    job = current_job()
    assert job is not None
    about = {"number": number, "tool": name, "job": job.id, "run": job.run, "pid": os.getpid()}
    bodies.effects.write(what, life=bodies.LIFE, **about, **more)


async def act(number: int, name: str) -> str:
    """Do what must happen once: append a line."""
    key = tool_context().idempotency_key
    note("enter", number, name, key=key)
    await bodies.while_passing(STEP * random.random())
    note("effect", number, name, key=key)
    await bodies.while_passing(STEP * random.random())
    note("leave", number, name, key=key)
    await bodies.while_passing(STEP * random.random())
    return f"{name} {number}"


def happened(number: int, name: str) -> str | None:
    """Look outside whether something has happened."""
    lines = outside.read(bodies.FOLDER / outside.EFFECTS)
    found = any(
        (one["what"], one["number"], one["tool"]) == ("effect", number, name) for one in lines
    )
    return f"{name} {number}" if found else None


@tool(name="pay")
async def pay(number: int, items: set[str]) -> str:
    """A `once` tool without `verify`: after a kill its outcome is unknown."""
    return await act(number, "pay")


@tool(name="book", verify=lambda number, items: happened(number, "book"))
async def book(number: int, items: set[str]) -> str:
    """A `once` tool with `verify`."""
    return await act(number, "book")


@tool(name="remind", scope="global", key_fields=["number", "items"], dedupe_ttl=SOON)
async def remind(number: int, items: set[str]) -> str:
    """Must happen once for its run, and for others within a moment."""
    return await act(number, "remind")


ALL = (pay, book, remind)


@app.task(name="agent", retry=Retry(attempts=100, first=0.0, jitter=0.0), timeout=60.0)
async def agent(number: int) -> list[str]:
    """Call all tools, some of them again after their receipts have expired for others."""
    note("begin", number)
    items = {f"item {number} {index}" for index in range(6)}
    made = []
    first = number % len(ALL)
    for call in ALL[first:] + ALL[:first]:
        made.append(await call(number, items))
        note("kept", number, call.terms.name)
    if number % EXPIRES_IN == 0 and not slept(number):
        note("slept", number)
        raise Snooze(SNOOZE)
    note("end", number)
    return made


def slept(number: int) -> bool:
    """Return whether this job has slept before, in any process."""
    lines = outside.read(bodies.FOLDER / outside.EFFECTS)
    return any(one["what"] == "slept" and one["number"] == number for one in lines)
