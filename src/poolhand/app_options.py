"""App options: the arguments of App, and the store it uses when its code names none."""

from __future__ import annotations

from collections.abc import Collection
from typing import TypedDict

from poolhand.config import (
    DEFAULT,
    STORE_NAMES,
    load_app_store,
    located,
    misspelt_variables,
    unknown_variable,
)
from poolhand.errors import UsageError
from poolhand.observe.events import Events
from poolhand.observe.failures import warn
from poolhand.rules.lifecycle import Keep
from poolhand.rules.validation import nearest, shown
from poolhand.runtime import Runtime
from poolhand.wire.payload import Wire

IN_CODE = "the code"


class AppOptions(TypedDict, total=False):
    """The options of `App(…)` besides the URL of its store."""

    wire: Wire
    keep: Keep
    runtime: Runtime | None
    events: Events | None


def check_names(given: Collection[str]) -> None:
    """Raise UsageError for unknown options, and suggest the one that may be meant."""
    known = list(AppOptions.__annotations__)
    faults = [_fault(name, known) for name in given if name not in known]
    if faults:
        raise UsageError(f"App: {'; '.join(faults)}")


def checked_wire(given: Wire | None) -> Wire:
    """Return how an app writes values; raise UsageError if this is no Wire."""
    if given is None:
        return Wire()
    if not isinstance(given, Wire):
        # Without the value: it may be a secret that was meant for a ring.
        kind = type(given).__name__
        raise UsageError(f"App: wire is of type {kind}; it must be Wire(codec=…, limits=…, …)")
    return given


def _fault(name: str, known: list[str]) -> str:
    part = nearest(name, Wire.__struct_fields__)
    near = nearest(name, known)
    if near is not None:
        hint = f"did you mean {near}=?"
    elif part is not None:
        hint = f"write wire=Wire({part}=…), with Wire of poolhand.settings"
    elif nearest(name, STORE_NAMES) is not None:
        hint = 'the URL of the store comes first: App("sqlite:///agents.db")'
    else:
        hint = f"there are {', '.join(known)}"
    return f"{shown(name)} is not an option; {hint}"


def chosen_store(url: str | None) -> tuple[str, str]:
    """Return the URL of an app's store, and its origin: the code, or else the settings."""
    if url is not None:
        return str(url), IN_CODE
    found = load_app_store()
    assert found.text is not None
    for name in misspelt_variables("store"):
        warn(f"{unknown_variable(name)} This app uses {located(found.text)} ({found.origin})")
    return found.text, found.origin


def store_line(url: str, origin: str) -> str:
    """Return one line for people that names the store an app uses, and its origin."""
    named = "the default, as nothing names one" if origin == DEFAULT else f"from {origin}"
    return f"store {located(url)} ({named})"


def store_conflict(app: str, used: str, named: str, origin: str) -> str | None:
    """Return a warning if a setting names another store than the app's code, else None."""
    if located(used) == located(named):
        return None
    return (
        f"the code of {app} uses the store {located(used)}, and {origin} names {located(named)}, "
        "which this app does not use; remove the setting, or write App() without a URL to use it"
    )
