"""The options of a tool, and the keys that name its calls."""

from __future__ import annotations

import hashlib
import inspect
from collections import Counter
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any

import msgspec
from msgspec import Struct

from poolhand.context import RunningJobApi
from poolhand.durable.calls.declaration import name_of_task
from poolhand.durable.calls.task_registry import TaskCode, former_digests
from poolhand.errors import UsageError
from poolhand.rules.explain import is_same_task
from poolhand.rules.job import Job
from poolhand.rules.json_values import Canonical, digest
from poolhand.rules.receipts import (
    RECEIPTS,
    SHARED,
    Effect,
    Receipt,
    ReceiptStage,
    is_former,
    read,
    read_names,
    receipts_of_run,
    receipts_of_session,
    receipts_of_tenant,
    tool_names,
    write,
)
from poolhand.rules.validation import (
    AMOUNT,
    COUNT,
    FLAG,
    NAME,
    OptionRule,
    OptionTable,
    convert_seconds,
    did_you_mean,
    one_of,
    raise_faults,
    shown,
    table_faults,
)

Path = tuple[int, ...]

# The position of the step that contains the running code.
under: ContextVar[Path] = ContextVar("poolhand_step", default=())

DEDUPE = 86_400.0
READ_CACHE = 3_600.0
TIMEOUT = 60.0
SCOPES = ("run", "session", "global")


class ToolTerms(Struct, frozen=True):
    """The options of a tool; `shared`: with scope "global", receipts are shared by all tenants."""

    name: str
    effect: Effect = Effect.ONCE
    version: int = 1
    scope: str = "run"
    shared: bool = False
    key_fields: tuple[str, ...] = ()
    dedupe_ttl: float = DEDUPE
    timeout: float = TIMEOUT
    verify: Callable[..., Any] | None = None
    call_id: str | None = None

    def __post_init__(self) -> None:
        convert_seconds(self, "dedupe_ttl", "timeout")


ALLOWED: OptionTable = {
    "version": COUNT,
    "scope": one_of(*SCOPES),
    "verify": OptionRule(callable, "a function of the same parameters").or_none(),
    "shared": FLAG,
    "dedupe_ttl": AMOUNT,
    "timeout": AMOUNT,
}
# The names of all tools of this process.
declared: set[str] = set()
TOOL_OPTIONS = tuple(name for name in ToolTerms.__struct_fields__ if name != "call_id")


def checked(fn: Callable[..., Any], options: dict[str, Any]) -> ToolTerms:
    """Return the options of a tool, or raise with all their errors."""
    fields = options.get("key_fields")
    faults = [] if fields is None else list(_field_faults(fn, fields))
    usable = {
        "name": name_of_task(fn) if options.get("name") is None else options["name"],
        "key_fields": tuple(fields) if fields and not faults else (),
    }
    terms = ToolTerms(**{**options, **usable})
    NAME.require("tool name", terms.name)
    faults += table_faults(ALLOWED, {name: getattr(terms, name) for name in ALLOWED})
    if fields and terms.scope == "run":
        faults.append(
            "key_fields go with scope='session' or 'global': within a run calls have places"
        )
    if terms.shared is True and terms.scope != "global":
        faults.append("shared=True goes with scope='global': other scopes have one tenant")
    raise_faults(f"tool {terms.name!r}", faults)
    declared.add(terms.name)
    return terms


def _field_faults(fn: Callable[..., Any], fields: Any) -> Iterator[str]:
    """Yield the errors in the parameters that make up the key of a call."""
    if not isinstance(fields, list | tuple) or not all(isinstance(one, str) for one in fields):
        given = f"[{shown(fields)}]" if isinstance(fields, str) else "['order']"
        yield f"key_fields={shown(fields)} is not allowed; give a list of parameters: {given}"
        return
    if not fields:
        yield "key_fields is empty: every call would have the same key; name a parameter"
    try:
        known = list(inspect.signature(fn).parameters)
    except (TypeError, ValueError):
        # A function without a signature is rejected when the tool is created.
        return
    for one in fields:
        if one not in known:
            hint = did_you_mean(one, known) if known else "it has none"
            yield f"key_fields: there is no parameter {shown(one)}; {hint}"


OCCURRENCES, FORMER, MET = "occurrences", "former receipts", "former receipts met"
NAMES = "other names of tools"
AT_ONCE = 500
MAX_NAMES = 50
TRIES = 5

Given = tuple[tuple[Any, ...], dict[str, Any]]


class CallPosition(Struct, frozen=True):
    """Where the receipt of a call is stored: `path` for all jobs of its scope, `own` for its run.

    `calls` are the digests of its arguments; empty: they cannot be determined. `begun`: an earlier
    attempt may have made this call even if there is no receipt.
    """

    key: str
    path: str
    own: str
    calls: tuple[bytes, ...]
    begun: bool = False


class CallKeys:
    """Determines the position of one call of a job."""

    def __init__(
        self, terms: ToolTerms, code: TaskCode, inside: RunningJobApi, given: Given
    ) -> None:
        # Raise now if the arguments could not be stored: like those of a task, they must be data.
        code.pack(*given)
        self._terms = terms
        self._code = code
        self._inside = inside
        self._given = given
        job: Any = inside.snapshot()
        self._job: Job = job
        self._arguments = code.signature.bind(*given)[2]
        canonical = Canonical()
        self._call = hashlib.sha256(canonical.write(self._arguments)).digest()
        self._unordered = canonical.unordered
        self._occurrence = self._count()

    async def place(self) -> CallPosition:
        """Return where the receipt of this call is or will be stored."""
        place, others = self._place(self._terms.name), await self._other_names()
        may_be_former = await self._may_be_former()
        if not (others or may_be_former) or await self._is_kept(place):
            return place
        for name in others:
            if await self._is_kept(other := self._place(name)):
                return other
        return await self._former_place(place) if may_be_former else place

    async def _former_place(self, place: CallPosition) -> CallPosition:
        for former in self._former():
            if await self._is_usable(former):
                self._met.add(former.path)
                return former
        if self._unordered and self._terms.effect is Effect.ONCE and await self._has_strays():
            return msgspec.structs.replace(place, begun=True)
        return place

    def _place(self, name: str) -> CallPosition:
        terms, job = self._terms, self._job
        which: list[Any] = [name, terms.version, terms.scope]
        match terms.scope:
            case "run":
                head, ids = receipts_of_run(job.run), [job.run]
            case "session":
                if job.session is None:
                    raise UsageError(
                        "a tool of scope 'session' was called by a job without a session"
                    )
                head = receipts_of_session(job.tenant, job.session)
                ids = [job.tenant or "", job.session]
            case _ if terms.shared:
                head, ids = SHARED, []
            case _:
                head, ids = receipts_of_tenant(job.tenant), [job.tenant or ""]
        if terms.key_fields:
            call: list[Any] = ["fields", [self._arguments.get(name) for name in terms.key_fields]]
        elif terms.call_id is not None:
            call = ["call", terms.call_id]
        else:
            call = ["place", under.get(), self._occurrence, self._call]
        key = digest([which, ids, call]).hex()
        return CallPosition(key, head + key, receipts_of_run(job.run) + key, (self._call,))

    def _count(self) -> int:
        """Count equal calls within one step: two intended equal calls are both made."""
        counter: Counter[Any] = self._inside.attempt_values.setdefault(OCCURRENCES, Counter())
        here = (under.get(), self._terms.name, self._call)
        counter[here] += 1
        return counter[here]

    async def _is_kept(self, place: CallPosition) -> bool:
        ask = self._inside.ask
        if await ask("document", place.path) is not None:
            return True
        return place.own != place.path and await ask("document", place.own) is not None

    # Names that depend on how a module was started

    async def _other_names(self) -> list[str]:
        """Return the names under which other processes may have made this call.

        The name of a tool in a folder without `__init__.py` depends on how its module is started:
        `agents.pay` or `proj.agents.pay`. The names of other tools of this process are left out.
        """
        known: dict[str, list[str]] = self._inside.attempt_values.setdefault(NAMES, {})
        name = self._terms.name
        if name not in known:
            names = await self._recorded_names()
            known[name] = [one for one in names if one not in declared and is_same_task(one, name)]
        return known[name]

    async def _recorded_names(self) -> list[str]:
        """Record the name of the tool, for processes that call it by another one; return all."""
        name, ask = self._terms.name, self._inside.ask
        key, names = tool_names(name), list[str]()
        for _ in range(TRIES):
            found = await ask("document", key)
            names, version = ([], 0) if found is None else (read_names(found[0]), found[1])
            if name in names:
                break
            body = write([*names, name][-MAX_NAMES:])
            if await ask("put", (key, body, version, None)) is not None:
                break
        return names

    # Runs that began when keys were derived from payloads

    @property
    def _met(self) -> set[str]:
        met: set[str] = self._inside.attempt_values.setdefault(MET, set())
        return met

    async def _may_be_former(self) -> bool:
        """Return whether the store has receipts of older versions; checked once per attempt."""
        attempt_values = self._inside.attempt_values
        if FORMER not in attempt_values:
            attempt_values[FORMER] = any(
                map(is_former, await self._inside.ask("keys", RECEIPTS, "", 1))
            )
        known: bool = attempt_values[FORMER]
        return known

    def _former(self) -> Iterator[CallPosition]:
        """Yield where older versions may have stored the receipt of this call."""
        terms, job = self._terms, self._job
        ids = {"run": job.run, "session": f"{job.tenant or ''}/{job.session}"}
        which = [terms.name, terms.version, terms.scope, ids.get(terms.scope, "")]
        digests = former_digests(self._code, *self._given)
        calls = () if self._unordered else tuple(digests)
        if terms.key_fields:
            parts: list[list[Any]] = [[[self._arguments.get(name) for name in terms.key_fields]]]
        elif terms.call_id is not None:
            parts = [["call", terms.call_id]]
        else:
            parts = [[under.get(), self._occurrence, call] for call in digests]
        for part in parts:
            try:
                key = hashlib.sha256(msgspec.msgpack.encode([*which, *part])).hexdigest()
            except Exception:  # noqa: S112
                # A value that cannot be encoded never was a key.
                continue
            yield CallPosition(key, RECEIPTS + key, receipts_of_run(job.run) + key, calls)

    async def _is_usable(self, place: CallPosition) -> bool:
        """Return whether a receipt exists there and is valid for this job.

        Older versions stored the receipts of all tenants together, and all of them are now stored
        for longer than they are valid.
        """
        ask, job, terms = self._inside.ask, self._job, self._terms
        found = await ask("document", place.path)
        if found is None:
            return await ask("document", place.own) is not None
        receipt = read(found[0])
        if terms.scope == "run" or receipt.job in (job.id, job.run):
            return True
        maker: Job | None = await ask("job", receipt.job)
        if maker is None:
            return not receipt.is_settled
        if terms.scope == "global" and not terms.shared and maker.tenant != job.tenant:
            return False
        ended = maker.finished_at
        age = 0.0 if ended is None else (datetime.now(UTC) - ended).total_seconds()
        return not receipt.is_settled or age < terms.dedupe_ttl

    async def _has_strays(self) -> bool:
        """Return whether this run has receipts of the tool that no call has matched so far.

        One of them may belong to this call: its key depended on the order of a set, which is lost.
        """
        after = ""
        while True:
            keys = await self._inside.ask("keys", RECEIPTS, after, AT_ONCE)
            for key in filter(is_former, keys):
                found = await self._inside.ask("document", key)
                if found is not None and key not in self._met and self._is_stray(read(found[0])):
                    return True
            if len(keys) < AT_ONCE or not is_former(keys[-1]):
                return False
            after = keys[-1]

    def _is_stray(self, receipt: Receipt) -> bool:
        return (
            receipt.tool == self._terms.name
            and receipt.job in (self._job.id, self._job.run)
            and receipt.stage is not ReceiptStage.FAILED
        )
