"""Configuration: read settings once from flags, environment and pyproject.toml, and check them all.

The first place that names a value wins: a flag, a variable, a profile, the file, the default.
No other module of the package reads the environment or TOML.
"""

from __future__ import annotations

import getpass
import os
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from urllib.parse import unquote

from msgspec import Struct, convert, structs

from poolhand.errors import UsageError
from poolhand.rules.scaling.worker_count import FarmSettings
from poolhand.rules.validation import did_you_mean, nearest
from poolhand.rules.validation import shown as cut
from poolhand.setting_table import (
    FARM,
    IN_ORDER,
    PREFIX,
    PROFILES,
    SETTINGS,
    Plain,
    Setting,
    written,
)

FILE = "pyproject.toml"
TABLE = "tool.poolhand"
DEFAULT = "default"

STORE_NAMES = ("url", "store", "store_url", "database", "database_url", "db", "dsn", "uri")
"""Names under which users look for the setting `store`."""
_HIDDEN = "***"
_WITHOUT_LOGIN = ("sqlite", "memory")
_HOST = re.compile(r"(?:\[[^\[\]]*\]|[^\[\]:]*)(?::\d{0,5})?")
_NAME = re.compile(r"[\w.%-]+")
_QUERY = re.compile(r"[A-Za-z_]*(=[^/]*)?")
_SECRET = re.compile(r"(?i)pass|secret|token|key")


class Value(Struct, frozen=True):
    """A setting in force; `origin` is where its text comes from, `rank` the precedence of that.

    `value` is the parsed text.
    """

    name: str
    text: str | None
    origin: str
    rank: int
    value: Plain = None

    @property
    def shown(self) -> str | None:
        """The text with secrets masked, for people and logs."""
        return None if self.text is None else masked(self.text)

    @property
    def plain(self) -> Plain:
        """The parsed value with secrets masked, for programs."""
        return masked(self.value) if isinstance(self.value, str) else self.value

    @property
    def is_default(self) -> bool:
        """Whether this value is the default."""
        return self.origin == DEFAULT

    def __str__(self) -> str:
        return f"{self.name}={cut(self.shown)} ({self.origin})"


class Config(Struct, frozen=True):
    """All settings. `unknown` are variables with our prefix that are not settings."""

    store: Value
    app: Value
    loglevel: str
    farm: FarmSettings
    found: tuple[Value, ...]
    unknown: tuple[str, ...] = ()

    def values(self) -> list[Value]:
        """Return every value, in the order of the settings table."""
        return list(self.found)


class ConfigSources(Struct, frozen=True):
    """The places where a value may be set."""

    flags: Mapping[str, Plain]
    environment: Mapping[str, str]
    profile: str | None
    file: Mapping[str, str]

    def of(self, setting: Setting) -> Iterator[tuple[str, str | None]]:
        """Yield the origin and the text in each of these places, highest precedence first."""
        flag = self.flags.get(setting.name)
        yield f"flag {setting.flag}", None if flag is None else written(flag)
        for variable in setting.variables:
            # Shells and container files use an empty variable for "not set".
            yield f"environment {variable}", self.environment.get(variable) or None
        chosen = PROFILES.get(self.profile or "", {})
        yield f"flag --profile {self.profile}", chosen.get(setting.name)
        yield f"{FILE} [{TABLE}]", self.file.get(setting.name)
        yield DEFAULT, setting.default


def load(*, profile: str | None = None, **flags: Plain) -> Config:
    """Read all settings of this process."""
    return read(flags, os.environ, Path(), profile)


def load_store(*, store: str | None = None, app: str | None = None) -> tuple[Value, Value]:
    """Read only the store and the app of this process.

    Farm settings are not validated: a command that only reads a store runs no farm, and variables
    without our prefix may be set for something else.
    """
    values = _some({"store": store, "app": app})
    return values["store"], values["app"]


def load_app_store() -> Value:
    """Read only the store of an app whose code names none."""
    return _some({"store": None})["store"]


def load_timezone() -> str:
    """Read only the time zone of schedules."""
    return str(_some({"timezone": None})["timezone"].value)


def _some(flags: Mapping[str, Plain]) -> dict[str, Value]:
    """Read only these settings."""
    faults: list[str] = []
    places = ConfigSources(flags, os.environ, None, _table_of(Path() / FILE, faults))
    values = {s.name: _value(s, places, faults) for s in SETTINGS if s.name in flags}
    _raise(faults)
    return values


def read(
    flags: Mapping[str, Plain],
    environment: Mapping[str, str],
    folder: Path,
    profile: str | None = None,
) -> Config:
    """Read all settings; raise a UsageError that names every fault at once.

    A profile is a named set of values that override the file and are overridden by the environment.
    """
    if strange := flags.keys() - {setting.name for setting in SETTINGS if setting.flag}:
        raise TypeError(f"there is no flag for {', '.join(sorted(strange))}")
    faults: list[str] = []
    if profile is not None and profile not in PROFILES:
        given = f"profile={cut(profile)} (flag --profile)"
        faults.append(f"{given} is not allowed; it must be {' or '.join(PROFILES)}")
    places = ConfigSources(flags, environment, profile, _table_of(folder / FILE, faults))
    values = {setting.name: _value(setting, places, faults) for setting in SETTINGS}
    faults += _out_of_order(values)
    _raise(faults)
    return Config(
        store=values["store"],
        app=values["app"],
        loglevel=str(values["loglevel"].value),
        farm=convert({s.name: values[s.name].value for s in FARM}, FarmSettings),
        found=tuple(values.values()),
        unknown=unknown_variables(environment),
    )


def unknown_variables(environment: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """Return the variables, of the environment by default, that look like ours and are not."""
    names = os.environ if environment is None else environment
    known = {setting.variable for setting in SETTINGS}
    return tuple(sorted(one for one in names if one.startswith(PREFIX) and one not in known))


def misspelt_variables(setting: str) -> list[str]:
    """Return environment variables that are probably misspellings of a setting."""
    known = {f"{PREFIX}{one.name.upper()}" for one in SETTINGS}
    ours = (name for name in sorted(os.environ) if name.startswith(PREFIX) and name not in known)
    return [name for name in ours if _is_meant(name.removeprefix(PREFIX), setting)]


def _is_meant(name: str, setting: str) -> bool:
    is_other_name = setting == "store" and name.lower() in STORE_NAMES
    return is_other_name or nearest(name, [setting], 0.75) is not None


def unknown_variable(name: str) -> str:
    """Return the error about a variable that has our prefix but is not a setting."""
    # Without the prefix, which would make any two names similar.
    bare = name.removeprefix(PREFIX)
    by_letters = nearest(bare, (setting.name for setting in SETTINGS))
    near = "store" if bare.lower() in STORE_NAMES else by_letters
    hint = "see `poolhand config`" if near is None else f"did you mean {PREFIX}{near.upper()}?"
    return f"{name} is not a variable of poolhand and has no effect; {hint}"


def person() -> str:
    """Return the login name of the current user, "operator" if it is unknown."""
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):
        return "operator"


def masked(url: str) -> str:
    """Return a URL with its secrets hidden: passwords, and query options named like secrets.

    In a malformed URL it hides too much rather than show a part of a password.
    """
    scheme, separator, rest = url.partition("://")
    if scheme.lower() in _WITHOUT_LOGIN:
        return url
    if not separator:
        # Almost a URL: postgresql:/me:secret@host
        head, _, behind = url.partition(":")
        return f"{head}:{_HIDDEN}@{behind.rpartition('@')[2]}" if "@" in behind else url
    place, mark, query = rest.partition("?")
    words = query.split("&")
    if not all(map(_is_word, words)):
        # Then the question mark may be a part of a password.
        shown, mark, _ = _without_login(rest).partition("?")
        return f"{scheme}://{shown}{mark}{_HIDDEN if mark else ''}"
    return f"{scheme}://{_without_login(place)}{mark}{'&'.join(map(_without_value, words))}"


def located(url: str) -> str:
    """Return the URL of a store for people: without secrets, files by their full path.

    A relative path means another file in each folder, so it does not identify the store.
    """
    scheme, separator, rest = url.partition("://")
    if scheme.lower() != "sqlite" or not separator or not rest.startswith("/"):
        return masked(url)
    path, query = parted(rest[1:])
    if not path or path == ":memory:":
        return url
    try:
        full = os.path.realpath(path)
    except (OSError, ValueError):
        # The current folder was deleted, or the name is invalid for a file.
        return url
    return f"{scheme}://{'/' + full}{'' if query is None else f'?{query}'}"


def parted(rest: str) -> tuple[str, str | None]:
    """Split a URL into path and query options; a file name may contain a question mark."""
    path, mark, query = rest.rpartition("?")
    return (path, query) if mark and _QUERY.fullmatch(query) else (rest, None)


def _is_word(word: str) -> bool:
    """Return whether this can be an option in the query of a URL."""
    name, _, value = word.partition("=")
    return not word or (bool(_NAME.fullmatch(name)) and ("@" not in value or "://" in value))


def _without_login(place: str) -> str:
    # Up to the last @, because a password may contain any other character, escaped or not.
    login, at, host = place.rpartition("@")
    if at:
        user, colon, _ = login.partition(":")
        return f"{user}{colon}{_HIDDEN if colon else ''}{at}{host}"
    # Without an @, text that cannot be a port may be a password without a host.
    hosts = host.partition("/")[0].split(",")
    return host if all(map(_HOST.fullmatch, hosts)) else f"{host.partition(':')[0]}:{_HIDDEN}"


def _without_value(word: str) -> str:
    name, sign, value = word.partition("=")
    if _SECRET.search(unquote(name)):
        return f"{name}{sign}{_HIDDEN}"
    inner = unquote(value)
    return f"{name}{sign}{masked(inner)}" if "://" in inner else word


def without_secrets(text: str, urls: Iterable[str]) -> str:
    """Return a text in which these URLs are masked, also where they appear as a repr."""
    for url in urls:
        for spelled in (url, repr(url)[1:-1]):
            text = text.replace(spelled, masked(url))
    return text


def _value(setting: Setting, places: ConfigSources, faults: list[str]) -> Value:
    """Return the value with the highest precedence; add it to the faults if it is not allowed."""
    found = list(places.of(setting))
    named = (rank for rank, (_, text) in enumerate(found) if text is not None)
    rank = next(named, len(found) - 1)
    origin, text = found[rank]
    value = Value(setting.name, text, origin, rank)
    if text is None:
        return value
    try:
        return structs.replace(value, value=setting.kind.parse(text))
    except ValueError:
        faults.append(f"{value} is not allowed; it must be {setting.kind.allowed}")
        return value


def _out_of_order(values: Mapping[str, Value]) -> Iterator[str]:
    """Yield the faults of pairs whose values are each allowed, but not together."""
    for low, high in IN_ORDER:
        least, most = values[low], values[high]
        match (least.value, most.value):
            case (int() | float() as bottom, int() | float() as top) if top < bottom:
                yield f"{most} is not allowed; it must be at least {least}"


def _raise(faults: list[str]) -> None:
    if faults:
        raise UsageError("; ".join(faults))


def _table_of(path: Path, faults: list[str]) -> dict[str, str]:
    """Return our table of the file without invalid entries, which are added to the faults."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        faults.append(f"{FILE} cannot be read: {error}; fix the file, or move it away")
        return {}
    table = content
    for part in TABLE.split("."):
        table = table.get(part, {})
        if not isinstance(table, dict):
            faults.append(f"[{TABLE}] in {FILE} is not a table; write `[{TABLE}]` on its own line")
            return {}
    faults += [fault for name, value in table.items() if (fault := _fault(name, value))]
    return {name: written(value) for name, value in table.items() if not _fault(name, value)}


def _fault(name: str, value: object) -> str | None:
    kinds = {setting.name: setting.kind for setting in SETTINGS}
    if name not in kinds:
        hint = did_you_mean(name, kinds)
        return f"{name!r} in [{TABLE}] of {FILE} is not a setting; {hint}"
    if isinstance(value, str) or (isinstance(value, int | float) and not kinds[name].text):
        return None
    allowed = "a string" if kinds[name].text else kinds[name].allowed
    return f"{name}={cut(value)} in [{TABLE}] of {FILE} is not allowed; it must be {allowed}"
