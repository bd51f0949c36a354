"""What a type checker infers from the public API: mypy over small programs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

SOURCE = Path(__file__).parents[2] / "src"

PRELUDE = """
import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from poolhand import (
    AgentRequest,
    App,
    Pool,
    Retry,
    Session,
    Ticket,
    agent_fanout,
    bounded,
    bounded_map,
    fair_round_robin,
    step,
    tool,
    wait,
)
from poolhand.settings import Autoscale, Keep
from poolhand.views import Explanation, FanoutResult, Job, PoolSnapshot, Status

async def review(number: int, *, deep: bool = False) -> str:
    return str(number)

def count(text: str, times: int = 1) -> int:
    return len(text) * times

class Agent:
    async def ask(self, question: str) -> list[str]:
        return [question]

    async def __call__(self, question: str) -> bytes:
        return question.encode()

async def nothing() -> None: ...

async def numbers() -> AsyncIterator[int]:
    yield 1

async def names() -> AsyncIterator[str]:
    yield "bees"

MINUTE = timedelta(minutes=1)

some: bool = bool(count("x"))

app = App("memory://")

@app.task
async def study(topic: str, *, deep: bool = False) -> list[str]:
    return [topic]

@app.task(pool="typed", timeout=5)
def tally(text: str, times: int = 1) -> int:
    return len(text) * times

@app.agent(pool="typed")
async def chat(session: Session, message: str) -> list[int]:
    return [len(message)]

@app.agent
async def talk(session: Session, number: int, *, deep: bool = False) -> str:
    return str(number)

@tool(effect="read")
async def look(where: str) -> bytes:
    return where.encode()

pool = Pool("typed", max_concurrent=2, queue=fair_round_robin(), backpressure=bounded(5))
view = pool.with_options(priority=1, key="k", tenant_id="acme")
"""

# The expectation for each line: the revealed type, or the code of the error.
REVEALED = {
    # an async function gives a ticket for its value, not for its coroutine
    "await pool.submit(review, 1984, deep=True)": "Ticket[str]",
    "pool.submit_nowait(review, 1984)": "Ticket[str]",
    "await view.submit(review, 1984)": "Ticket[str]",
    "await view.with_options(priority=2).submit(review, 1984)": "Ticket[str]",
    "await (await pool.submit(review, 1984))": "str",
    "await (await pool.submit(review, 1984)).result(timeout=5)": "str",
    "await pool.run(review, 1984)": "str",
    "await view.run(review, 1984)": "str",
    # so does a plain one
    "await pool.submit(count, 'x', times=2)": "Ticket[int]",
    "pool.submit_nowait(count, 'x')": "Ticket[int]",
    "await pool.run(count, 'x')": "int",
    # and every other callable
    "await pool.run(Agent().ask, 'why')": "list[str]",
    "await pool.run(Agent(), 'why')": "bytes",
    "await pool.run(lambda: review(1))": "str",
    "await pool.run(lambda: 5)": "int",
    "await pool.run(int, '7')": "int",
    "await pool.submit(nothing)": "Ticket[None]",
    # a list of them where there is one per item
    "await pool.map(review, [1, 2])": "list[str]",
    "await pool.map(review, range(3))": "list[str]",
    "await pool.map(review, numbers())": "list[str]",
    "await view.map(count, 'xyz')": "list[int]",
    "await pool.map(Agent().ask, {'why'})": "list[list[str]]",
    "await pool.map(Agent(), ('why', 'how'))": "list[bytes]",
    "await pool.map(lambda n: n + 1, [1, 2])": "list[int]",
    "await pool.map(review, [1], return_exceptions=False)": "list[str]",
    "await pool.map(review, [1], return_exceptions=True)": "list[str | BaseException]",
    "await pool.map(count, ['x'], return_exceptions=True)": "list[int | BaseException]",
    "await pool.map(count, ['x'], return_exceptions=some)": "list[int | BaseException]",
    "await bounded_map(review, [1, 2], limit=2)": "list[str]",
    "await bounded_map(count, ['x'], limit=2)": "list[int]",
    "await bounded_map(review, numbers(), limit=2)": "list[str]",
    "await bounded_map(review, [1], limit=2, return_exceptions=True)": "list[str | BaseException]",
    "await bounded_map(count, ['x'], limit=2, return_exceptions=True)": (
        "list[int | BaseException]"
    ),
    # and what became of each in a fan-out
    "await agent_fanout([nothing, lambda: 5])": "list[FanoutResult]",
    "await agent_fanout([AgentRequest(review, (1,), label='x')], 2)": "list[FanoutResult]",
    "await agent_fanout(AgentRequest(review, (n,)) for n in range(3))": "list[FanoutResult]",
    "await agent_fanout([{'call': review, 'args': (1,)}], max_parallel=2)": "list[FanoutResult]",
    "(await agent_fanout([nothing]))[0]['ok']": "bool",
    "(await agent_fanout([nothing]))[0]['index']": "int",
    "(await agent_fanout([nothing]))[0]['status']": "str",
    "(await agent_fanout([nothing]))[0]['error']": "str | None",
    "AgentRequest(review).timeout": "float | None",
    # what surrounds it
    "await wait(pool.submit_nowait(review, 1))": "Job",
    "await wait([pool.submit_nowait(review, 1)])": "list[Job]",
    "await wait((pool.submit_nowait(review, 1), pool.submit_nowait(count, 'x')))": "list[Job]",
    "pool.submit_nowait(review, 1).status": "Status",
    "pool.submit_nowait(review, 1).snapshot()": "Job",
    "await pool.submit_nowait(review, 1).refresh()": "Job",
    "await pool.submit_nowait(review, 1).cancel()": "bool",
    "await pool.submit_nowait(review, 1).explain()": "Explanation",
    "pool.snapshot()": "PoolSnapshot",
    "pool.snapshot().to_dict()": "dict[str, Any]",
    "asyncio.run(pool.drain()).to_dict()": "dict[str, Any]",
    "pool.health_check()": "HealthCheck",
    "pool.health_check()['pool_size']": "Any",
    "pool.dead()": "list[Job]",
    "await pool.start()": "Pool",
    # a task gives a ticket for its value, is called like its function, and keeps its parameters
    "await study.submit('bees', deep=True)": "Ticket[list[str]]",
    "await (await study.submit('bees'))": "list[str]",
    "await (await study.submit('bees')).result(timeout=5)": "list[str]",
    "await study('bees')": "list[str]",
    "tally('x', times=2)": "int",
    "await tally.submit('x', 2)": "Ticket[int]",
    "tally.submit_sync('x')": "SyncTicket[int]",
    "tally.submit_sync('x').result(timeout=5)": "int",
    "tally.submit_sync('x').cancel()": "bool",
    "tally.submit_sync('x').status": "Status",
    "app.get_sync('id')": "SyncTicket[Any] | None",
    "await app.submit('study', 'bees', deep=True)": "Ticket[Any]",
    "app.submit_sync('study', 'bees')": "SyncTicket[Any]",
    "await app.find_task('study', pool='typed')": "NamedTask",
    "await (await app.find_task('study')).with_options(priority=1).submit('x')": "Ticket[Any]",
    "await (await app.find_task('chat')).session('s').run('hi')": "Any",
    "await study.run('bees', deep=True)": "list[str]",
    "await tally.with_options(priority=1).run('x')": "int",
    "await chat.session('s').run('hi')": "list[int]",
    "await tally.map(['x', 'y'])": "list[int]",
    "await study.map(names())": "list[list[str]]",
    "await talk.session('s').map([1], return_exceptions=True)": "list[str | BaseException]",
    "await study.with_options(delay=MINUTE, timeout=MINUTE).run('x')": "list[str]",
    "await (await study.submit('bees')).result(timeout=MINUTE)": "list[str]",
    "Retry(first=MINUTE).first": "float",
    "Autoscale(2, 5, interval=MINUTE).interval": "float",
    "Keep(results=MINUTE).results": "float",
    "AgentRequest(review, timeout=MINUTE).timeout": "float | None",
    "app.run_worker(slots=2, drain_timeout=MINUTE)": "WorkerReport",
    "await study.submit_many([('bees',)])": "list[Ticket[list[str]]]",
    "await chat.session('s').submit('hi')": "Ticket[list[int]]",
    "await (await talk.session('s').submit(5, deep=True))": "str",
    "await chat(Session('s'), 'hi')": "list[int]",
    "await step('count', count, 'x', times=2)": "int",
    "await step('review', review, 5)": "str",
    "await look('here')": "bytes",
    "await study.with_options(priority=1, tenant_id='acme').submit('bees')": "Ticket[list[str]]",
    "await study.with_options(key='k').with_options(delay=5).submit('x')": "Ticket[list[str]]",
    "await wait(await study.submit('bees'))": "Job",
    "await app.get('id')": "Ticket[Any] | None",
    "await app.ready()": "bool",
    "study.name": "str",
}

WRONG = {
    "await pool.submit(review, 'not a number')": "arg-type|call-overload",
    "await pool.submit(review)": "call-arg|call-overload",
    "await pool.submit(review, 1984, 5)": "call-arg|call-overload",
    "await pool.submit(review, 1984, depth=True)": "call-arg|call-overload",
    "await pool.submit(review, 1984, deep='yes')": "arg-type|call-overload",
    "await pool.submit(review, 1984, priority=5)": "call-arg|call-overload",
    "pool.submit_nowait(count, 5)": "arg-type|call-overload",
    "await pool.run(count, 'x', times='2')": "arg-type|call-overload",
    "await view.run(count)": "call-arg|call-overload",
    "await pool.submit(5)": "arg-type|call-overload",
    "await pool.submit('review', 5)": "arg-type|call-overload",
    "await pool.submit(review(1984))": "arg-type|call-overload",
    "(await pool.run(count, 'x')).upper()": "attr-defined",
    "(await pool.submit(review, 1)) + 1": "operator",
    "pool.with_options(priority='high')": "arg-type",
    "pool.with_options(timeout='5')": "arg-type",
    "pool.with_options(rerun_failed=1)": "arg-type",
    "pool.with_options(tenant_id=5)": "arg-type",
    "Pool('x', max_concurrent='5')": "arg-type|typeddict-item",
    "Pool('x', max_concurrency=5)": "call-arg|misc",
    "Pool(5)": "arg-type",
    "bounded('5')": "arg-type",
    "await wait(5)": "arg-type|call-overload",
    "await pool.map(review, ['not a number'])": "arg-type|list-item|call-overload",
    "await pool.map(count, [5])": "arg-type|list-item|call-overload",
    "await pool.map(review, 5)": "arg-type|call-overload",
    "await pool.map(5, [5])": "arg-type|call-overload",
    "await pool.map(review)": "call-arg|call-overload",
    "await pool.map(nothing, [1])": "arg-type|call-overload",
    "await pool.map(review, [1], return_exceptions='yes')": "arg-type|call-overload",
    "await pool.map(review, [1], priority=1)": "call-arg|call-overload",
    "(await pool.map(review, [1], return_exceptions=True))[0].upper()": "union-attr",
    "await bounded_map(review, [1])": "call-arg|call-overload",
    "await bounded_map(review, [1], 2)": "call-arg|call-overload|misc",
    "await bounded_map(review, [1], limit='2')": "arg-type|call-overload",
    "await bounded_map(review, ['x'], limit=2)": "arg-type|list-item|call-overload",
    "await agent_fanout([review])": "arg-type|list-item",
    "await agent_fanout([5])": "arg-type|list-item",
    "await agent_fanout(nothing)": "arg-type",
    "await agent_fanout([nothing], max_parallel='2')": "arg-type",
    "AgentRequest()": "call-arg",
    "AgentRequest(review, label=5)": "arg-type",
    "AgentRequest(review, timeout='5')": "arg-type",
    "(await agent_fanout([nothing]))[0]['value']": "typeddict-item",
    "await study.submit(5)": "arg-type",
    "await study.submit()": "call-arg",
    "await study.submit('bees', depth=True)": "call-arg",
    "await study.with_options(priority=1).submit(5)": "arg-type",
    "study(5)": "arg-type",
    "tally.submit_sync('x', times='2')": "arg-type",
    "await study.run(5)": "arg-type",
    "await app.submit(5)": "arg-type",
    "app.submit_sync()": "call-arg",
    "await study.map(5)": "arg-type|call-overload",
    "await study.map(['x'], return_exceptions='yes')": "arg-type|call-overload",
    "await tally.submit_sync('x')": "misc",
    "Retry(first='5')": "arg-type",
    "Autoscale(interval='5')": "arg-type|typeddict-item",
    "Keep(dead='5')": "arg-type",
    "study.with_options(priority='high')": "arg-type",
    "study.with_options(on_crash=5)": "arg-type",
    "(await (await tally.submit('x'))).upper()": "attr-defined",
    "app.task(pool='typed', timeout='5')": "arg-type|typeddict-item|call-overload",
    "app.task(5)": "arg-type|call-overload",
    "await chat.session('s').submit(5)": "arg-type",
    "await chat('hi')": "arg-type|call-arg",
    "await look(5)": "arg-type",
    "await step('count', count, 5)": "arg-type|call-overload",
    "app.pool('x', max_concurrent='5')": "arg-type|typeddict-item",
    "app.worker('5')": "arg-type",
    "App(5)": "arg-type",
    "App('memory://', wire=5)": "arg-type|typeddict-item",
    "App(store='memory://')": "call-arg",
}


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the output of mypy --strict for each line; one run for all, since a start is slow."""
    folder = tmp_path_factory.mktemp("typed")
    lines = [f"reveal_type({line})" for line in REVEALED] + list(WRONG)
    body = "async def main() -> None:\n" + textwrap.indent("\n".join(lines), "    ")
    program = folder / "program.py"
    program.write_text(f"{PRELUDE}\n{body}\n", encoding="utf-8")
    found = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--hide-error-context",
         "--cache-dir", str(folder / "cache"), "--config-file=", program.name],
        cwd=folder,
        env={**os.environ, "MYPYPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    assert found.stderr == ""
    first = len(f"{PRELUDE}\n".splitlines()) + 2
    texts: dict[str, str] = dict.fromkeys([*REVEALED, *WRONG], "")
    known = dict(enumerate(texts, start=first))
    for line in found.stdout.splitlines():
        place = re.match(r"program\.py:(\d+): (.*)", line)
        assert place is not None, line
        assert int(place[1]) in known, line
        texts[known[int(place[1])]] += place[2] + "\n"
    return texts


@pytest.mark.parametrize("line", REVEALED)
def test_return_types_are_inferred(said: dict[str, str], line: str) -> None:
    found = re.fullmatch(r'note: Revealed type is "(.*)"\n', said[line])
    assert found is not None, said[line]
    short = re.sub(r"\b(?:\w+\.)+", "", found[1]).removesuffix("?")
    short = re.sub(r"TypedDict\((\w+), \{.*\}\)", r"\1", short)
    assert short == REVEALED[line]


@pytest.mark.parametrize("line", WRONG)
def test_a_wrong_call_is_an_error(said: dict[str, str], line: str) -> None:
    assert re.search(rf"error: .*\[(?:{WRONG[line]})\]", said[line]), said[line]
