"""Settings: from flags, the environment and pyproject.toml, read once, checked as a whole.

The first place that names a value wins: a flag, a variable, a profile, the file, the default.
Nothing else in the package reads the environment or TOML.
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
from poolhand.rules.scaling.farm_settings import FarmSettings
from poolhand.rules.validation import did_you_mean, nearest
from poolhand.rules.validation import shown as cut
from poolhand.settings import FARM, IN_ORDER, PREFIX, PROFILES, SETTINGS, Plain, Setting, written

FILE = "pyproject.toml"
TABLE = "tool.poolhand"
DEFAULT = "default"

_HIDDEN = "***"
_WITHOUT_LOGIN = ("sqlite", "memory")
_HOST = re.compile(r"(?:\[[^\[\]]*\]|[^\[\]:]*)(?::\d{0,5})?")
_NAME = re.compile(r"[\w.%-]+")
_QUERY = re.compile(r"[A-Za-z_]*(=[^/]*)?")
_SECRET = re.compile(r"(?i)pass|secret|token|key")


class Value(Struct, frozen=True):
    """A setting as it is in force; `origin` says where it came from, `rank` how near that is.

    `value` is what its text means.
    """

    name: str
    text: str | None
    origin: str
    rank: int
    value: Plain = None

    @property
    def shown(self) -> str | None:
        """The text as people and logs may see it."""
        return None if self.text is None else masked(self.text)

    @property
    def plain(self) -> Plain:
        """The value as programs may see it."""
        return masked(self.value) if isinstance(self.value, str) else self.value

    @property
    def is_default(self) -> bool:
        """Whether no place names this value."""
        return self.origin == DEFAULT

    def __str__(self) -> str:
        return f"{self.name}={cut(self.shown)} ({self.origin})"


class Config(Struct, frozen=True):
    """All settings. `unknown` are variables that look like ours and are not."""

    store: Value
    app: Value
    loglevel: str
    farm: FarmSettings
    found: tuple[Value, ...]
    unknown: tuple[str, ...] = ()

    def values(self) -> list[Value]:
        """Return every value, in the order of the table."""
        return list(self.found)


class ConfigSources(Struct, frozen=True):
    """Where a value may be named."""

    flags: Mapping[str, Plain]
    environment: Mapping[str, str]
    profile: str | None
    file: Mapping[str, str]

    def of(self, setting: Setting) -> Iterator[tuple[str, str | None]]:
        """Give the origin and the text in each of these places, the nearest first."""
        flag = self.flags.get(setting.name)
        yield f"flag {setting.flag}", None if flag is None else written(flag)
        for variable in setting.variables:
            # An empty variable is how shells and container files say "not set".
            yield f"environment {variable}", self.environment.get(variable) or None
        chosen = PROFILES.get(self.profile or "", {})
        yield f"flag --profile {self.profile}", chosen.get(setting.name)
        yield f"{FILE} [{TABLE}]", self.file.get(setting.name)
        yield DEFAULT, setting.default


def load(*, profile: str | None = None, **flags: Plain) -> Config:
    """Read all settings of this process, here and now."""
    return read(flags, os.environ, Path(), profile)


def load_store(*, store: str | None = None, app: str | None = None) -> tuple[Value, Value]:
    """Read only which store and which app this process means.

    What is set for a farm is not judged: who looks at a store runs none, and names without our
    prefix may be set for something else.
    """
    values = _some({"store": store, "app": app})
    return values["store"], values["app"]


def load_app_store() -> Value:
    """Read only which store an app uses whose code names none."""
    return _some({"store": None})["store"]


def load_timezone() -> str:
    """Read only which zone the times of schedules are meant in."""
    return str(_some({"timezone": None})["timezone"].value)


def _some(flags: Mapping[str, Plain]) -> dict[str, Value]:
    """Read these settings alone."""
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

    A profile is a name for values that are nearer than the file and further than the environment.
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
    """Return the variables of the environment that nearly name a setting, and so do not set it."""
    known = {f"{PREFIX}{one.name.upper()}" for one in SETTINGS}
    ours = (name for name in sorted(os.environ) if name.startswith(PREFIX) and name not in known)
    return [name for name in ours if nearest(name.removeprefix(PREFIX), [setting], 0.75)]


def unknown_variable(name: str) -> str:
    """Return what is wrong with a variable that has our prefix and is none of ours."""
    # Without the prefix, which would make any two of them similar.
    near = nearest(name.removeprefix(PREFIX), (setting.name for setting in SETTINGS))
    hint = "see `poolhand config`" if near is None else f"did you mean {PREFIX}{near.upper()}?"
    return f"{name} is no variable of poolhand and has no effect; {hint}"


def person() -> str:
    """Return the name of who sits here, as the machine knows it."""
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):
        return "operator"


def masked(url: str) -> str:
    """Return a URL without its secrets: passwords, and what is called a secret in the query.

    Where it is not written as it should be, rather too much is hidden than a part of a password
    shown.
    """
    scheme, separator, rest = url.partition("://")
    if scheme.lower() in _WITHOUT_LOGIN:
        return url
    if not separator:
        # Nearly one: postgresql:/me:secret@host
        head, _, behind = url.partition(":")
        return f"{head}:{_HIDDEN}@{behind.rpartition('@')[2]}" if "@" in behind else url
    place, mark, query = rest.partition("?")
    words = query.split("&")
    if not all(map(_is_word, words)):
        # Then the mark may be a part of a password.
        shown, mark, _ = _without_login(rest).partition("?")
        return f"{scheme}://{shown}{mark}{_HIDDEN if mark else ''}"
    return f"{scheme}://{_without_login(place)}{mark}{'&'.join(map(_without_value, words))}"


def located(url: str) -> str:
    """Return the URL of a store as people are shown it: without secrets, files by their full path.

    A relative path means another file in each folder, so that it does not say which store is used.
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
        # The current folder is gone, or no file can have that name.
        return url
    return f"{scheme}://{'/' + full}{'' if query is None else f'?{query}'}"


def parted(rest: str) -> tuple[str, str | None]:
    """Return what stands before the options of a URL, and these; a name may have a ? in it."""
    path, mark, query = rest.rpartition("?")
    return (path, query) if mark and _QUERY.fullmatch(query) else (rest, None)


def _is_word(word: str) -> bool:
    """Tell whether this can be an option behind the ? of a URL."""
    name, _, value = word.partition("=")
    return not word or (bool(_NAME.fullmatch(name)) and ("@" not in value or "://" in value))


def _without_login(place: str) -> str:
    # Up to the last @, as a password may hold every other mark, rightly escaped or not.
    login, at, host = place.rpartition("@")
    if at:
        user, colon, _ = login.partition(":")
        return f"{user}{colon}{_HIDDEN if colon else ''}{at}{host}"
    # Without one, what cannot be a port may be a password with no host behind it.
    hosts = host.partition("/")[0].split(",")
    return host if all(map(_HOST.fullmatch, hosts)) else f"{host.partition(':')[0]}:{_HIDDEN}"


def _without_value(word: str) -> str:
    name, sign, value = word.partition("=")
    if _SECRET.search(unquote(name)):
        return f"{name}{sign}{_HIDDEN}"
    inner = unquote(value)
    return f"{name}{sign}{masked(inner)}" if "://" in inner else word


def without_secrets(text: str, urls: Iterable[str]) -> str:
    """Return a text in which these URLs are masked, quoted ones too."""
    for url in urls:
        for spelled in (url, repr(url)[1:-1]):
            text = text.replace(spelled, masked(url))
    return text


def _value(setting: Setting, places: ConfigSources, faults: list[str]) -> Value:
    """Return the value of the nearest place; one that is not allowed is added to the faults."""
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
    """Tell of pairs that are each allowed, but not together."""
    for low, high in IN_ORDER:
        least, most = values[low], values[high]
        match (least.value, most.value):
            case (int() | float() as bottom, int() | float() as top) if top < bottom:
                yield f"{most} is not allowed; it must be at least {least}"


def _raise(faults: list[str]) -> None:
    if faults:
        raise UsageError("; ".join(faults))


def _table_of(path: Path, faults: list[str]) -> dict[str, str]:
    """Return our table of the file, without what is wrong in it; that is added to the faults."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        faults.append(f"{FILE} cannot be read: {error}; mend it or move it away")
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
        return f"{name!r} in [{TABLE}] of {FILE} is no setting; {hint}"
    if isinstance(value, str) or (isinstance(value, int | float) and not kinds[name].text):
        return None
    allowed = "a string" if kinds[name].text else kinds[name].allowed
    return f"{name}={cut(value)} in [{TABLE}] of {FILE} is not allowed; it must be {allowed}"
