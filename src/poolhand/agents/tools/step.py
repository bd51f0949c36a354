"""Steps: parts of a job that run once, however often the job runs, and the journal of them."""

from __future__ import annotations

import asyncio
import inspect
from asyncio import Future
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, ParamSpec, TypeVar, overload

import msgspec
from msgspec import Struct

from poolhand.agents.tools.keys import Path, under
from poolhand.agents.tools.tool_call import made
from poolhand.context import RunningJobApi, running
from poolhand.durable.calls.task_registry import WIRE, TaskCode, former_digests
from poolhand.errors import UsageError
from poolhand.misuse import explain_misuse
from poolhand.rules.json_values import digest
from poolhand.rules.streams import StreamKind
from poolhand.rules.validation import NAME, is_name, shown
from poolhand.wire.payload import Wire


class JournalStep(Struct, frozen=True, tag="step"):
    """A finished step; `call` is a digest of its arguments, `result` is stored encoded."""

    path: Path
    name: str
    call: bytes
    result: bytes


class JournalBranch(Struct, frozen=True, tag="branch"):
    """A marker that from this position on the code differs from the steps recorded before."""

    path: Path


Record = JournalStep | JournalBranch

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Record).decode


def write(record: Record) -> bytes:
    return _encode(record)


class Journal:
    """The steps of one attempt: assigns positions and looks up finished steps."""

    def __init__(self, records: Iterable[bytes] = ()) -> None:
        self._finished: dict[Path, JournalStep] = {}
        self._given: Counter[Path] = Counter()
        for body in records:
            record = _decode(body)
            if isinstance(record, JournalBranch):
                self.branch(record.path)
            else:
                self._finished[record.path] = record

    def next(self, under: Path) -> Path:
        """Return the position of the next step within another step, or within the run."""
        self._given[under] += 1
        return (*under, self._given[under])

    def find(self, path: Path) -> JournalStep | None:
        """Return the finished step at a position, if any."""
        return self._finished.get(path)

    def branch(self, path: Path) -> JournalBranch:
        """Drop the finished steps at a position, after it and within it."""
        *under, number = path
        depth = len(under)
        self._finished = {
            other: step
            for other, step in self._finished.items()
            if list(other[:depth]) != under or len(other) <= depth or other[depth] < number
        }
        return JournalBranch(path)


P = ParamSpec("P")
T = TypeVar("T")

JOURNAL = "journal"


@overload
async def step(
    name: str, fn: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs
) -> T: ...


@overload
async def step(name: str, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T: ...


@explain_misuse
async def step(name: str, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Run a part of the job once: `page = await step("fetch", fetch, url)`.

    The result of `fn` is recorded before it is returned. When the job runs again, after a crash, a
    retry, a snooze or a deploy, the recorded result is returned without a call. A step that raises
    is not recorded. Arguments and results must be data, as for a task. Steps may be nested and may
    run concurrently. Outside of a stored job `fn` is simply called.
    """
    _check_shape(name, fn)
    inside = running.get()
    if inside is None or inside.token is None:
        return await made(fn, args, kwargs)
    journal = await _journal_of(inside)
    path = journal.next(under.get())
    code = TaskCode(name, fn, inside.attempt_values.get(WIRE) or Wire(), exact=False)
    # Raise now if the arguments could not be stored.
    code.pack(args, kwargs)
    call = digest(code.signature.bind(args, kwargs)[2])
    known = journal.find(path)
    if (
        known is not None
        and known.name == name
        and (known.call == call or known.call in former_digests(code, args, kwargs))
    ):
        return code.unpack_result(known.result)
    if known is not None:
        await _branch(inside, journal, known, name)
    result = code.pack_result(await _within(path, fn, args, kwargs))
    await inside.ask("record", write(JournalStep(path, name, call, result)))
    # Return the value as the next attempt will see it.
    return code.unpack_result(result)


def _check_shape(name: Any, fn: Any) -> None:
    """Raise unless these are the name and the function of a step; show how to write a step."""
    if callable(name):
        word = getattr(name, "__name__", "fetch")
        raise UsageError(f'step takes a name first: step("{word}", {word}, …)')
    if not is_name(name):
        raise UsageError(
            f'step({shown(name)}, …) is not allowed; a step has a name: step("fetch", fetch, url), '
            f"{NAME.text}"
        )
    if inspect.iscoroutine(fn):
        fn.close()
        word = fn.__name__
        raise UsageError(
            f"step takes a function and its arguments, not a coroutine: write "
            f'step("{name}", {word}, …), not step("{name}", {word}(…))'
        )
    if not callable(fn):
        raise UsageError(
            f"step({shown(name)}, {shown(fn)}) is not allowed; the function comes second, then "
            f'its arguments: step("{name}", fetch, url)'
        )


async def _within(path: Path, fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    before = under.set(path)
    try:
        return await made(fn, args, kwargs)
    finally:
        under.reset(before)


async def _journal_of(inside: RunningJobApi) -> Journal:
    """Return the journal of an attempt; the first step loads it."""
    attempt_values = inside.attempt_values
    reading: Future[Journal] | None = attempt_values.get(JOURNAL)
    if reading is None or (reading.done() and (reading.cancelled() or reading.exception())):
        reading = attempt_values[JOURNAL] = asyncio.ensure_future(_read(inside))
    elif reading.get_loop() is not asyncio.get_running_loop():
        raise UsageError("steps of one job are taken on one event loop; this is another one")
    return await asyncio.shield(reading)


async def _read(inside: RunningJobApi) -> Journal:
    return Journal(await inside.ask("journal"))


async def _branch(inside: RunningJobApi, journal: Journal, known: JournalStep, name: str) -> None:
    """Log and record that the code differs from the recorded steps."""
    where = ".".join(map(str, known.path))
    what = f"was {known.name!r}, is {name!r}" if known.name != name else f"{name!r} has other data"
    text = f"step {where} {what}: from here on nothing is taken from earlier attempts"
    inside.emit(StreamKind.LOG, msgspec.json.encode({"stream": "journal", "text": text}))
    await inside.ask("record", write(journal.branch(known.path)))
