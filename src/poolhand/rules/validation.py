"""Validation: which values an option may have, and the texts of errors about others.

A set of options is one table, from their names to what is allowed; all faults are reported at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import Any, NamedTuple

from msgspec import Struct
from msgspec.structs import force_setattr

from poolhand.errors import UsageError

Predicate = Callable[[Any], bool]
Seconds = float | timedelta
"""A duration as users give it; `to_seconds` makes one number of both, where it comes in."""

LARGEST = 1e18
LONGEST_NAME = 1_000  # bytes: enough for any id or path; two of them fit into any index
LONGEST_SHOWN = 200

# Option names of other task queues that are spelled too differently for `nearest` to find.
SYNONYMS = {
    "backoff": ("factor", "first", "retry"),
    "concurrency": ("slots", "max_concurrent", "prefetch_per_worker"),
    "countdown": ("delay",),
    "eta": ("run_at",),
    "max_attempts": ("attempts", "retry"),
    "max_delay": ("cap",),
    "max_retries": ("attempts", "retry"),
    "queue": ("pool",),
    "queues": ("pools",),
    "retries": ("attempts", "retry"),
    "size": ("max_concurrent", "slots"),
    "soft_time_limit": ("soft_timeout",),
    "strategy": ("queue",),
    "time_limit": ("timeout",),
    "timezone": ("tz",),
    "workers": ("max_concurrent", "slots", "max_workers"),
    "zone": ("tz",),
}


def shown(value: object) -> str:
    """Return the repr of a value for an error message, shortened if it is long."""
    if isinstance(value, str | bytes):
        value = value[: LONGEST_SHOWN + 1]
    try:
        text = repr(value)
    except Exception:
        # The user's `__repr__` raised, or an int has more digits than Python converts.
        return f"<a {type(value).__name__}>"
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}…"


def nearest(name: object, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """Return the known name that was probably meant, None if none is similar enough."""
    if not is_short(name):
        return None
    # Imported here because only errors need it.
    from difflib import get_close_matches

    by_letters = {one.casefold().replace("-", "_"): one for one in known}
    word = str(name).casefold().replace("-", "_")
    near = get_close_matches(word, by_letters, n=1, cutoff=cutoff)
    return by_letters[near[0]] if near else None


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """Return the end of an error about an unknown name: the nearest known name, or all names."""
    names = list(known)
    near = nearest(name, names)
    return f"there are {', '.join(names)}" if near is None else f"did you mean {near!r}?"


def no_option(name: object, known: Iterable[str], of: str = "") -> str:
    """Return the error about an unknown option, with the option that was probably meant."""
    names = list(known)
    near = next((one for one in SYNONYMS.get(str(name), ()) if one in names), None)
    hint = did_you_mean(name if near is None else near, names) if names else "there are none"
    return f"{shown(name)} is not an option{of}; {hint}"


def is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())


def is_short(value: object) -> bool:
    """Return whether a value is a text, blank or not, no longer than a name may be."""
    if not isinstance(value, str) or len(value) > LONGEST_NAME:
        return False
    return value.isascii() or len(value.encode(errors="surrogatepass")) <= LONGEST_NAME


def is_name(value: Any) -> bool:
    """Return whether a value can name a task, a pool, a session or the like."""
    return is_text(value) and is_short(value) and is_writable(value)


def is_writable(text: str) -> bool:
    """Return whether every store can hold a text: none holds NUL or half a surrogate pair."""
    if "\0" in text:
        return False
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def is_whole(value: Any) -> bool:
    return is_int(value) and 0 <= value <= LARGEST


def is_count(value: Any) -> bool:
    return is_int(value) and 1 <= value <= LARGEST


def is_number(value: Any) -> bool:
    # Compared, not converted: an int may be too large for a float. NaN and infinity fail.
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and -LARGEST <= value <= LARGEST


def is_seconds(value: Any) -> bool:
    return is_number(value) and value >= 0


def is_amount(value: Any) -> bool:
    return is_seconds(value) and value > 0


class OptionRule(NamedTuple):
    """What an option may be: a predicate, and a text that goes on after "it must be"."""

    fits: Predicate
    text: str

    def faults(self, name: str, value: object) -> list[str]:
        """Return the error about a value, in a list; an empty list if the value is allowed."""
        return [] if self.fits(value) else [not_allowed(name, value, self.text)]

    def require(self, name: str, value: object) -> None:
        """Raise UsageError unless the value is allowed."""
        if not self.fits(value):
            raise UsageError(not_allowed(name, value, self.text))

    def or_none(self) -> OptionRule:
        return OptionRule(lambda value: value is None or self.fits(value), f"{self.text}, or None")


OptionTable = Mapping[str, OptionRule]

COUNT = OptionRule(is_count, "an int of at least 1 and at most 10**18")
WHOLE = OptionRule(is_whole, "an int of 0 or more and at most 10**18")
SECONDS = OptionRule(is_seconds, "seconds, 0 or more and at most 10**18")
AMOUNT = OptionRule(is_amount, "seconds above 0 and at most 10**18")
NAME = OptionRule(
    is_name, f"a non-blank text of at most {LONGEST_NAME:,} bytes in UTF-8, without NUL"
)
POOL_NAME = OptionRule(
    lambda value: is_name(value) and value == value.strip(),
    f"{NAME.text}, and without blanks at its ends",
)
FLAG = OptionRule(lambda value: isinstance(value, bool), "True or False")


def instance_of(kind: type, text: str) -> OptionRule:
    return OptionRule(lambda value: isinstance(value, kind), text)


def one_of(*values: object) -> OptionRule:
    """Allow these values; the text lists them."""
    *rest, last = map(repr, values)
    text = f"{', '.join(rest)} or {last}" if rest else last
    return OptionRule(lambda value: value in values, text)


def not_allowed(name: str, value: object, allowed: str) -> str:
    return f"{name}={shown(value)} is not allowed; it must be {allowed}"


def table_faults(table: OptionTable, values: Mapping[str, object]) -> list[str]:
    """Return the errors about values; their names are all in the table."""
    return [fault for name, value in values.items() for fault in table[name].faults(name, value)]


def raise_faults(where: str, faults: Iterable[str]) -> None:
    """Raise UsageError with all faults, if there are any."""
    if text := "; ".join(faults):
        raise UsageError(f"{where}: {text}")


def check_record(record: Struct, table: OptionTable) -> None:
    """Raise UsageError listing every field of a record that its table does not allow."""
    values = {name: getattr(record, name) for name in table}
    raise_faults(type(record).__name__, table_faults(table, values))


def to_seconds(value: Any) -> Any:
    """Return a timedelta in seconds, and any other value unchanged, to be validated later.

    Options are converted before they are validated, so all other code handles only floats.
    """
    return value.total_seconds() if isinstance(value, timedelta) else value


def convert_seconds(record: Struct, *fields: str) -> None:
    """Convert fields of a new record to seconds; only its `__post_init__` may call this."""
    for field in fields:
        value = getattr(record, field)
        if isinstance(value, timedelta):
            force_setattr(record, field, to_seconds(value))
