"""The scope of a pool: which processes share it, and where its jobs are stored."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from urllib.parse import quote

from msgspec import Struct
from msgspec.structs import replace

from poolhand.context import running
from poolhand.errors import Unavailable
from poolhand.rules.job import Job
from poolhand.rules.validation import NAME, is_name, is_text, not_allowed, shown

SESSION, PIPELINE, TENANT, ORG = SCOPES = ("session", "pipeline", "tenant", "org")
DURABLE = (PIPELINE, TENANT, ORG)
SHARED = (TENANT, ORG)
FOLDER = ".poolhand/pools"

_NO_SERVERS = ("sqlite", "memory")
_NAME_A_SERVER = (
    "name a server that all its processes share with store='postgresql://user@host/database', or, "
    "for all such pools, with POOLHAND_STORE or as store under [tool.poolhand] in pyproject.toml"
)


class Scope(Struct, frozen=True):
    """In memory ("session"), stored ("pipeline"), or on a shared server ("tenant", "org")."""

    kind: str = SESSION
    id: str | None = None
    store: str | None = None
    dir: str | None = None

    @property
    def is_shared(self) -> bool:
        return self.kind in SHARED

    @property
    def tenant(self) -> str | None:
        """The tenant of the jobs, where the pool determines it."""
        return self.id if self.kind == TENANT else None

    def stored_name(self, name: str) -> str:
        """Return the pool's name in its store, qualified: other scopes may use the same name.

        In a file of its own the plain name is enough.
        """
        if self.store is None:
            return name
        return "/".join((self.kind, _part(self.id or ""), _part(name)))

    def url(self, name: str) -> str:
        """Return the URL of the store of a durable pool with that name."""
        if self.store is not None:
            return self.store
        # Quoted, so that a name cannot point outside of the folder.
        file = f"{quote(self.id or '', safe='')}__{quote(name, safe='')}.db"
        return f"sqlite:///{self._folder / file}"

    def resolved(self) -> Scope:
        """Return this scope with the full path of its folder: the current folder may change."""
        if self.kind == SESSION or self.store is not None:
            return self
        # Not at the top: `import poolhand` does without multiprocessing.
        from poolhand.spawning import absolute_path

        return replace(self, dir=absolute_path(str(self._folder)))

    def make_folder(self) -> None:
        """Create the folder of the store file, unless a store was given."""
        if self.store is not None:
            return
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            path = str(self._folder)
            text = f"the folder {path!r} cannot be created: {error}; name another one (dir=)"
            raise Unavailable(text) from error

    @property
    def _folder(self) -> Path:
        return Path(FOLDER if self.dir is None else self.dir)


def take_scope(given: dict[str, Any]) -> tuple[Scope, list[str]]:
    """Remove the scope options from `given`; return the scope and the errors in them."""
    kind = given.pop("scope", SESSION)
    ids = [given.pop(name, None) for name in ("scope_id", "pipeline_id")]
    store, folder = given.pop("store", None), given.pop("dir", None)
    if not isinstance(kind, str) or kind not in SCOPES:
        return Scope(), [not_allowed("scope", kind, f"one of {', '.join(map(repr, SCOPES))}")]
    if kind == SESSION:
        return Scope(), _strays(ids, store, folder)
    chosen = next((one for one in ids if one is not None), None)
    if kind == PIPELINE and chosen is None:
        chosen = _running_id()
    faults = _faults_of_id(kind, chosen, ids)
    faults += _faults_of_place(store, folder) if kind == PIPELINE else _unserved(kind, store)
    if kind != PIPELINE and folder is not None:
        faults.append(f"dir={shown(folder)} goes with scope='pipeline'; leave it out")
    if faults:
        return Scope(), faults
    return Scope(kind, chosen, store, None if folder is None else os.fspath(folder)), []


def _strays(ids: list[Any], store: Any, folder: Any) -> list[str]:
    names = ("scope_id", "pipeline_id", "store", "dir")
    texts = (*map(shown, ids), _shown_url(store), shown(folder))
    return [
        f"{name}={text} goes with scope='pipeline'; name that too, or leave this out"
        for name, value, text in zip(names, (*ids, store, folder), texts, strict=True)
        if value is not None
    ]


def _faults_of_id(kind: str, chosen: Any, ids: list[Any]) -> list[str]:
    if chosen is None:
        if kind == PIPELINE:
            return [
                "scope='pipeline' needs scope_id= outside of a running job: a name for the work "
                "that is to go on after a restart"
            ]
        return [f"scope={kind!r} needs scope_id=: the name of the {kind} whose pool it is"]
    if None not in ids and ids[0] != ids[1]:
        return [
            f"scope_id={shown(ids[0])} and pipeline_id={shown(ids[1])} disagree; they are two "
            "names of one option: give scope_id alone"
        ]
    if not is_name(chosen):
        return [not_allowed("scope_id", chosen, NAME.text)]
    return []


def _faults_of_place(store: Any, folder: Any) -> list[str]:
    faults = [] if store is None or _is_url(store) else [_no_url(store)]
    if folder is not None and not _is_folder(folder):
        faults.append(not_allowed("dir", folder, "a folder, or left out"))
    if store is not None and folder is not None:
        faults.append("give store or dir, not both")
    return faults


def _unserved(kind: str, store: Any) -> list[str]:
    """Return the errors in the store option of a shared pool."""
    if store is None:
        return [f"scope={kind!r} is host-managed; {_NAME_A_SERVER}"]
    if not _is_url(store):
        return [_no_url(store)]
    if store.partition("://")[0].lower() in _NO_SERVERS:
        # A file is shared by one machine only; on a second machine there would be a second pool.
        return [
            f"scope={kind!r} is host-managed, and store={shown(store)} is not on a server, where "
            f"other machines could reach it; {_NAME_A_SERVER}; for one machine use "
            "scope='pipeline' with this store"
        ]
    return []


def _is_url(store: object) -> bool:
    return isinstance(store, str) and is_text(store) and "://" in store


def _no_url(store: object) -> str:
    urls = "sqlite:///file.db or postgresql://user@host/database"
    return f"store={_shown_url(store)} is not allowed; it must be a URL such as {urls}"


def _shown_url(store: object) -> str:
    """Return a store URL for an error message, without a possible password."""
    if isinstance(store, str) and "@" in store:
        return f"'{store.partition(':')[0][:20]}:…'"
    return shown(store)


def _part(text: str) -> str:
    """Escape a part of a name so that it contains no separator."""
    return text.replace("%", "%25").replace("/", "%2F")


def _is_folder(value: object) -> bool:
    path = os.fspath(value) if isinstance(value, str | os.PathLike) else None
    # A blank path would silently mean the default folder, or one that is hard to see.
    return isinstance(path, str) and bool(path.strip()) and is_path(path)


def is_path(text: str) -> bool:
    """Return whether the operating system accepts a text as a path."""
    try:
        return b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        return False


def _running_id() -> str | None:
    inside = running.get()
    job = None if inside is None else inside.snapshot()
    return job.id if isinstance(job, Job) else None
