"""The URL of a PostgreSQL store: its options, and which parts of it may be shown."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from urllib.parse import SplitResult, parse_qsl, unquote, urlencode, urlsplit, urlunsplit

from msgspec import Struct

from poolhand.errors import UsageError
from poolhand.rules.validation import is_writable, nearest, shown

WRITE = "write postgresql://user:password@host:5432/database"
MARKS = "in a user or a password write : / ? # [ ] @ % as %3A %2F %3F %23 %5B %5D %40 %25"
OURS = ("schema", "pooler", "listen", "connections")
MOST = 4
LONGEST_NAME = 63  # bytes; PostgreSQL truncates longer names
_HOST = re.compile(r"(?P<name>\[[^\[\]]*\]|[^\[\]:]*)(?::(?P<port>\d{0,5}))?")
_WORD = re.compile(r"[A-Za-z_][\w.]*")


class Address(Struct, frozen=True):
    """Where the tables are, and how to connect; shows no password.

    Behind a pooler in transaction mode no state may be left on a connection; `listen` is then a URL
    that bypasses the pooler, or None.
    """

    dsn: str
    shown: str
    schema: str = "public"
    pooled: bool = False
    listen: str | None = None
    connections: int = MOST

    def __repr__(self) -> str:
        return f"<Address {self.shown}>"


def address_of(url: str) -> Address:
    """Parse a URL, including poolhand's own options; report all faults at once."""
    parts, words = _split(url, "store")
    own = {name: words.pop(name) for name in OURS if name in words}
    faults = [*_wrong_place(parts, words), *_wrong_options(own)]
    if faults:
        raise UsageError("store: " + "; ".join(faults))
    listen = own.get("listen")
    if listen is not None:
        _check_listen(listen)
    schema = own.get("schema", "public")
    return Address(
        dsn=urlunsplit(("postgresql", parts.netloc, parts.path, urlencode(words), "")),
        shown=_shown(parts, words, schema),
        schema=schema,
        pooled="pooler" in own,
        listen=listen,
        connections=int(own.get("connections", MOST)),
    )


def _split(url: str, name: str) -> tuple[SplitResult, dict[str, str]]:
    """Split a URL; errors show none of its text, as any of it may be part of a secret."""
    try:
        parts = urlsplit(url)
        words = parts.query and parse_qsl(
            parts.query, keep_blank_values=True, strict_parsing=True, errors="strict"
        )
    except ValueError:
        raise UsageError(f"{name}: this URL cannot be read; {WRITE}; {MARKS}") from None
    if "#" in url or not url.isprintable():
        raise UsageError(f"{name}: this URL has a mark that must be escaped; {WRITE}; {MARKS}")
    return parts, dict(words or ())


def _wrong_place(parts: SplitResult, words: Mapping[str, str]) -> Iterator[str]:
    if parts.netloc.count("@") > 1 or "@" in parts.path:
        yield f"there is an @ that is not before a host; {WRITE}; {MARKS}"
    elif not all(map(_is_host, parts.netloc.rpartition("@")[2].split(","))):
        yield (
            f"after the @ and before the / there is no host with a port; {WRITE}, several hosts "
            f"parted by commas, an IPv6 address in brackets; {MARKS}"
        )
    elif not all(map(_WORD.fullmatch, words)):
        yield f"behind the ? there must be options, name=value, parted by &; {MARKS}"
    for word in words:
        if near := nearest(word, OURS, cutoff=0.8):
            yield f"there is no option {shown(word)}; did you mean {near!r}?"


def _is_host(text: str) -> bool:
    found = _HOST.fullmatch(unquote(text))
    return found is not None and int(found["port"] or 5432) in range(1, 65_536)


def _wrong_options(own: Mapping[str, str]) -> Iterator[str]:
    pooler, many = own.get("pooler", "transaction"), own.get("connections", str(MOST))
    if pooler != "transaction":
        yield f"pooler={shown(pooler)} is not allowed; it can be transaction, or be left out"
    if not (many.isascii() and many.isdecimal() and 1 <= int(many[:4]) <= 100):
        yield f"connections={shown(many)} is not allowed; give a number from 1 to 100"
    schema = own.get("schema", "public")
    fits = 1 <= len(schema.encode(errors="replace")) <= LONGEST_NAME and is_writable(schema)
    if not fits or schema.startswith("pg_"):
        yield (
            f"schema={shown(schema)} is not allowed; give a name of at most {LONGEST_NAME} bytes "
            "that does not begin with pg_"
        )


def _check_listen(url: str) -> None:
    """Raise unless `listen` is the URL of a server; it takes none of poolhand's options."""
    if not url.startswith(("postgresql://", "postgres://")):
        raise UsageError("store: listen is no URL; write listen=postgresql://…, past the pooler")
    parts, words = _split(url, "store: listen")
    faults = list(_wrong_place(parts, words))
    if not words.keys().isdisjoint(OURS):
        faults.append(f"{', '.join(OURS)} go into the URL of the store")
    if faults:
        raise UsageError("store: listen: " + "; ".join(faults))


def _shown(parts: SplitResult, words: Mapping[str, str], schema: str) -> str:
    hosts = unquote(parts.netloc.rpartition("@")[2])
    base = unquote(parts.path.removeprefix("/")) or words.get("dbname") or words.get("database", "")
    host = words.get("host", "localhost")
    socket = not hosts and host.startswith("/")
    place = f"postgresql://{'' if socket else hosts or host}/{base}"
    beside = [f"host={host}"] * socket + [f"schema={schema}"] * (schema != "public")
    return "?".join(filter(None, (place, "&".join(beside))))
