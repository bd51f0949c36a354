"""Tools: functions with external effects; each call has a receipt."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from typing import Any, Generic, ParamSpec, TypeVar, overload

from msgspec.structs import replace

from poolhand.agents.tools.keys import (
    DEDUPE,
    READ_CACHE,
    TOOL_OPTIONS,
    CallKeys,
    ToolTerms,
    checked,
)
from poolhand.agents.tools.tool_call import ToolCall, ToolContext, made
from poolhand.context import running
from poolhand.durable.calls.declaration import checked_function
from poolhand.durable.calls.task_registry import WIRE, TaskCode
from poolhand.errors import UsageError
from poolhand.misuse import explain_misuse
from poolhand.rules.receipts import Effect
from poolhand.rules.validation import NAME, Seconds, no_option, one_of
from poolhand.wire.payload import Wire

P = ParamSpec("P")
T = TypeVar("T")

_inside: ContextVar[ToolContext | None] = ContextVar("poolhand_tool", default=None)


def tool_context() -> ToolContext:
    """Return the context of the running tool: above all the `idempotency_key` to pass on."""
    inside = _inside.get()
    if inside is None:
        raise UsageError("tool_context() is for the code of a tool, while it is called")
    return inside


@explain_misuse
class Tool(Generic[P, T]):
    """A function whose calls have receipts, so that a completed call is not repeated.

    In a stored job, a call is looked up before it is made, and its result is recorded before it is
    returned; elsewhere the function is simply called.
    """

    def __init__(self, fn: Callable[P, Awaitable[T]], terms: ToolTerms) -> None:
        self.fn = fn
        self.terms = terms
        # Raise errors in the signature where the tool is defined, not at its first call.
        TaskCode(terms.name, fn, Wire(), exact=False)
        self.__name__ = getattr(fn, "__name__", terms.name)
        self.__qualname__ = getattr(fn, "__qualname__", terms.name)
        self.__doc__ = fn.__doc__
        self.__module__ = fn.__module__
        self.__wrapped__ = fn

    def __repr__(self) -> str:
        return f"<Tool {self.terms.name} effect={self.terms.effect.value}>"

    def with_options(self, *, call_id: str) -> Tool[P, T]:
        """Return the tool with a name for its next call, instead of that call's position."""
        NAME.require("call_id", call_id)
        return Tool(self.fn, replace(self.terms, call_id=call_id))

    async def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:
        running_in = running.get()
        if running_in is None or running_in.token is None:
            value: T = await self._make("", 1, args, kwargs)
            return value
        wire = running_in.attempt_values.get(WIRE) or Wire()
        code = TaskCode(self.terms.name, self.fn, wire, exact=False)
        place = await CallKeys(self.terms, code, running_in, (args, kwargs)).place()
        calling = ToolCall(self.terms, code, running_in, place)
        found: T = await calling.result(
            lambda tries: self._make(place.key, tries, args, kwargs), args, kwargs
        )
        return found

    async def _make(self, key: str, tries: int, args: Any, kwargs: Any) -> Any:
        before = _inside.set(ToolContext(key, tries))
        try:
            return await made(self.fn, args, kwargs)
        finally:
            _inside.reset(before)


@overload
def tool(fn: Callable[P, Awaitable[T]], /) -> Tool[P, T]: ...


@overload
def tool(
    fn: None = None,
    /,
    *,
    effect: str = ...,
    name: str | None = ...,
    version: int = ...,
    scope: str = ...,
    shared: bool = ...,
    key_fields: Sequence[str] = ...,
    dedupe_ttl: Seconds | None = ...,
    timeout: Seconds = ...,
    verify: Callable[..., Any] | None = ...,
) -> Callable[[Callable[P, Awaitable[T]]], Tool[P, T]]: ...


def tool(fn: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Make a function a tool: `@tool`, or `@tool(effect="read", timeout=10)`.

    `effect`: "once" (the default: never repeated unless it is known not to have happened),
    "idempotent" or "read". `verify` is called with the same arguments to find out whether a call
    that was begun has happened: it returns None if not, else the result of the tool, or True.
    """
    return _maker(options) if fn is None else _maker(options)(fn)


def _maker(options: dict[str, Any]) -> Callable[[Callable[..., Any]], Tool[..., Any]]:
    unknown = [name for name in options if name not in TOOL_OPTIONS]
    if unknown:
        raise UsageError(f"tool: {'; '.join(no_option(one, TOOL_OPTIONS) for one in unknown)}")
    effect = options.pop("effect", Effect.ONCE)
    one_of(*map(str, Effect)).require("effect", effect)
    ttl = options.pop("dedupe_ttl", None)
    terms: dict[str, Any] = {
        **options,
        "effect": Effect(effect),
        "dedupe_ttl": ttl if ttl is not None else READ_CACHE if effect == "read" else DEDUPE,
    }

    def make(fn: Callable[..., Any]) -> Tool[..., Any]:
        fn = checked_function(fn, "@tool")
        return Tool(fn, checked(fn, terms))

    return make
