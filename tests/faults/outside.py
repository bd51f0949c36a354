"""The files outside the system: records of jobs, submitters and the harness.

One folder per run. Every file but the marks holds lines of JSON, each appended by one write, so
that many processes share a file and a killed one leaves at most a part of a line. Times are
`time.monotonic()`, which all processes of a machine share. Nothing of poolhand is imported here.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Line = dict[str, Any]

EFFECTS = "effects.jsonl"  # jobs: begin, end
ACKS = "acks.jsonl"  # submitters: asked, ack, refused
BLOWS = "blows.jsonl"  # the harness: started, kill, stop, cont, ended, wall
TOLD = "told.jsonl"  # processes: their events, and whether they are ready
JOBS = "jobs.jsonl"  # the exporter: all jobs of the store
AUDIT = "audit.jsonl"  # the exporter: the audit stream
PLAN = "plan.json"
URL = "url"  # of the store itself, without a proxy
STORE = "jobs.db"


class Lines:
    """A file for appended lines, from any thread of any process."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def write(self, what: str, **fields: Any) -> None:
        """Append a line that says what happened now."""
        line = {"what": what, "at": time.monotonic(), **fields}
        # A line break on both sides: a part of a line of a killed process spoils no other line.
        os.write(self._fd, b"\n" + json.dumps(line).encode() + b"\n")

    def close(self) -> None:
        os.close(self._fd)


class Tail:
    """Reads the lines that others append to a file, each once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def news(self) -> Iterator[Line]:
        """Yield the lines since the last look."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
        except OSError:
            # Missing, or no descriptor is left to open it: the next look finds it.
            return
        data = data[: data.rfind(b"\n") + 1]
        self._offset += len(data)
        yield from _parsed(data)


def read(path: Path) -> list[Line]:
    """Return all complete lines of a file; none if there is no such file."""
    return list(_parsed(path.read_bytes())) if path.exists() else []


def _parsed(data: bytes) -> Iterator[Line]:
    for piece in data.split(b"\n"):
        if not piece:
            continue
        try:
            line = json.loads(piece)
        except ValueError:
            # Its writer was killed in the middle of the line: it does not count.
            continue
        if isinstance(line, dict):
            yield line
