"""Validation: checks of single option values, and the texts of errors about them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any

from msgspec import Struct
from msgspec.structs import force_setattr

Predicate = Callable[[Any], bool]
Seconds = float | timedelta
"""A duration as users give it; `to_seconds` makes one number of both, where it comes in."""

LARGEST = 1e18
LONGEST_NAME = 1_000  # bytes: enough for any id or path; two of them fit into any index
LONGEST_SHOWN = 200
COUNT_ALLOWED = "an int of at least 1 and at most 10**18"
WHOLE_ALLOWED = "an int of 0 or more and at most 10**18"
SECONDS_ALLOWED = "seconds, 0 or more and at most 10**18"
AMOUNT_ALLOWED = "seconds above 0 and at most 10**18"
NAME_ALLOWED = f"a non-blank text of at most {LONGEST_NAME:,} bytes in UTF-8, without NUL"

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
    return f"{shown(name)} is no option{of}; {hint}"


def optional(check: Predicate) -> Predicate:
    return lambda value: value is None or check(value)


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


def is_seconds(value: Any) -> bool:
    return is_number(value) and value >= 0


def is_amount(value: Any) -> bool:
    return is_seconds(value) and value > 0
