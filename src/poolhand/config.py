"""Settings: from flags, the environment and pyproject.toml, read once, checked as a whole.

The first place that names a value wins: a flag, a variable, the file, the default. Nothing else in
the package reads the environment or TOML.
"""

from __future__ import annotations

import getpass
import os
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from urllib.parse import unquote

from msgspec import Struct

from poolhand.errors import UsageError

FILE = "pyproject.toml"
TABLE = "tool.poolhand"
PREFIX = "POOLHAND_"

_HIDDEN = "***"
_URL = re.compile(r"[A-Za-z][\w+.-]*://.+|memory://")
_APP = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")
_WITHOUT_LOGIN = ("sqlite", "memory")
_HOST = re.compile(r"(?:\[[^\[\]]*\]|[^\[\]:]*)(?::\d{0,5})?")
_NAME = re.compile(r"[\w.%-]+")
_SECRET = re.compile(r"(?i)pass|secret|token|key")


class Setting(Struct, frozen=True):
    """One value that can be set: `check` judges its text, `allowed` says what passes."""

    name: str
    help: str
    check: Callable[[str], bool]
    allowed: str
    default: str | None = None

    @property
    def variable(self) -> str:
        return PREFIX + self.name.upper()


SETTINGS = (
    Setting(
        "store",
        "the store to look at",
        lambda text: bool(_URL.fullmatch(text)),
        "a URL such as sqlite:///agents.db or postgresql://user@host/database",
    ),
    Setting(
        "app",
        "the app whose store to look at",
        lambda text: bool(_APP.fullmatch(text)),
        "module:attribute, such as myproject.agents:app",
    ),
)


class Value(Struct, frozen=True):
    """A setting as it is in force; `origin` says where it came from, `rank` how near that is."""

    name: str
    text: str | None
    origin: str
    rank: int

    @property
    def shown(self) -> str | None:
        """The value as people and logs may see it."""
        return None if self.text is None else masked(self.text)


class Config(Struct, frozen=True):
    """All settings. `unknown` are variables that look like ours and are not."""

    store: Value
    app: Value
    unknown: tuple[str, ...] = ()

    def values(self) -> list[Value]:
        """Return every value, in the order of the table."""
        return [getattr(self, setting.name) for setting in SETTINGS]


def load(**flags: str | None) -> Config:
    """Read all settings of this process, here and now."""
    return read(flags, os.environ, Path())


def read(flags: Mapping[str, str | None], environment: Mapping[str, str], folder: Path) -> Config:
    """Read all settings; raise a UsageError that names every fault at once."""
    faults: list[str] = []
    file = _table_of(folder / FILE, faults)
    found = {setting.name: _value(setting, flags, environment, file) for setting in SETTINGS}
    for setting in SETTINGS:
        value = found[setting.name]
        if value.text is not None and not setting.check(value.text):
            faults.append(
                f"{setting.name}={value.shown!r} ({value.origin}) is not allowed; "
                f"it must be {setting.allowed}"
            )
    if faults:
        raise UsageError("; ".join(faults))
    known = {setting.variable for setting in SETTINGS}
    strange = (name for name in environment if name.startswith(PREFIX) and name not in known)
    return Config(**found, unknown=tuple(sorted(strange)))


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
        for written in (url, repr(url)[1:-1]):
            text = text.replace(written, masked(url))
    return text


def _value(
    setting: Setting,
    flags: Mapping[str, str | None],
    environment: Mapping[str, str],
    file: Mapping[str, str],
) -> Value:
    places = (
        (f"flag --{setting.name}", flags.get(setting.name)),
        # An empty variable is how shells and container files say "not set".
        (f"environment {setting.variable}", environment.get(setting.variable) or None),
        (f"{FILE} [{TABLE}]", file.get(setting.name)),
        ("default", setting.default),
    )
    for rank, (origin, text) in enumerate(places):
        if text is not None:
            return Value(setting.name, text, origin, rank)
    return Value(setting.name, None, "default", len(places))


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
    names = {setting.name for setting in SETTINGS}
    return {k: v for k, v in table.items() if k in names and isinstance(v, str)}


def _fault(name: str, value: object) -> str | None:
    names = [setting.name for setting in SETTINGS]
    if name not in names:
        near = get_close_matches(name, names, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(names)}"
        return f"{name!r} in [{TABLE}] of {FILE} is no setting; {hint}"
    if not isinstance(value, str):
        return f"{name}={value!r} in [{TABLE}] of {FILE} is not allowed; it must be a string"
    return None
