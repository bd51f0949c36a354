"""Settings: the names, types, limits and defaults of everything that can be configured.

Nothing is read here: `config` finds the configured values and their origins.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from types import MappingProxyType

from msgspec import Struct

from poolhand.errors import UsageError
from poolhand.rules.scaling.worker_count import FarmSettings
from poolhand.rules.validation import instance_of, not_allowed, shown

PREFIX = "POOLHAND_"
DEFAULT_STORE = "sqlite:///poolhand.db"
DAY = 86_400
YEAR = 365 * DAY
NONE = "none"

Plain = str | int | float | bool | None

_URL = re.compile(r"[A-Za-z][\w+.-]*://.+|memory://")
_APP = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")
_WHOLE = re.compile(r"[0-9]{1,12}")
_NUMBER = re.compile(r"[0-9]{1,12}(\.[0-9]{0,12})?|\.[0-9]{1,12}")
_SWITCH = {"true": True, "yes": True, "on": True, "1": True}
_SWITCH |= {"false": False, "no": False, "off": False, "0": False}


class SettingKind(Struct, frozen=True):
    """A type of setting: `parse` converts a text to a value, or raises a ValueError.

    Only where `text` is False may a file give numbers and booleans as such.
    """

    allowed: str
    parse: Callable[[str], Plain]
    text: bool = True


class Setting(Struct, frozen=True):
    """One setting; if `bare`, also set by a variable without our prefix.

    Only `poolhand work` reads those: for other processes such names may mean something else. A
    setting without a `flag` can be set only in the environment or the file.
    """

    name: str
    help: str
    kind: SettingKind
    default: str | None = None
    flag: str = ""
    bare: bool = False

    @property
    def variable(self) -> str:
        return PREFIX + self.name.upper()

    @property
    def variables(self) -> tuple[str, ...]:
        """The environment variables; the first one that is set counts."""
        return (self.variable, self.name.upper()) if self.bare else (self.variable,)


def written(value: object) -> str:
    """Return a value from a file or a flag as the text that a variable would have."""
    match value:
        case str():
            return value
        case bool():
            return str(value).lower()
        case _:
            return shown(value).removesuffix(".0")


def _matching(pattern: re.Pattern[str], allowed: str) -> SettingKind:
    def parse(text: str) -> str:
        if not pattern.fullmatch(text):
            raise ValueError(text)
        return text

    return SettingKind(allowed, parse)


def _whole(least: int, most: int) -> SettingKind:
    def parse(text: str) -> int:
        if not _WHOLE.fullmatch(text.strip()) or not least <= int(text) <= most:
            raise ValueError(text)
        return int(text)

    return SettingKind(f"a whole number from {least:,} to {most:,}", parse, text=False)


def _seconds(least: float, most: int, *, or_none: bool = False) -> SettingKind:
    def parse(text: str) -> float | None:
        if or_none and text.strip().lower() == NONE:
            return None
        if not _NUMBER.fullmatch(text.strip()) or not least <= float(text) <= most:
            raise ValueError(text)
        return float(text)

    allowed = f"seconds from {least:g} to {most:,}{f', or {NONE}' if or_none else ''}"
    return SettingKind(allowed, parse, text=False)


def _one_of(*words: str) -> SettingKind:
    def parse(text: str) -> str:
        if text.strip().lower() not in words:
            raise ValueError(text)
        return text.strip().lower()

    return SettingKind(f"one of {', '.join(words)}", parse)


def _parse_switch(text: str) -> bool:
    try:
        return _SWITCH[text.strip().lower()]
    except KeyError:
        raise ValueError(text) from None


def _parse_zone(text: str) -> str:
    if text != "UTC":
        # Imported only where needed; UTC needs no time zone file of the machine.
        from zoneinfo import ZoneInfo

        try:
            ZoneInfo(text)
        except (KeyError, OSError) as error:
            raise ValueError(text) from error
    return text


_FARM = FarmSettings()
_INTERVAL = _seconds(0.05, 3_600)
_SPAN = _seconds(0, DAY)
_LIMIT = _seconds(0.05, YEAR, or_none=True)
_BATCH = _whole(1, 1_000)


def _of_farm(name: str, help: str, kind: SettingKind, flag: str = "", bare: bool = True) -> Setting:
    default = getattr(_FARM, name)
    text = None if default is None else written(default)
    return Setting(name, help, kind, text, flag, bare)


URL = _matching(_URL, "a URL such as sqlite:///agents.db or postgresql://user@host/database")
APP = _matching(_APP, "module:attribute, such as myproject.agents:app")
LOGLEVELS = ("debug", "info", "warning", "error")

FARM = (
    _of_farm("min_workers", "worker processes there always are", _whole(0, 1_000), "--min"),
    _of_farm("max_workers", "worker processes there are at most", _whole(1, 1_000), "--max"),
    _of_farm(
        "surge",
        "processes beyond the maximum while workers are replaced",
        _whole(0, 1_000),
        "--surge",
    ),
    _of_farm(
        "prefetch_per_worker", "jobs at once in one worker", _whole(1, 10_000), "--concurrency"
    ),
    _of_farm("scale_up_batch_size", "workers started in one step", _BATCH),
    _of_farm("scale_down_batch_size", "workers stopped in one step", _BATCH),
    _of_farm("scale_check_interval_s", "how often the number of workers is judged", _INTERVAL),
    _of_farm("scale_up_wait_s", "how long a job waits while all are busy until more start", _SPAN),
    _of_farm("scale_down_cooldown_s", "how long the load is light until fewer run", _SPAN),
    _of_farm(
        "worker_shutdown_grace_s",
        "how long running jobs may go on when a worker stops",
        _SPAN,
        "--grace",
    ),
    _of_farm("heartbeat_interval_s", "how often a sign of life is given", _INTERVAL),
    _of_farm("task_history_max", "finished jobs kept in view", _whole(0, 100_000)),
    _of_farm("max_jobs_per_worker", "jobs until a worker is replaced; 0: never", _whole(0, 10**9)),
    _of_farm(
        "max_memory_mb_per_worker", "MB until a worker is replaced; 0: never", _whole(0, 10**8)
    ),
    _of_farm("soft_timeout_s", "when jobs without a timeout are asked to stop", _LIMIT),
    _of_farm("hard_timeout_s", "when jobs without a timeout are made to stop", _LIMIT),
    _of_farm("hard_exit_after_s", "how long the others go on when a job cannot be stopped", _SPAN),
    _of_farm("loop_blocked_limit_s", "how long a job may block a worker", _seconds(0.05, DAY)),
    _of_farm(
        "timezone",
        "the zone of schedules",
        SettingKind("a zone such as Europe/Paris", _parse_zone),
        bare=False,
    ),
    _of_farm(
        "external",
        "only report how many workers are wanted",
        SettingKind("true or false", _parse_switch, text=False),
        "--external",
        bare=False,
    ),
)
SETTINGS = (
    Setting("store", "the store of jobs", URL, DEFAULT_STORE, "--store"),
    Setting("app", "the app whose store to look at", APP, flag="--app"),
    Setting("loglevel", "the least of what is logged", _one_of(*LOGLEVELS), "info", "--loglevel"),
    *FARM,
)
IN_ORDER = (("min_workers", "max_workers"), ("soft_timeout_s", "hard_timeout_s"))
"""Pairs of settings of which the second is at least the first, where both are set."""

PROFILES: Mapping[str, Mapping[str, str]] = MappingProxyType({"llm": {"prefetch_per_worker": "1"}})
"""Names for kinds of work, and what they change."""


def check_farm(settings: object) -> None:
    """Raise UsageError listing every fault of farm settings that a program created itself."""
    instance_of(FarmSettings, "FarmSettings(…)").require("settings", settings)
    faults = [
        fault for setting in FARM if (fault := _fault(setting, getattr(settings, setting.name)))
    ]
    for low, high in IN_ORDER:
        least, most = getattr(settings, low), getattr(settings, high)
        if not faults and None not in (least, most) and most < least:
            faults.append(not_allowed(high, most, f"at least {low}={least}"))
    if faults:
        raise UsageError("; ".join(faults))


def _fault(setting: Setting, value: object) -> str | None:
    fault = not_allowed(setting.name, value, setting.kind.allowed)
    try:
        parsed = setting.kind.parse(NONE if value is None else written(value))
    except ValueError:
        return fault
    # A text may stand for a number in a variable, but not in a program.
    return None if parsed == value else fault
