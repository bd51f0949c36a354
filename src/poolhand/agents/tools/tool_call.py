"""One call of a tool: look up its receipt, make the call if allowed, record the result."""

from __future__ import annotations

import asyncio
from asyncio import CancelledError, Task
from collections.abc import Awaitable, Callable
from inspect import isawaitable
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from poolhand.agents.tools.keys import DEDUPE, CallPosition, ToolTerms
from poolhand.context import RunningJobApi
from poolhand.contract import Put, Store
from poolhand.durable.calls.task_registry import TaskCode
from poolhand.errors import (
    Conflict,
    GiveUp,
    IdempotencyConflict,
    PoolhandError,
    ToolBusy,
    ToolError,
    ToolOutcomeUnknown,
    UsageError,
    WireError,
)
from poolhand.rules.job import Job, Status
from poolhand.rules.receipts import (
    RECEIPTS,
    Effect,
    NextStep,
    Receipt,
    ReceiptStage,
    read,
    receipts_of_run,
    rule,
    write,
)
from poolhand.rules.validation import shown

LOOK_AGAIN = 0.2

Make = Callable[[int], Awaitable[Any]]


class ToolContext(Struct, frozen=True):
    """Values for a tool to pass on: `idempotency_key` is the same for every try of one call."""

    idempotency_key: str
    tries: int = 1

    def derived(self, number: int) -> str:
        """Return a key for a call within the call."""
        return f"{self.idempotency_key}:{number}"


class ToolCall:
    """Executes one call, with its receipt at its position."""

    def __init__(
        self, terms: ToolTerms, code: TaskCode, inside: RunningJobApi, place: CallPosition
    ) -> None:
        self._terms = terms
        self._code = code
        self._inside = inside
        self._place = place
        self._key = place.path.removeprefix(RECEIPTS)
        self._version = 0
        self._is_kept = False
        job: Any = inside.snapshot()
        self._job: Job = job
        assert inside.token is not None
        self._token: int = inside.token

    async def result(self, make: Make, args: Any, kwargs: Any) -> Any:
        """Return the result of the call, from its receipt if it was made before."""
        waited = 0.0
        while True:
            receipt, is_live = await self._look()
            match rule(receipt, self._is_this(receipt), self._terms.effect, is_live):
                case NextStep.REPLAY:
                    assert receipt is not None
                    await self._keep(receipt)
                    return self._code.unpack_result(receipt.result)
                case NextStep.WAIT if waited < self._terms.timeout:
                    await asyncio.sleep(LOOK_AGAIN)
                    waited += LOOK_AGAIN
                case NextStep.WAIT:
                    raise ToolBusy(
                        self._said("is being made by another job; try later"), key=self._key
                    )
                case NextStep.RAISE:
                    assert receipt is not None
                    raise ToolError(self._said(f"failed before: {receipt.error}"), key=self._key)
                case NextStep.CONFLICT:
                    raise IdempotencyConflict(
                        self._said("stands for one with other arguments"), key=self._key
                    )
                case NextStep.VERIFY:
                    found = await self._verified(receipt, args, kwargs)
                    if found is not None:
                        value = None if found is True else found
                        return await self._succeed(self._code.pack_result(value), receipt)
                    if await self._claim(receipt):
                        return await self._run(make, self._receipt(receipt))
                case NextStep.RUN:
                    if await self._claim(receipt):
                        return await self._run(make, self._receipt(receipt))

    async def _look(self) -> tuple[Receipt | None, bool]:
        """Return the receipt of the call, if any, and whether a live attempt is making the call."""
        place, ask = self._place, self._inside.ask
        self._is_kept = place.path == place.own
        if not self._is_kept:
            found = await ask("document", place.own)
            if found is not None and _stands(receipt := read(found[0])):
                self._is_kept = True
                return receipt, False
        found = await ask("document", place.path)
        if found is None:
            self._version = 0
            return (self._receipt(None, ReceiptStage.UNKNOWN) if place.begun else None), False
        body, self._version = found
        receipt = read(body)
        if receipt.job == self._job.id:
            # An earlier attempt has lost its lease, or this one would not run.
            return receipt, receipt.token == self._token
        is_live = receipt.stage is ReceiptStage.CLAIMED and await self._runs(receipt.job)
        return receipt, is_live

    async def _runs(self, id: str) -> bool:
        job = await self._inside.ask("job", id)
        return job is not None and job.status is Status.RUNNING

    def _is_this(self, receipt: Receipt | None) -> bool:
        """Return whether a receipt has the arguments of this call, as far as can be determined."""
        calls = self._place.calls
        return receipt is None or not calls or receipt.call in calls

    async def _keep(self, receipt: Receipt) -> None:
        """Copy a receipt used from another run to this run, so that it lives as long as the run."""
        # A read may be repeated, so its receipt is not copied.
        if not self._is_kept and self._terms.effect is not Effect.READ:
            await self._put((self._place.own, write(receipt), None, None))

    async def _verified(self, receipt: Receipt | None, args: Any, kwargs: Any) -> Any:
        """Ask `verify` whether a call that was begun has happened; None: it has not."""
        if self._terms.verify is None:
            await self._write(self._receipt(receipt, ReceiptStage.UNKNOWN))
            raise ToolOutcomeUnknown(
                self._said(
                    "was begun by an attempt that did not record its end, and must not be made "
                    "twice; check whether it happened, record that: "
                    f"app.settle_tool({self._key!r}, …), then run the job again; or give the tool "
                    "a verify="
                ),
                key=self._key,
            )
        return await made(self._terms.verify, args, kwargs)

    async def _claim(self, before: Receipt | None) -> bool:
        """Claim the call; return False if another job claimed it first."""
        version = self._version
        try:
            await self._write(self._receipt(before))
        except Conflict:
            await self._look()
            if self._version == version:
                # No other job claimed it: the lease is invalid.
                raise
            return False
        return True

    async def _run(self, make: Make, receipt: Receipt) -> Any:
        task = asyncio.ensure_future(self._bounded(make, receipt.tries))
        try:
            value = await asyncio.shield(task) if self._terms.effect is Effect.ONCE else await task
            result = self._code.pack_result(value)
        except CancelledError:
            await self._after_cancellation(task, receipt)
            raise
        except TimeoutError:
            raise await self._timed_out(receipt) from None
        except Exception as error:
            await self._fail(receipt, error)
            raise
        return await self._succeed(result, receipt)

    async def _bounded(self, make: Make, tries: int) -> Any:
        async with asyncio.timeout(self._terms.timeout):
            return await make(tries)

    async def _after_cancellation(self, task: Task[Any], receipt: Receipt) -> None:
        """Let a once-only call finish, within its timeout, and record its outcome."""
        if not task.done():
            await asyncio.wait([task])
        error = None if task.cancelled() else task.exception()
        if task.cancelled() or isinstance(error, TimeoutError):
            await self._write(replace(receipt, stage=ReceiptStage.UNKNOWN))
        elif isinstance(error, Exception):
            await self._fail(receipt, error)
        else:
            await self._succeed(self._code.pack_result(task.result()), receipt)

    async def _timed_out(self, receipt: Receipt) -> ToolError:
        said = self._said(f"took longer than {self._terms.timeout:g} s")
        if self._terms.effect is Effect.ONCE:
            await self._write(replace(receipt, stage=ReceiptStage.UNKNOWN))
            return ToolOutcomeUnknown(
                f"{said}; whether it happened is not known: look, say so by "
                f"app.settle_tool({self._key!r}, …), then run the job again",
                key=self._key,
            )
        await self._write(replace(receipt, stage=ReceiptStage.FAILED, error="TimeoutError"))
        return ToolError(said, key=self._key)

    async def _fail(self, receipt: Receipt, error: Exception) -> None:
        said = error.message if isinstance(error, PoolhandError) else error
        text = f"{type(error).__name__}: {said}"[:2000]
        # A value that cannot be stored cannot be stored at the next try either.
        retryable = not isinstance(error, GiveUp | UsageError | WireError)
        await self._write(
            replace(receipt, stage=ReceiptStage.FAILED, error=text, retryable=retryable)
        )

    async def _succeed(self, result: bytes, receipt: Receipt | None) -> Any:
        await self._write(replace(self._receipt(receipt, ReceiptStage.SUCCEEDED), result=result))
        return self._code.unpack_result(result)

    def _receipt(
        self, before: Receipt | None, stage: ReceiptStage = ReceiptStage.CLAIMED
    ) -> Receipt:
        job, token = self._job, self._token
        tries = 1 if before is None else before.tries + (before.token != token)
        call = before.call if before is not None else next(iter(self._place.calls), b"")
        return Receipt(self._terms.name, stage, call, job.id, token, tries, run=job.run)

    async def _write(self, receipt: Receipt) -> None:
        place, body = self._place, write(receipt)
        if place.path == place.own:
            versions = await self._put((place.path, body, self._version, None))
        elif receipt.is_settled:
            # Other runs may use it until its TTL; the run that made it, as long as the run is kept.
            lasting = (place.own, body, None, None)
            versions = await self._put(
                (place.path, body, self._version, self._terms.dedupe_ttl), lasting
            )
        else:
            versions = await self._put((place.path, body, self._version, None))
        self._version = versions[0]

    async def _put(self, *puts: tuple[str, bytes, int | None, float | None]) -> tuple[int, ...]:
        versions: tuple[int, ...] | None = await self._inside.ask("put", *puts)
        if versions is None:
            raise Conflict(self._said("was taken over by another attempt; this one stops"))
        return versions

    def _said(self, what: str) -> str:
        return f"this call of {self._terms.name} ({self._place.key[:12]}) {what}"


def _stands(receipt: Receipt) -> bool:
    """Return whether the run's own receipt decides about the call."""
    return receipt.stage is ReceiptStage.SUCCEEDED or not receipt.retryable


async def made(fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Make a call and await its result if it is awaitable."""
    value = fn(*args, **kwargs)
    return await value if isawaitable(value) else value


async def settle(
    store: Store, key: str, happened: bool, pack: Callable[[str], bytes]
) -> Receipt | None:
    """Record whether a call that was begun has happened, with its result; None: unknown key.

    A call that has not happened may be made again. Raises Conflict if there is nothing to decide.
    """
    given: tuple[object, object] = key, happened
    if not isinstance(given[0], str) or not isinstance(given[1], bool):
        raise UsageError(
            f"settle_tool({shown(key)}, happened={shown(happened)}) is not allowed; give the key "
            "of the call, a text, and whether it happened, True or False"
        )
    path = RECEIPTS + key.removeprefix(RECEIPTS)
    found = await store.get_document(path)
    if found is None:
        return None
    receipt, version = read(found[0]), found[1]
    if receipt.stage not in (ReceiptStage.UNKNOWN, ReceiptStage.CLAIMED):
        raise Conflict(f"the call {key} of {receipt.tool} has {receipt.stage.value}; that stands")
    if happened:
        done = replace(receipt, stage=ReceiptStage.SUCCEEDED, result=pack(receipt.tool))
    else:
        done = replace(receipt, stage=ReceiptStage.FAILED, error="it has not happened")
    own = await _own(store, path, receipt)
    puts = [Put(path, write(done), version, None if own == path else DEDUPE)]
    if own not in (None, path):
        puts.append(Put(own, write(done)))
    if await store.put(puts) is None:
        raise Conflict(f"the call {key} of {receipt.tool} has gone on meanwhile; look again")
    return done


async def _own(store: Store, path: str, receipt: Receipt) -> str | None:
    """Return the path of the own receipt of the run that made a call, or None if unknown."""
    run = receipt.run
    if not run:
        # A receipt of an older version names only its job.
        (job,) = await store.get([receipt.job])
        if job is None:
            return None
        run = job.job.run
    return receipts_of_run(run) + path.rpartition("/")[2]
