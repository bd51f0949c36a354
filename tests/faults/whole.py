"""Whether a store is intact, by its own tools. Nothing of poolhand is imported."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.faults import outside

LIMIT = 120.0


def damage(folder: Path) -> Iterator[str]:
    """Yield the damage in the store of a run."""
    url = (folder / outside.URL).read_text(encoding="utf-8")
    if url.startswith("sqlite:"):
        yield from _damage_of_file(folder / outside.STORE)
    else:
        yield from _damage_of_server(url)


def _damage_of_file(path: Path) -> Iterator[str]:
    if not path.exists():
        yield f"{path} is not there"
        return
    connection = sqlite3.connect(path)
    try:
        (answer,) = connection.execute("PRAGMA integrity_check").fetchone()
    except sqlite3.DatabaseError as error:
        answer = error
    finally:
        connection.close()
    if answer != "ok":
        yield str(answer)


def _damage_of_server(url: str) -> Iterator[str]:
    """Every table and index of the database is read and compared."""
    done = subprocess.run(
        [_amcheck(), "--install-missing", "--heapallindexed", url],
        capture_output=True,
        text=True,
        timeout=LIMIT,
    )
    if done.returncode or done.stdout:
        yield f"pg_amcheck ended with {done.returncode}: {done.stdout}{done.stderr}"[:2000]


def _amcheck() -> str:
    packaged = sorted(Path("/usr/lib/postgresql").glob("*/bin/pg_amcheck"))
    found = shutil.which("pg_amcheck") or (str(packaged[-1]) if packaged else None)
    assert found is not None, "pg_amcheck is not installed"
    return found
