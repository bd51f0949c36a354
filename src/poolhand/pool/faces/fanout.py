"""Fan-out without an own pool: a private pool lives as long as the call."""

from __future__ import annotations

import os
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable, Mapping
from functools import partial
from inspect import iscoroutine
from typing import TYPE_CHECKING, Any, Literal, TypedDict, TypeVar, cast, overload

from msgspec.structs import asdict

from poolhand.misuse import OptionsStruct, explain_misuse
from poolhand.pool.engine.work import Work
from poolhand.pool.mapping import ask_to_stop, call_faults, map_faults
from poolhand.pool.options import name_of
from poolhand.pool.pool import Pool
from poolhand.pool.slots.fault import ending_of
from poolhand.rules.job import Job, Status
from poolhand.rules.scaling.pool_size import SLOTS
from poolhand.rules.validation import (
    AMOUNT,
    OptionRule,
    OptionTable,
    Seconds,
    convert_seconds,
    is_text,
    not_allowed,
    raise_faults,
    table_faults,
    to_seconds,
)
from poolhand.runtime import Runtime

A = TypeVar("A")
T = TypeVar("T")


@overload
async def bounded_map(
    fn: Callable[[A], Awaitable[T]],
    items: Iterable[A] | AsyncIterable[A],
    *,
    limit: int,
    return_exceptions: Literal[False] = False,
    runtime: Runtime | None = None,
) -> list[T]: ...


@overload
async def bounded_map(
    fn: Callable[[A], T],
    items: Iterable[A] | AsyncIterable[A],
    *,
    limit: int,
    return_exceptions: Literal[False] = False,
    runtime: Runtime | None = None,
) -> list[T]: ...


@overload
async def bounded_map(
    fn: Callable[[A], Awaitable[T]],
    items: Iterable[A] | AsyncIterable[A],
    *,
    limit: int,
    return_exceptions: bool,
    runtime: Runtime | None = None,
) -> list[T | BaseException]: ...


@overload
async def bounded_map(
    fn: Callable[[A], T],
    items: Iterable[A] | AsyncIterable[A],
    *,
    limit: int,
    return_exceptions: bool,
    runtime: Runtime | None = None,
) -> list[T | BaseException]: ...


@explain_misuse
async def bounded_map(
    fn: Callable[[Any], Any],
    items: Iterable[Any] | AsyncIterable[Any],
    *,
    limit: int,
    return_exceptions: bool = False,
    runtime: Runtime | None = None,
) -> list[Any]:
    """Run `fn(item)` for every item, at most `limit` at a time, as `Pool.map` does."""
    faults = map_faults(fn, items, return_exceptions) + SLOTS.faults("limit", limit)
    raise_faults("bounded_map", faults)
    async with Pool(max_concurrent=limit, runtime=runtime) as pool:
        return await pool.map(fn, items, return_exceptions=return_exceptions)


class AgentRequest(OptionsStruct, frozen=True):
    """One call of an `agent_fanout`, for at most `timeout` seconds.

    `label` names it in the results; the default is the name of its function or agent.
    """

    call: Callable[..., Any]
    args: tuple[Any, ...] | list[Any] = ()
    kwargs: Mapping[str, Any] = {}
    label: str | None = None
    timeout: float | None = None

    if TYPE_CHECKING:

        def __init__(
            self,
            call: Callable[..., Any],
            args: tuple[Any, ...] | list[Any] = (),
            kwargs: Mapping[str, Any] = {},
            label: str | None = None,
            timeout: Seconds | None = None,
        ) -> None: ...

    def __post_init__(self) -> None:
        convert_seconds(self, "timeout")


class FanoutResult(TypedDict):
    """The outcome of one request: `ok` with its `result`, or not, with its `error` as text.

    `status` is completed, failed or cancelled; `index` is the position of the request.
    """

    label: str
    index: int
    status: str
    ok: bool
    result: Any
    error: str | None


Request = Callable[[], Any] | AgentRequest | Mapping[str, Any]


@explain_misuse
async def agent_fanout(
    requests: Iterable[Request], max_parallel: int = 8, *, runtime: Runtime | None = None
) -> list[FanoutResult]:
    """Run every request, at most `max_parallel` at a time; return their outcomes in order.

    A request is a callable without arguments, an AgentRequest or a mapping with its fields. All are
    checked before the first one runs; a failure or timeout of one does not stop the others. If the
    caller is cancelled, all are cancelled. Code that outlives its timeout keeps its slot, unless
    nothing else could run.
    """
    checked = _checked(requests, max_parallel)
    if not checked:
        return []
    labels = [request.label or label_of(request.call) for request in checked]
    slots = min(max_parallel, len(checked))
    async with Pool(max_concurrent=slots, runtime=runtime) as pool:
        works = [_submit(pool, request) for request in checked]
        try:
            await _all_over(pool, works, slots)
        except BaseException:
            # Leaving the pool waits until they have stopped.
            ask_to_stop(works)
            raise
    return [_result(labels[index], index, work.snapshot()) for index, work in enumerate(works)]


def _submit(pool: Pool, request: AgentRequest) -> Work:
    view = pool if request.timeout is None else pool.with_options(timeout=request.timeout)
    return cast(Work, view.submit_nowait(request.call, *request.args, **request.kwargs))


async def _all_over(pool: Pool, works: list[Work], slots: int) -> None:
    engine = pool._engine()
    for work in works:
        await work._settled(limited=True)
        # Code that outlives its timeout keeps its slot; the other requests need a free one.
        wanted = max(slots, engine.slots.stuck + 1)
        if wanted != engine.desk.slots:
            engine.resize(wanted)


def _result(label: str, index: int, job: Job) -> FanoutResult:
    return FanoutResult(
        label=label,
        index=index,
        status=job.status.value,
        ok=job.status is Status.COMPLETED,
        result=job.result,
        error=ending_of(job),
    )


def label_of(call: object) -> str:
    """Return a display name for a callable: the name of its agent, or its own."""
    while isinstance(call, partial):
        call = call.func
    is_function = hasattr(call, "__qualname__")
    own = str(name_of(call)).rpartition("<locals>.")[2]
    agent = _name_borne_by(getattr(call, "__self__", None) if is_function else call)
    code = getattr(call, "__code__", None)
    if agent is not None:
        return f"{agent}.{own.rpartition('.')[2]}" if is_function else agent
    if own == "<lambda>" and code is not None:
        return f"lambda in {os.path.basename(code.co_filename)}:{code.co_firstlineno}"
    return own


def _name_borne_by(agent: object) -> str | None:
    try:
        name = getattr(agent, "name", None)
    except Exception:
        return None
    return str(name) if is_text(name) else None


def _checked(requests: Iterable[Request], max_parallel: int) -> list[AgentRequest]:
    """Return the requests in one form, or raise with all their errors."""
    faults = SLOTS.faults("max_parallel", max_parallel)
    fields: list[dict[str, Any]] = []
    if iscoroutine(requests):
        requests.close()
    if isinstance(requests, Mapping) or not isinstance(requests, Iterable):
        faults.append(not_allowed("requests", requests, "an iterable of requests"))
    else:
        fields = [_fields(request) for request in requests]
    for index, one in enumerate(fields):
        faults += [f"requests[{index}]: {fault}" for fault in _request_faults(one)]
    raise_faults("agent_fanout", faults)
    return [AgentRequest(**one) for one in fields]


def _fields(request: Request) -> dict[str, Any]:
    if isinstance(request, AgentRequest):
        return asdict(request)
    if not isinstance(request, Mapping):
        return {"call": request}
    fields = dict(request)
    return {**fields, "timeout": to_seconds(fields["timeout"])} if "timeout" in fields else fields


def _has_names(value: object) -> bool:
    return isinstance(value, Mapping) and all(isinstance(name, str) for name in value)


ALLOWED: OptionTable = {
    "args": OptionRule(lambda value: isinstance(value, tuple | list), "a tuple or a list"),
    "kwargs": OptionRule(_has_names, "a mapping of names to values"),
    "label": OptionRule(is_text, "a non-blank text").or_none(),
    "timeout": AMOUNT.or_none(),
}


def _request_faults(fields: dict[str, Any]) -> list[str]:
    known = AgentRequest.__struct_fields__
    faults = [
        f"{name!r} is not a field of a request; there are {', '.join(known)}"
        for name in fields
        if name not in known
    ]
    if "call" in fields:
        faults += call_faults("call", fields["call"], "a function, or a request with one")
    else:
        faults.append("call is missing; it must be a function")
    return faults + table_faults(
        ALLOWED, {name: fields[name] for name in ALLOWED if name in fields}
    )
