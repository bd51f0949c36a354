"""The options of a tool: its effect, how long and in which scope calls are deduplicated."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

from msgspec import Struct

from poolhand.durable.calls.task_name import name_of_task
from poolhand.errors import UsageError
from poolhand.rules.receipts import Effect
from poolhand.rules.validation import (
    AMOUNT_ALLOWED,
    COUNT_ALLOWED,
    NAME_ALLOWED,
    convert_seconds,
    did_you_mean,
    is_amount,
    is_count,
    is_name,
    shown,
)

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
    if not is_name(terms.name):
        raise UsageError(f"tool name={shown(terms.name)} is not allowed; it must be {NAME_ALLOWED}")
    if not is_count(terms.version):
        faults.append(f"version={shown(terms.version)} is not allowed; it must be {COUNT_ALLOWED}")
    if terms.scope not in SCOPES:
        faults.append(f"scope={shown(terms.scope)} is not allowed; give one of {SCOPES}")
    if fields and terms.scope == "run":
        faults.append(
            "key_fields go with scope='session' or 'global': within a run calls have places"
        )
    if terms.verify is not None and not callable(terms.verify):
        faults.append(
            f"verify={shown(terms.verify)} is not allowed; give a function of the same parameters"
        )
    if not isinstance(terms.shared, bool):
        faults.append(f"shared={shown(terms.shared)} is not allowed; give True or False")
    elif terms.shared and terms.scope != "global":
        faults.append("shared=True goes with scope='global': other scopes have one tenant")
    faults += [
        f"{name}={shown(value)} is not allowed; give {AMOUNT_ALLOWED}"
        for name in ("dedupe_ttl", "timeout")
        if not is_amount(value := getattr(terms, name))
    ]
    if faults:
        raise UsageError(f"tool {terms.name!r}: " + "; ".join(faults))
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
