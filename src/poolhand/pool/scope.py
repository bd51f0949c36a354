"""The scope of a pool: how far it reaches, and where what it keeps is kept."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from urllib.parse import quote

from msgspec import Struct

from poolhand.context import running
from poolhand.errors import Unavailable
from poolhand.rules.checks import LONGEST_NAME, is_name, is_text, shown
from poolhand.rules.job import Job

SESSION, PIPELINE, TENANT, ORG = SCOPES = ("session", "pipeline", "tenant", "org")
FOLDER = ".poolhand/pools"


class Scope(Struct, frozen=True):
    """In memory ("session"), or in a local file that outlives the process ("pipeline")."""

    kind: str = SESSION
    id: str | None = None
    store: str | None = None
    dir: str | None = None

    def url(self, name: str) -> str:
        """Return where a durable pool of that name is kept."""
        if self.store is not None:
            return self.store
        # Quoted: a name is no way out of its folder.
        file = f"{quote(self.id or '', safe='')}__{quote(name, safe='')}.db"
        return f"sqlite:///{self._folder / file}"

    def make_folder(self) -> None:
        """Make the folder for what is kept, unless a store was named."""
        if self.store is not None:
            return
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            path = str(self._folder)
            text = f"the folder {path!r} cannot be made: {error}; name another one (dir=)"
            raise Unavailable(text) from error

    @property
    def _folder(self) -> Path:
        return Path(self.dir or FOLDER)


def take_scope(given: dict[str, Any]) -> tuple[Scope, list[str]]:
    """Take the options that make a scope out of those given; say what is wrong with them."""
    kind = given.pop("scope", SESSION)
    ids = [given.pop(name, None) for name in ("scope_id", "pipeline_id")]
    store, folder = given.pop("store", None), given.pop("dir", None)
    if not isinstance(kind, str) or kind not in SCOPES:
        names = ", ".join(map(repr, SCOPES))
        return Scope(), [f"scope={shown(kind)} is not allowed; it must be one of {names}"]
    match kind:
        case "session":
            return Scope(), _strays(ids, store, folder)
        case "pipeline":
            return _pipeline(ids, store, folder)
        case _:
            return Scope(), [
                f"scope={kind!r} is host-managed: it needs a server store shared by all processes, "
                "which this version does not have; use scope='pipeline' and one machine"
            ]


def _strays(ids: list[Any], store: Any, folder: Any) -> list[str]:
    names = ("scope_id", "pipeline_id", "store", "dir")
    return [
        f"{name}={shown(value)} goes with scope='pipeline'; name that too, or leave this out"
        for name, value in zip(names, (*ids, store, folder), strict=True)
        if value is not None
    ]


def _pipeline(ids: list[Any], store: Any, folder: Any) -> tuple[Scope, list[str]]:
    chosen = next((one for one in ids if one is not None), None) or _running_id()
    faults = []
    if chosen is None:
        faults.append(
            "scope='pipeline' needs scope_id= outside of a running job: a name for the work that "
            "is to go on after a restart"
        )
    elif not is_name(chosen) or (None not in ids[:2] and ids[0] != ids[1]):
        faults.append(
            f"scope_id={shown(chosen)} is not allowed; give one non-blank text of at most "
            f"{LONGEST_NAME:,} characters, all of them UTF-8"
        )
    if store is not None and (not is_text(store) or "://" not in store):
        faults.append(f"store={shown(store)} is not allowed; give a URL such as sqlite:///file.db")
    if folder is not None and not _is_folder(folder):
        faults.append(f"dir={shown(folder)} is not allowed; give a folder")
    if store is not None and folder is not None:
        faults.append("give store or dir, not both")
    if faults:
        return Scope(), faults
    return Scope(PIPELINE, chosen, store, None if folder is None else os.fspath(folder)), []


def _is_folder(value: object) -> bool:
    path = os.fspath(value) if isinstance(value, str | os.PathLike) else None
    return isinstance(path, str) and is_path(path)


def is_path(text: str) -> bool:
    """Tell whether the system can take a text as a path."""
    try:
        return b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        return False


def _running_id() -> str | None:
    inside = running.get()
    job = None if inside is None else inside.snapshot()
    return job.id if isinstance(job, Job) else None
