"""An agent of five steps and two tools that is killed once at one place, for each of its jobs.

Outside effects are written to a file. Started again, the program continues with the places
whose outcome it has not reported.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

from poolhand import App, Retry, Session, emit, step, tool, wait

URL, FOLDER = sys.argv[1], Path(sys.argv[2])
LEDGER, OUTCOMES = FOLDER / "ledger", FOLDER / "outcomes"
STEPS = ["s1", "s2", "pay", "s3", "s4", "mail", "s5"]
PLACES = [f"{when} {what}" for what in STEPS for when in ("before", "in", "after")]
LIMIT = 60

app = App(URL)


def die_at(place: str, wanted: str) -> None:
    mark = FOLDER / f"died {place}"
    if place == wanted and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)


def note(file: Path, line: object) -> None:
    # One write: appended at once.
    fd = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(fd, json.dumps(line).encode() + b"\n")
    os.close(fd)


def act(what: str, wanted: str) -> str:
    note(LEDGER, [wanted, what])
    die_at(f"in {what}", wanted)
    return what


@tool(effect="once")
async def pay(wanted: str) -> str:
    return act("pay", wanted)


def was_sent(wanted: str) -> str | None:
    done = [json.loads(line) for line in LEDGER.read_text().splitlines()]
    return "mail" if [wanted, "mail"] in done else None


@tool(effect="once", verify=was_sent)
async def mail(wanted: str) -> str:
    return act("mail", wanted)


@app.agent(retry=Retry(attempts=4, first=0.0, jitter=0.0))
async def agent(session: Session, wanted: str) -> list[str]:
    found = session.state["messages"]
    for what in STEPS:
        die_at(f"before {what}", wanted)
        await emit(what)
        match what:
            case "pay":
                found.append(await pay(wanted))
            case "mail":
                found.append(await mail(wanted))
            case _:
                found.append(await step(what, act, what, wanted))
        die_at(f"after {what}", wanted)
    return list(found)


async def main() -> None:
    told = OUTCOMES.read_text().splitlines() if OUTCOMES.exists() else []
    async with app, app.worker(), asyncio.timeout(LIMIT):
        for place in PLACES[len(told) :]:
            talk = agent.session(place)
            ticket = await talk.with_options(idempotency_key=place).submit(place)
            job = await wait(ticket)
            last = [event.data async for event in ticket.events()][-1]
            record, history = await talk.record(), await talk.history()
            state = None if record is None else record.state["messages"]
            tries = [one.status for one in history]
            error = "" if job.error is None else job.error.type
            note(OUTCOMES, [place, job.status.value, job.result, error, state, tries, last])


if __name__ == "__main__":
    asyncio.run(main())
