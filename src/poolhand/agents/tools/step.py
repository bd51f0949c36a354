"""Steps: parts of a job that run once, however often the job runs."""

from __future__ import annotations

import asyncio
import inspect
from asyncio import Future
from collections.abc import Awaitable, Callable
from typing import Any, ParamSpec, TypeVar, overload

import msgspec

from poolhand.agents.tools.journal import Journal, JournalStep, Path, under, write
from poolhand.agents.tools.tool_call import made
from poolhand.context import RunningJobApi, running
from poolhand.durable.calls.former import former_digests
from poolhand.durable.calls.serializer import Serializer
from poolhand.durable.calls.task_registry import PARCELS, TaskCode
from poolhand.errors import UsageError
from poolhand.misuse import explain_misuse
from poolhand.rules.streams import StreamKind
from poolhand.rules.validation import NAME_ALLOWED, is_name, shown
from poolhand.rules.values.canonical import digest

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
    code = TaskCode(name, fn, inside.shelf.get(PARCELS) or Serializer(), exact=False)
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
            f"{NAME_ALLOWED}"
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
    shelf = inside.shelf
    reading: Future[Journal] | None = shelf.get(JOURNAL)
    if reading is None or (reading.done() and (reading.cancelled() or reading.exception())):
        reading = shelf[JOURNAL] = asyncio.ensure_future(_read(inside))
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
    inside.tell(StreamKind.LOG, msgspec.json.encode({"stream": "journal", "text": text}))
    await inside.ask("record", write(journal.branch(known.path)))
